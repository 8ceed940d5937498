"""The catalogue and the code agree: each problem is raised with the facts that its words name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from string import Formatter

import pytest

from nodeagent.catalogue import Words, filled, problem_words, section
from nodeagent.plan.problems import Code, Problem

SOURCES = Path(__file__).parents[1] / "nodeagent"
RAISING = ("of", "problem", "refuse")
OF_ITSELF = {"title", "index"}  # what `Gpu.problem` knows
NOT_FACTS = {"gpu", "path"}

Key = tuple[Code, str]


def _keys() -> Iterator[Key]:
    """Every code and case that has words."""
    for code, entry in section("problem").items():
        if "message" in entry:
            yield Code(code), ""
        yield from ((Code(code), case) for case in entry.get("cases", ()))


def _facts(words: Words) -> set[str]:
    return {name for text in words for _, name, _, _ in Formatter().parse(text) if name}


def _raised() -> Iterator[tuple[str, Key, set[str], bool]]:
    """Of each call in the code that raises a problem: where, its key, its facts, and whether it is
    of a GPU.
    """
    for file in sorted(SOURCES.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
                for where, key, given, of_gpu in _raised_in(function):
                    yield f"{file.relative_to(SOURCES)}:{where}", key, given, of_gpu


def _raised_in(function: ast.AST) -> Iterator[tuple[int, Key, set[str], bool]]:
    body = list(_own_nodes(function))
    for node in body:
        match node:
            case ast.Call(
                func=ast.Attribute(attr=name),
                args=[ast.Attribute(value=ast.Name(id="Code"), attr=code), *more],
            ) if name in RAISING:
                given = {keyword.arg for keyword in node.keywords if keyword.arg} - NOT_FACTS
                for case in _cases(more[0], body) if more else [""]:
                    yield node.lineno, (Code[code], case), given, name != "of"


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """All within it, but for what is in functions of its own."""
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
            yield from _own_nodes(node)


def _cases(named: ast.expr, body: list[ast.AST]) -> Iterator[str]:
    """The case that is named, or each of those that the variable can have."""
    if isinstance(named, ast.Constant):
        yield str(named.value)
        return
    assert isinstance(named, ast.Name)
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Name(id=named.id)], value=ast.Constant(value=case)):
                yield str(case)
            case ast.Assign(
                targets=[ast.Name(id=named.id)],
                value=ast.IfExp(body=ast.Constant(value=case), orelse=ast.Constant(value=other)),
            ):
                yield from (str(case), str(other))


RAISED = list(_raised())


@pytest.mark.parametrize(
    ("key", "given", "of_gpu"), [each for _, *each in RAISED], ids=[where for where, *_ in RAISED]
)
def test_each_problem_is_raised_with_the_facts_of_its_words(
    key: Key, given: set[str], of_gpu: bool
) -> None:
    """Nothing is missing, and nothing is given that no word needs."""
    needed = _facts(problem_words(*key))
    assert needed - (OF_ITSELF if of_gpu else set()) == given


def test_all_words_are_used() -> None:
    """No code keeps words that nothing raises."""
    assert {key for _, key, *_ in RAISED} == set(_keys())


def test_an_empty_fact_takes_its_punctuation_along() -> None:
    """`{why:: }` is `: ` and the fact."""
    assert filled("it failed{why:: }", {"why": "no reply"}) == "it failed: no reply"
    assert filled("it failed{why:: }", {"why": ""}) == "it failed"


def test_a_problem_has_its_words() -> None:
    """With the facts in them, and the place that it is of."""
    found = Problem.of(Code.UNKNOWN_DEVICE, "noSuchGpu", path="gpus[0]", named="7", gpus="index 0")
    assert (found.message, found.remedy) == ("this node has no GPU 7", "it has index 0")
    assert (found.code, found.path, found.gpu) == (Code.UNKNOWN_DEVICE, "gpus[0]", "")
