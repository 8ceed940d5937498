"""Overrides in a file of the user's."""

from __future__ import annotations

import json
from pathlib import Path

import pynvml
import pytest

from nodeagent.errors import UsageError
from nodeagent.simulation import read_overrides
from tests.simulation import calls


def test_a_file_of_overrides_reaches_nvml(tmp_path: Path) -> None:
    """What the user's file says is what the simulated driver reports."""
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"h100-80gb": {"product": "NVIDIA H100 of mine"}}))
    with calls.node_with("h100-80gb", overrides=read_overrides(path)):
        assert pynvml.nvmlDeviceGetName(calls.gpu()) == "NVIDIA H100 of mine"


def test_overrides_are_part_of_the_state(tmp_path: Path) -> None:
    """Any program that opens the node later sees the same card; new overrides replace the old."""
    state = tmp_path / "node.json"
    for overrides, reported in (
        ({"t4": {"product": "one"}}, "one"),
        (None, "one"),
        ({"t4": {"product": "two"}}, "two"),
        (None, "two"),
    ):
        with calls.node_with("t4", state=state, overrides=overrides):
            assert pynvml.nvmlDeviceGetName(calls.gpu()) == reported


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "cannot be read"),
        ("{", "is not JSON"),
        ("[]", "must map boards to fields"),
        ('{"t4": 1}', "must map boards to fields"),
        ('{"t5": {}}', "did you mean t4"),
        ('{"t4": {"memory": 1}}', "did you mean memory_mib"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, text: str | None, complaint: str) -> None:
    """In one sentence, with the nearest name."""
    path = tmp_path / "mine.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=complaint):
        read_overrides(path)
