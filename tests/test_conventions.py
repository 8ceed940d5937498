import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.app.process import WORDS

# --- names ----------------------------------------------------------------------------------------


PRODUCT = Path(__file__).parents[1] / "nodeagent"
# A shape of the API has the name of what it shows, which is a class of its own in the core.
SHOWN = {"Gpu", "GpuPlan", "Pod", "User"}
MAX_PRIVATE = 8  # as parts of an object of Kubernetes' are called


def _modules_by_class() -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for file in sorted(PRODUCT.rglob("*.py")):
        module = file.relative_to(PRODUCT).as_posix()
        if not module.startswith("simulation/"):
            for node in ast.parse(file.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef):
                    found[node.name].append(module)
    return {name: modules for name, modules in found.items() if len(modules) > 1}


def test_no_name_stands_for_two_classes() -> None:
    several = _modules_by_class()
    assert {name for name in several if not name.startswith("_")} == SHOWN
    private = {name: modules for name, modules in several.items() if name.startswith("_")}
    assert len(private) <= MAX_PRIVATE, private


# --- words ----------------------------------------------------------------------------------------


def test_the_agent_reads_its_words_when_it_starts() -> None:
    """Later no file may be left to open, and the event loop would wait for the disk."""
    files = (file for file in PRODUCT.rglob("*.py") if not {"cli", "simulation"} & {*file.parts})
    of_agent = (file.read_text(encoding="utf-8") for file in files if file.name != "runbook.py")
    used = {kind for text in of_agent for kind in re.findall(r'section\("([\w-]+)"\)', text)}
    assert used == set(WORDS)


# --- no patching ----------------------------------------------------------------------------------


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
    assert list(patches(ast.parse(f"from nodeagent.app import service\n{line}"))) == [2]
