"""Our own modules are never patched: what a test has to change is an argument."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
OURS = {"nodeagent", "tests"}


def patches(tree: ast.Module) -> Iterator[int]:
    """The lines that set an attribute of something of ours, or a private one of anything else."""
    nodes = list(ast.walk(tree))
    ours, foreign = _imported(nodes)
    for node in nodes:
        match node:
            case ast.Call(func=ast.Attribute(attr="setattr"), args=[target, *_]):
                if _root(target) not in foreign:
                    yield node.lineno
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id=name))]) if name in ours:
                yield node.lineno
            case ast.Assign(targets=[ast.Attribute(value=whose, attr=attr)]):
                if attr.startswith("_") and _root(whose) not in {"self", *foreign}:
                    yield node.lineno
            case ast.ImportFrom(module="unittest", names=[ast.alias(name="mock")]):
                yield node.lineno


def _imported(nodes: list[ast.AST]) -> tuple[set[str], set[str]]:
    """Names that stand for something of ours, and for modules of others."""
    ours, foreign = set[str](), set[str]()
    for node in nodes:
        if isinstance(node, ast.Import):
            foreign |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in OURS:
            ours |= {alias.asname or alias.name for alias in node.names}
    return ours, foreign - OURS


def _root(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def test_no_test_patches_what_is_ours() -> None:
    """Neither by monkeypatch nor by assignment nor by unittest.mock."""
    found = [
        f"{path.relative_to(TESTS.parent)}:{line}"
        for path in sorted(TESTS.rglob("*.py"))
        for line in patches(ast.parse(path.read_bytes()))
    ]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "monkeypatch.setattr(service, '_LIMIT', 1)",
        "monkeypatch.setattr('nodeagent.app.service._LIMIT', 1)",
        "monkeypatch.setattr(rig.exporter, '_write', 1)",
        "service._LIMIT = 1",
        "rig.sampler._intervals = 1",
        "from unittest import mock",
    ],
)
def test_a_patch_is_found(line: str) -> None:
    """Each way there is."""
    assert list(patches(ast.parse(f"from nodeagent.app import service\n{line}"))) == [2]
