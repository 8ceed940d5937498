"""Layouts of several GPUs that come and go on one node, with resets between and users on some."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from nodeagent.documents.reading import read_document
from nodeagent.gpu.driver import Driver
from nodeagent.plan.desired import DesiredNode
from nodeagent.plan.observed import Gpu
from nodeagent.plan.plan import GpuPlan, NodePlan, Policy, Verdict
from nodeagent.plan.planner import plan
from nodeagent.plan.resolve import resolve
from nodeagent.reconcile.executor import execute
from nodeagent.simulation import simulated
from tests.plan.cards import layouts
from tests.rig import open_driver

RESETS = Policy(reset_when_idle=True)


def random_plan(rng: random.Random, board: str, gpus: int) -> bytes:
    """Each GPU with MIG off, empty, or with a layout that it can have."""
    names = sorted(layouts(board))
    lines = ["version: v1", "gpus:"]
    for gpu in range(gpus):
        chosen = rng.choice(["disabled", "{}", *(dict(rng.choice(names)) for _ in range(6))])
        mig = str(chosen).replace("'", '"')
        lines += [f"- devices: [{gpu}]", f"  mig: {mig}"]
    return "\n".join(lines).encode()


async def apply(driver: Driver, text: bytes, parallel: int) -> tuple[GpuPlan, ...]:
    """One round; what is planned afterwards, from what the hardware is then."""
    outcome = await execute(await planned(driver, text), driver, parallel=parallel)
    assert [problem for gpu in outcome.gpus for problem in gpu.problems] == []
    return (await planned(driver, text)).gpus


async def planned(driver: Driver, text: bytes) -> NodePlan:
    """From what the hardware is now."""
    observed = await driver.observe()
    wanted = resolve(read_document(text), observed)
    assert isinstance(wanted, DesiredNode)
    return plan(wanted, observed, RESETS)


def devices(gpu: Gpu) -> set[str]:
    """Its MIG devices, by UUID."""
    return {device.uuid for _, device in gpu.mig_devices()}


@pytest.mark.parametrize(
    "seeds",
    [range(1), pytest.param(range(1, 40), marks=[pytest.mark.full, pytest.mark.timeout(1800)])],
)
@pytest.mark.parametrize("board", ["a30", "h100-80gb"])
async def test_layouts_come_and_go(
    board: str, seeds: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each that nobody is in the way of is there after one round, however the steps of the GPUs
    mix; a device that is used is the same one as before.
    """
    for seed in seeds:
        rng = random.Random(f"{board} {seed}")
        state = tmp_path / f"{seed}.json"
        monkeypatch.setenv("NODEAGENT_SIMULATED_STATE", str(state))
        with simulated(f"{board}:3", state=state) as node:
            async with open_driver(60, 60) as driver:
                for _ in range(3):
                    await _come_and_go(rng, board, driver, node.occupy)
                    node.release()


async def _come_and_go(
    rng: random.Random, board: str, driver: Driver, occupy: Callable[[str], object]
) -> None:
    there = sorted(set().union(*map(devices, (await driver.observe()).gpus)))
    used = set(rng.sample(there, min(len(there), rng.choice((0, 0, 1)))))
    for device in used:
        occupy(device)
    text = random_plan(rng, board, 3)
    for gpu in await apply(driver, text, rng.choice((1, 3))):
        blocked = used & devices(gpu.before)
        assert gpu.verdict is Verdict.IN_SYNC or (blocked and gpu.verdict is Verdict.BLOCKED), text
    assert used <= set().union(*map(devices, (await driver.observe()).gpus))
