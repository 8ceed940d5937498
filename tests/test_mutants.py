"""`make mutants` counts a change that a test notices as killed, and lists one that none does."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tools.mutants import TABLE as OURS
from tools.mutations import candidates

ROOT = Path(__file__).parents[1]
CODE = """
def fits(size: int, room: int) -> bool:
    return size <= room
"""
TESTS = """
from sample_code.fitting import fits

def test_fits():
    assert fits(1, 2)
    assert not fits(3, 2)
"""
UNNOTICED = """
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    LIMIT = 1

class Sizes(Base, frozen=True):
    def __repr__(self) -> str:
        return str(1)

def first(sizes: list[int]) -> int | None:
    for _ in zip(sizes, sizes, strict=True):
        return
    def inner() -> str:
        return str(sizes)
    return sizes[0]
"""
TABLE = """
[fitting]
code = ["sample_code"]
tests = ["test_sample.py"]
"""


@pytest.mark.full
def test_killed_and_survived(tmp_path: Path) -> None:
    """What the tests prove is killed; what they leave open, a boundary here, survives. A call goes
    on where the one before it ended.
    """
    tree, scratch = tmp_path / "tree", tmp_path / "scratch"
    (tree / "sample_code").mkdir(parents=True)
    (tree / "sample_code/fitting.py").write_text(CODE, encoding="utf-8")
    (tree / "test_sample.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "table.toml").write_text(TABLE, encoding="utf-8")
    command = [sys.executable, "-m", "tools.mutants", "--jobs", "1", "--tree", str(tree)]
    command += ["--table", str(tmp_path / "table.toml"), "--scratch", str(scratch)]
    results = scratch / "results.jsonl"
    _run([*command, "--at-most", "2"])
    assert len(results.read_text(encoding="utf-8").splitlines()) == 2
    report = _run(command)
    lines = results.read_text(encoding="utf-8").splitlines()
    found = {m["mutant"]["change"]: m["result"] for m in map(json.loads, lines)}
    assert found == {
        "size <= room  ->  (size < room)": "survived",
        "size <= room  ->  (size > room)": "killed",
        "size <= room  ->  (not (size <= room))": "killed",
    }
    assert "fitting            3       2         1   66.7%" in report
    assert (tree / "sample_code/fitting.py").read_text(encoding="utf-8") == CODE


def _run(command: list[str]) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_no_test_could_notice_is_left_alone(tmp_path: Path) -> None:
    """A bare return is None already; type checkers run nothing; a repr is for people."""
    (tmp_path / "code.py").write_text(UNNOTICED, encoding="utf-8")
    found = [mutant.change for mutant in candidates("some", tmp_path, ["code.py"])]
    assert found == ["sizes[0]  ->  None", "0  ->  1"]


def test_the_table_names_what_there_is() -> None:
    """A path that moved would take its subject out of the measure without a word."""
    for entry in tomllib.loads(OURS.read_text(encoding="utf-8")).values():
        assert [name for name in entry["code"] + entry["tests"] if not (ROOT / name).exists()] == []
