import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tools.mutant_reports import small_set
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
MORE_TESTS = """
from sample_code.fitting import fits

def test_it_fits():
    assert fits(1, 2)
    assert fits(2, 2)
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
    tree, scratch = tmp_path / "tree", tmp_path / "scratch"
    command = [*_command(tmp_path, tree), "--scratch", str(scratch)]
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


@pytest.mark.full
def test_who_kills_what(tmp_path: Path) -> None:
    tree, kills = tmp_path / "tree", tmp_path / "kills.json"
    command = [*_command(tmp_path, tree), "--all", "--json", str(kills)]
    (tree / "test_more.py").write_text(MORE_TESTS, encoding="utf-8")
    report = _run([*command, "--tests", "test_sample.py", "test_more.py"])
    found = {m["change"]: m["killers"] for m in json.loads(kills.read_text(encoding="utf-8"))}
    assert found == {
        "size <= room  ->  (size < room)": ["test_more.py"],
        "size <= room  ->  (size > room)": ["test_more.py", "test_sample.py"],
        "size <= room  ->  (not (size <= room))": ["test_more.py", "test_sample.py"],
    }
    rows = [line.split() for line in report.splitlines() if line.endswith(".py")]
    assert rows == [["3", "1", "0.0", "yes", "test_more.py"], ["2", "0", "0.0", "test_sample.py"]]


def test_a_small_set_kills_what_all_kill() -> None:
    kills = [["a"], ["b", "c"], ["b", "c"], ["a", "c"], []]
    assert small_set(kills, {"a": 9.0, "b": 3.0, "c": 1.0}) == {"a", "c"}


def _command(folder: Path, tree: Path) -> list[str]:
    """What measures a tree with one function and one test, which it makes."""
    (tree / "sample_code").mkdir(parents=True)
    (tree / "sample_code/fitting.py").write_text(CODE, encoding="utf-8")
    (tree / "test_sample.py").write_text(TESTS, encoding="utf-8")
    (folder / "table.toml").write_text(TABLE, encoding="utf-8")
    command = [sys.executable, "-m", "tools.mutants", "--jobs", "1", "--tree", str(tree)]
    return [*command, "--table", str(folder / "table.toml")]


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
