"""Every driver call of a run fails once, with every code it may give, before or after its work.

Whatever fails: the run ends with the new layout, the old one, or a remainder that is reported;
what is in use is untouched; what is said is what is so; and once the driver works again, the next
round reaches the plan.
"""

from __future__ import annotations

import copy
import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice

import pytest

from nodeagent.errors import DriverError
from nodeagent.gpu.driver import Driver
from nodeagent.plan.desired import DesiredGpu, DesiredNode, MigDisabled
from nodeagent.plan.observed import Access, Gpu
from nodeagent.plan.plan import GpuOutcome, StepResult, Verdict
from nodeagent.plan.planner import plan
from nodeagent.plan.steps import CreateGpuInstance, DestroyGpuInstance, SetMigMode
from nodeagent.reconcile.executor import execute
from nodeagent.simulation import Code, SimulatedNode, simulated
from nodeagent.simulation.functions import documented_errors
from tests.plan.cards import card, devices, wanted

BOARD = "h100-80gb"
EMPTY = card(BOARD)
# Every code there is, with every call, for a long run: NODEAGENT_TEST_ALL_CODES=1
ALL_CODES = tuple(c for c in Code if c) if os.environ.get("NODEAGENT_TEST_ALL_CODES") else ()
CHANGING = ("nvml*Create*", "nvml*Destroy", "nvml*Set*Mode")
Shape = tuple[bool, tuple[tuple[str, int, tuple[int, ...]], ...]]


@dataclass(frozen=True)
class Change:
    """A change of layout, with the first slice of a device that is in use throughout."""

    before: DesiredGpu
    after: DesiredGpu
    used: int | None = None


MIG_OFF = DesiredGpu(MigDisabled("gpus[0].mig"), "gpus[0]")
CHANGES = {
    "recut": Change(
        devices(EMPTY, *[("1g.10gb", 1, start) for start in range(7)]),
        wanted(EMPTY, [("3g.40gb", 1), ("2g.20gb", 1), ("1g.10gb", 2)]),
        used=1,
    ),
    "divide": Change(
        devices(EMPTY, ("3g.40gb", 3, 0), ("2g.20gb", 2, 4)),
        devices(EMPTY, ("3g.40gb", 1, 0), ("3g.40gb", 2, 0), ("2g.20gb", 2, 4)),
        used=4,
    ),
    "mode on": Change(MIG_OFF, wanted(EMPTY, [("3g.40gb", 1), ("1g.10gb", 2)])),
    "mode off": Change(wanted(EMPTY, [("3g.40gb", 2)]), MIG_OFF),
}


async def make(driver: Driver, desired: DesiredGpu) -> GpuOutcome:
    observed = await driver.observe()
    goal = DesiredNode({observed.gpus[0].uuid: desired})
    outcome = await execute(plan(goal, observed), driver, parallel=1)
    return outcome.gpus[0]


def occupy(node: SimulatedNode, start: int) -> str:
    """Put a process on the device at that slice; its UUID."""
    hardware = node.card(0)
    instance = next(i for i in hardware.state.instances if i.start == start)
    device = instance.compute[0]
    node.occupy(f"0/{instance.id}/{device.id}", command="training")
    return hardware.mig_uuid(instance, device)


def uuids(node: SimulatedNode) -> set[str]:
    return {node.card(0).mig_uuid(i, c) for i, c in node.card(0).mig_devices()}


def hardware_shape(node: SimulatedNode) -> Shape:
    """What is really there: the mode; kind, start and parts of every GPU instance."""
    state = node.card(0).state
    instances = (
        (str(i.profile), i.start, tuple(sorted(c.profile for c in i.compute)))
        for i in state.instances
    )
    return state.mig, tuple(sorted(instances))


def reported_shape(gpu: Gpu) -> tuple[bool, list[tuple[int, int]]]:
    """What is reported to be there: the mode; start and number of parts of every GPU instance."""
    starts = sorted((i.placement.start, len(i.compute)) for i in gpu.instances)
    return gpu.mig is not None and gpu.mig.current, starts


@dataclass
class Bench:
    """A simulated node that can be put back to the layout before, with its device in use."""

    node: SimulatedNode
    change: Change
    in_use: set[str]
    state: object
    old: Shape
    new: Shape
    calls: tuple[str, ...] = ()  # the functions that a run without a fault calls, in order

    @classmethod
    async def of(cls, node: SimulatedNode, change: Change) -> Bench:
        async with Driver(observe_deadline=30, step_deadline=30) as driver:
            await make(driver, change.before)
            in_use = set() if change.used is None else {occupy(node, change.used)}
            state, old = copy.deepcopy(node.card(0).state), hardware_shape(node)
            assert not (await make(driver, change.after)).problems
        bench = cls(node, change, in_use, state, old, hardware_shape(node))
        bench.back()
        before = node.journal.total()
        async with Driver(observe_deadline=30, step_deadline=30) as driver:
            await make(driver, change.after)
        made = node.journal.total() - before
        bench.calls = tuple(call.name for call in node.journal.calls[-made:])
        return bench

    def back(self) -> None:
        self.node.card(0).state = copy.deepcopy(self.state)  # type: ignore[assignment]  # a CardState

    async def one_fault(self, number: int, code: Code, *, applied: bool) -> str:
        """A run from NVML's start, with a fault; how it ended. Fails where the end is wrong."""
        where = f"call {number}, {code.name}, {'after' if applied else 'instead of'} its work"
        node, goal = self.node, self.change.after
        self.back()
        calls = node.journal.total()
        fault = node.inject(error=code, at_call=calls + number, applied=applied)
        try:
            async with Driver(observe_deadline=30, step_deadline=30) as driver:
                outcome = await make(driver, goal)
                struck = node.journal.total() >= calls + number
                node.clear_faults(fault)
                ended = judge(node, outcome, self.old, self.new, where)
                assert self.in_use <= uuids(node), f"{where}: harmed what is in use"
                again = await make(driver, goal)
        except DriverError:  # nothing could be observed, so nothing was begun
            node.clear_faults(fault)
            assert hardware_shape(node) == self.old, f"{where}: changed all the same"
            async with Driver(observe_deadline=30, step_deadline=30) as driver:
                again = await make(driver, goal)
            ended, struck = "not begun", True
        assert not again.problems, f"{where}: wedged: {again.problems}"
        assert hardware_shape(node) == self.new, f"{where}: the plan is not reached later"
        assert self.in_use <= uuids(node), f"{where}: harmed what is in use later"
        return ended if struck else "not reached"


def judge(node: SimulatedNode, outcome: GpuOutcome, old: Shape, new: Shape, where: str) -> str:
    """How a run ended; fails the test unless what was reported is what is so."""
    is_now = hardware_shape(node)
    if outcome.after.access is Access.OK:
        mode, instances = is_now
        real = mode, sorted((start, len(parts)) for _, start, parts in instances)
        assert reported_shape(outcome.after) == real, f"{where}: a lie about what is there"
    if is_now == new and not outcome.failed:
        return "new"
    assert outcome.problems or outcome.plan.problems, (
        f"{where}: not the new layout, nothing reported"
    )
    if outcome.failed:
        results = [report.result for report in outcome.steps]
        assert StepResult.FAILED in results, where
    if outcome.plan.verdict is not Verdict.APPLICABLE:
        assert is_now == old, f"{where}: acted without a plan"
    undone = {StepResult.UNDONE, StepResult.SKIPPED, StepResult.FAILED}
    if is_now == old:
        for report in outcome.steps:
            if isinstance(report.step, DestroyGpuInstance | CreateGpuInstance | SetMigMode):
                assert report.result in undone, f"{where}: {report} said done in the old layout"
        return "old"
    return "remainder"


def faults(calls: tuple[str, ...]) -> Iterator[tuple[int, Code, bool]]:
    """Number of a call, code, and whether the call fails after its work or instead of it."""
    for number, function in enumerate(calls, start=1):
        changing = any(fnmatchcase(function, pattern) for pattern in CHANGING)
        for code in ALL_CODES or documented_errors(function):
            for applied in (False, True) if changing else (False,):
                yield number, code, applied


@pytest.mark.timeout(1800)  # some thousand whole runs
@pytest.mark.parametrize("every", [19, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", CHANGES)
async def test_every_call_with_every_code(name: str, every: int) -> None:
    """No fault of a single call ends in a wedge, a lie, or harm to what is in use.

    Calls that change something also fail after they did it. Of all these, `every`th is tried.
    """
    ends: Counter[str] = Counter()
    with simulated(f"{BOARD}:1") as node:
        runs = await Bench.of(node, CHANGES[name])
        for number, code, applied in islice(faults(runs.calls), 0, None, every):
            ends[await runs.one_fault(number, code, applied=applied)] += 1
    sys.stdout.write(f"{name}: {len(runs.calls)} calls, {ends.total()} faults: {dict(ends)}\n")
    assert {"new", "old", "not begun"} <= set(ends)
