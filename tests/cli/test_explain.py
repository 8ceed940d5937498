"""`nodeagent explain`: entries of the runbook on a terminal and for programs."""

from __future__ import annotations

import json

import yaml

from nodeagent.runbook import runbook
from tests.cli.conftest import Program


def test_an_entry_on_a_terminal(program: Program) -> None:
    """Meaning, what to look at, what mends it; commands stand alone on their lines."""
    shown = program("explain", "inuse")
    assert shown.code == 0
    title, *lines = shown.out.splitlines()
    assert title == "InUse  problem"
    assert all(line.startswith("  ") for line in lines)
    assert "        kill PID  # for a process outside any pod" in lines
    assert lines[-1] == "  see   Blocked, NodeagentPlanBlocked"


def test_all_entries_in_a_table(program: Program) -> None:
    """A line each, not wider than the terminal."""
    listed = program("explain")
    header, *lines = listed.out.splitlines()
    assert header.split() == ["CODE", "KIND", "MEANS"]
    assert len(lines) == len(runbook().entries)
    assert max(map(len, lines)) <= 120
    assert any(line.split()[:2] == ["InUse", "problem"] for line in lines)


def test_an_entry_for_programs(program: Program) -> None:
    """JSON and YAML are the same data, with keys that stay."""
    found = program("explain", "XID", "79", "-o", "json").json
    (entry,) = found["entries"]
    assert list(entry) == ["code", "kind", "means", "look", "mend", "see"]
    assert (entry["code"], entry["kind"], entry["see"]) == ("79", "xid", ["fallenOffBus"])
    assert yaml.safe_load(program("explain", "79", "-o", "yaml").out) == found
    everything = json.loads(program("explain", "-o", "json").out)["entries"]
    assert len(everything) == len(runbook().entries)


def test_an_unknown_code(program: Program) -> None:
    """Is bad usage, with the nearest spelling."""
    refused = program("explain", "InUsed")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err == 'nodeagent: there is no code "InUsed"\n  did you mean InUse?\n'
