"""`make mutants` counts a change that a test notices as killed, and lists one that none does."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

from tools.mutants import TABLE as OURS

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
TABLE = """
[fitting]
code = ["sample_code"]
tests = ["test_sample.py"]
"""


def test_killed_and_survived(tmp_path: Path) -> None:
    """What the tests prove is killed; what they leave open, a boundary here, survives."""
    tree, scratch = tmp_path / "tree", tmp_path / "scratch"
    (tree / "sample_code").mkdir(parents=True)
    (tree / "sample_code/fitting.py").write_text(CODE, encoding="utf-8")
    (tree / "test_sample.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "table.toml").write_text(TABLE, encoding="utf-8")
    command = [sys.executable, "-m", "tools.mutants", "--jobs", "1", "--tree", str(tree)]
    command += ["--table", str(tmp_path / "table.toml"), "--scratch", str(scratch)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (scratch / "results.jsonl").read_text(encoding="utf-8").splitlines()
    found = {m["mutant"]["change"]: m["result"] for m in map(json.loads, lines)}
    assert found == {
        "size <= room  ->  (size < room)": "survived",
        "size <= room  ->  (size > room)": "killed",
        "size <= room  ->  (not (size <= room))": "killed",
    }
    assert "fitting            3       2         1   66.7%" in done.stdout
    assert (tree / "sample_code/fitting.py").read_text(encoding="utf-8") == CODE


def test_the_table_names_what_there_is() -> None:
    """A path that moved would take its subject out of the measure without a word."""
    for entry in tomllib.loads(OURS.read_text(encoding="utf-8")).values():
        assert [name for name in entry["code"] + entry["tests"] if not (ROOT / name).exists()] == []
