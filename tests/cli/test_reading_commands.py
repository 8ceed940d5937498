"""The commands that only look, beyond what tests/goldens records of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Program

SPLIT = "{devices: [0, 1], mig: {3g.40gb: 1, 1g.10gb: 4}}"


@pytest.mark.parametrize("form", ["plan", "mig-parted"])
def test_an_export_describes_the_node(form: str, h100: Program) -> None:
    """What was exported asserts, and a new node becomes the same by applying it."""
    h100.on("apply", "-f", h100.plan("{devices: [0], mig: {3g.40gb: 1, 1g.10gb: 2}}"))
    exported = h100.on("export", "--format", form)
    assert exported.code == 0
    path = h100.file(exported.out, "exported.yaml")
    assert h100.on("assert", "-f", path).code == 0
    fresh = ("--simulate", "h100-80gb:2", "-f", path)
    assert h100("apply", *fresh).code == 0


def test_profiles_with_bad_options_is_code_2(program: Program) -> None:
    """Both names of boards and the state file's boards must agree."""
    program.node("t4:1")
    assert program.on("profiles", "--simulate", "t4:2").code == 2


def test_json_output_is_json_alone(h100: Program) -> None:
    """Every command that answers in JSON writes one document and nothing else."""
    path = h100.plan(SPLIT)
    for words in (
        ("plan", "-f", path),
        ("apply", "-f", path),
        ("assert", "-f", path),
        ("export",),
        ("profiles",),
        ("check",),
        ("simulate", "boards"),
        ("simulate", "occupy", "0:4"),
        ("simulate", "release"),
        ("simulate", "fault", "nvmlInit*", "UNKNOWN"),
        ("simulate", "fault", "--clear"),
        ("simulate", "reboot"),
    ):
        assert isinstance(json.loads(h100.on(*words, "-o", "json").out), dict), words
