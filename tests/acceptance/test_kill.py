"""A process killed at any moment of its work leaves a node from which the next one goes on."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from nodeagent.simulation import SimulatedNode

BEFORE = "version: v1\ngpus: [{devices: all, mig: {1g.10gb: 7}}]\n"
AFTER = "version: v1\ngpus: [{devices: all, mig: {3g.40gb: 1, 2g.20gb: 1, 1g.10gb: 2}}]\n"


def nodeagent(*arguments: str) -> list[str]:
    """The real program."""
    return [sys.executable, "-m", "nodeagent", *arguments]


def in_use_and_all(state: Path) -> tuple[set[str], set[str]]:
    """MIG devices with a process on them, and all MIG devices, as the hardware has them."""
    used, there = set(), set()
    with SimulatedNode(state=state) as node:
        for card in node.cards:
            for instance, compute in card.mig_devices():
                uuid = card.mig_uuid(instance, compute)
                there.add(uuid)
                if card.processes(instance.id, compute.id):
                    used.add(uuid)
    return used, there


@pytest.mark.parametrize("moments", [2, pytest.param(20, marks=pytest.mark.full)])
def test_killed_at_any_moment(tmp_path: Path, moments: int) -> None:
    """Killed at moments spread over an `apply`, the next `apply` reaches the plan, and the devices
    in use are the same ones throughout.
    """
    state, before, after = tmp_path / "node.json", tmp_path / "before", tmp_path / "after"
    before.write_text(BEFORE)
    after.write_text(AFTER)
    there = ("--state", str(state))
    first = nodeagent("apply", "-f", str(before), "--simulate", "h100-80gb:2", *there)
    subprocess.run(first, check=True, stdout=subprocess.DEVNULL)
    with SimulatedNode(state=state) as node:
        for card in node.cards:
            third = [i for i, _ in card.mig_devices()][2]
            node.occupy(f"{card.index}/{third.id}/0", command="training")
    used, _ = in_use_and_all(state)
    assert len(used) == 2
    cut_short = 0
    for moment in range(moments):
        plan = str((before, after)[moment % 2])
        with SimulatedNode(state=state) as node:
            slow = node.inject(delay=0.005, times=None)
        process = subprocess.Popen(
            nodeagent("apply", "-f", plan, *there),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(0.2 + moment / moments * 0.8)
        process.kill()
        cut_short += process.wait() != 0
        with SimulatedNode(state=state) as node:
            node.clear_faults(slow)
        assert used <= in_use_and_all(state)[1], f"harmed what is in use at moment {moment}"
        subprocess.run(
            nodeagent("apply", "-f", plan, *there), check=True, stdout=subprocess.DEVNULL
        )
        subprocess.run(
            nodeagent("assert", "-f", plan, *there), check=True, stdout=subprocess.DEVNULL
        )
        assert used == in_use_and_all(state)[0]
    assert cut_short >= moments // 2  # else the moments were too late to prove anything
