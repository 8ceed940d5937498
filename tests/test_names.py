"""A name says which class is meant: few stand in several modules."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

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
    """But for shapes of what they show, and some that are private to their modules."""
    several = _modules_by_class()
    assert {name for name in several if not name.startswith("_")} == SHOWN
    private = {name: modules for name, modules in several.items() if name.startswith("_")}
    assert len(private) <= MAX_PRIVATE, private
