"""Which small changes of Python code a test should notice: `candidates` lists all of them.

Left alone is what a test could not notice, or should not: annotations, decorators, log lines, the
texts of messages, protocols, `__repr__`, causes of exceptions, what only type checkers read, and
guards against our own slips (`frozen`, `slots`, `strict`).
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

COMPARED: Final[Mapping[type[ast.cmpop], Sequence[type[ast.cmpop]]]] = {
    ast.Lt: [ast.LtE, ast.GtE],
    ast.LtE: [ast.Lt, ast.Gt],
    ast.Gt: [ast.GtE, ast.LtE],
    ast.GtE: [ast.Gt, ast.Lt],
    ast.Eq: [ast.NotEq],
    ast.NotEq: [ast.Eq],
    ast.Is: [ast.IsNot],
    ast.IsNot: [ast.Is],
    ast.In: [ast.NotIn],
    ast.NotIn: [ast.In],
}
COMPUTED: Final[Mapping[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
}
OTHER: Final[Mapping[type[ast.boolop], type[ast.boolop]]] = {ast.And: ast.Or, ast.Or: ast.And}
CALLED: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
OPTIONAL_KEYWORDS: Final = {"replace", "sorted", "min", "max", "sum"}  # functions


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: the bytes from `start` to `end` of a file become `text`."""

    subject: str
    path: str
    line: int
    start: int
    end: int
    text: str
    change: str

    def applied_to(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]


def changes(  # noqa: C901, PLR0912, PLR0915  # one flat list of all kinds
    node: ast.AST,
) -> Iterator[tuple[ast.AST, str]]:
    """What of this node (not of those below it) can become what else."""
    match node:
        case ast.Compare(left, [op], [right]):
            for other in COMPARED[type(op)]:
                yield node, _text(ast.Compare(left, [other()], [right]))
            if isinstance(right, ast.Tuple | ast.List) and len(right.elts) > 1:
                yield from _without(right, "elts")
        case ast.BoolOp(op, values):
            yield node, _text(ast.BoolOp(OTHER[type(op)](), values))
            yield from _without(node, "values")
        case ast.UnaryOp(ast.Not(), operand):
            yield node, _text(operand)
        case ast.IfExp(test, body, orelse):
            yield node, _text(ast.IfExp(test, orelse, body))
        case ast.If(test) if not isinstance(test, ast.Compare | ast.UnaryOp):
            yield test, f"(not {_text(test)})"
        case ast.match_case(guard=ast.expr() as guard):
            yield guard, f"(not {_text(guard)})"
        case ast.Constant(bool() as value):
            yield node, str(not value)
        case ast.Constant(int() as value):
            yield node, str(value + 1)
            if value > 0:
                yield node, str(value - 1)
        case ast.BinOp(left, op, right) if type(op) in COMPUTED:
            if not any(isinstance(n, ast.JoinedStr | ast.Tuple | ast.List) for n in (left, right)):
                yield node, _text(ast.BinOp(left, COMPUTED[type(op)](), right))
        case ast.AugAssign(target, op, value) if type(op) in COMPUTED:
            yield node, _text(ast.AugAssign(target, COMPUTED[type(op)](), value))
        case (
            ast.FunctionDef(returns=ast.expr() as kind)
            | ast.AsyncFunctionDef(returns=ast.expr() as kind)
        ):
            for value in _returned(node):
                if isinstance(value, ast.Constant):
                    continue
                if "None" in ast.unparse(kind):
                    yield value, "None"
                elif ast.unparse(kind) == "bool":
                    yield value, f"(not {_text(value)})"
        case ast.Expr(ast.Call() | ast.Await()) | ast.Raise():
            yield node, "pass"
        case ast.Assign([ast.Attribute()]):
            yield node, "pass"
        case ast.Continue():
            yield node, "break"
        case ast.Break():
            yield node, "continue"
        case ast.Call(ast.Name(name) as func, _, keywords):
            if name in CALLED:
                yield func, CALLED[name]
            if name in OPTIONAL_KEYWORDS:
                for i in range(len(keywords)):
                    yield node, _text(_less(node, "keywords", i))
        case ast.Set(elts) if len(elts) > 1:
            yield from _without(node, "elts")
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            for i, generator in enumerate(node.generators):
                for k in range(len(generator.ifs)):
                    changed = copy.deepcopy(node)
                    del changed.generators[i].ifs[k]
                    yield node, _text(changed)


def _returned(node: ast.AST) -> Iterator[ast.expr]:
    """The values that a function itself returns, not the functions in it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Return) and child.value is not None:
            yield child.value
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _returned(child)


def _text(node: ast.AST) -> str:
    text = ast.unparse(node)
    return f"({text})" if isinstance(node, ast.expr) else text


def _less(node: ast.AST, field: str, index: int) -> ast.AST:
    changed = copy.deepcopy(node)
    del getattr(changed, field)[index]
    return changed


def _without(node: ast.expr, field: str) -> Iterator[tuple[ast.AST, str]]:
    """The node without each one of its parts."""
    for i in range(len(getattr(node, field))):
        changed = _less(node, field, i)
        if isinstance(changed, ast.BoolOp) and len(changed.values) == 1:
            changed = changed.values[0]
        yield node, _text(changed)


def _is_unnoticed(node: ast.AST) -> bool:
    match node:
        case (
            ast.JoinedStr()
            | ast.Import()
            | ast.ImportFrom()
            | ast.Expr(ast.Call(ast.Attribute(ast.Name("log")) | ast.Name("assert_never")))
            | ast.If(ast.Name("TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"))
            | ast.If(ast.Compare(ast.Name("__name__")))
            | ast.Assign([ast.Name("TYPE_CHECKING")])
            | ast.FunctionDef(name="__repr__")
            | ast.ClassDef(bases=[ast.Name("Protocol"), *_])
            | ast.keyword(arg="frozen" | "slots" | "strict" | "contravariant")
        ):
            return True
    return False


def _below(node: ast.AST) -> Iterator[ast.AST]:
    """This node and those below it, but for what no test should notice."""
    if _is_unnoticed(node):
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name not in {"annotation", "returns", "decorator_list", "cause"}:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _below(child)


def candidates(subject: str, tree: Path, code: Sequence[str]) -> list[Mutant]:
    """Every change of a subject's files, in the order of the files and their lines."""
    found = []
    for path in sorted(p for name in code for p in _python_files(tree / name)):
        source = path.read_bytes()
        lines = [0]
        for line in source.splitlines(keepends=True):
            lines.append(lines[-1] + len(line))
        for node in _below(ast.parse(source)):
            for target, text in changes(node):
                at: Any = target
                start = lines[at.lineno - 1] + at.col_offset
                end = lines[at.end_lineno - 1] + at.end_col_offset
                before = " ".join(source[start:end].decode().split())
                name = path.relative_to(tree).as_posix()
                change = f"{before}  ->  {text}"
                found.append(Mutant(subject, name, at.lineno, start, end, text, change))
    return found


def _python_files(path: Path) -> list[Path]:
    return [path] if path.is_file() else list(path.rglob("*.py"))
