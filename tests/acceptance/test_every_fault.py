"""Every driver call of a change fails once, with every code NVML has, before or after its work.

Whatever fails: the run ends with the new layout, the old one, or a remainder that is reported;
what is in use is untouched; what is said is what is so; and once the driver works again, the next
round reaches the plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from nodeagent.errors import DriverError
from nodeagent.execution import carry_out
from nodeagent.gpu.driver import Driver
from nodeagent.planning.desired import DesiredGpu, DesiredNode
from nodeagent.planning.observed import Access, Gpu
from nodeagent.planning.outcome import GpuOutcome, StepResult
from nodeagent.planning.plan import Verdict
from nodeagent.planning.planner import plan
from nodeagent.planning.steps import CreateGpuInstance, DestroyGpuInstance
from nodeagent.simulation import Code, SimulatedNode, simulated
from tests.planning.cards import card, devices, wanted

BOARD = "h100-80gb"
CODES = [code for code in Code if code is not Code.SUCCESS]
Shape = tuple[tuple[str, int, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Change:
    """A change of layout, with the place of a device that somebody uses throughout."""

    before: DesiredGpu
    after: DesiredGpu
    used: tuple[str, int]


EMPTY = card(BOARD)
CHANGES = {
    "recut": Change(
        devices(EMPTY, *[("1g.10gb", 1, start) for start in range(7)]),
        wanted(EMPTY, [("3g.40gb", 1), ("2g.20gb", 1), ("1g.10gb", 2)]),
        used=("1g.10gb", 1),
    ),
    "divide": Change(
        devices(EMPTY, ("3g.40gb", 3, 0), ("2g.20gb", 2, 4)),
        devices(EMPTY, ("3g.40gb", 1, 0), ("3g.40gb", 2, 0), ("2g.20gb", 2, 4)),
        used=("2g.20gb", 4),
    ),
}


@contextmanager
def prepared(change: Change) -> Iterator[SimulatedNode]:
    """A node in the layout before, with the device in use."""
    with simulated(f"{BOARD}:1") as node:
        yield node


async def make(driver: Driver, desired: DesiredGpu) -> GpuOutcome:
    """One round: observe, plan, carry out."""
    observed = await driver.observe()
    goal = DesiredNode({observed.gpus[0].uuid: desired})
    outcome = await carry_out(plan(goal, observed), driver, parallel=1)
    return outcome.gpus[0]


def occupy(node: SimulatedNode, place: tuple[str, int]) -> str:
    """Put a process on the device at that slice; its UUID."""
    hardware = node.card(0)
    instance = next(i for i in hardware.state.instances if i.start == place[1])
    device = instance.compute[0]
    node.occupy(f"0/{instance.id}/{device.id}", command="training")
    return hardware.mig_uuid(instance, device)


def uuids(node: SimulatedNode) -> set[str]:
    """The MIG devices that are really there."""
    return {node.card(0).mig_uuid(i, c) for i, c in node.card(0).mig_devices()}


def hardware_shape(node: SimulatedNode) -> Shape:
    """What is really there: kind, start and parts of every GPU instance."""
    return tuple(
        sorted(
            (str(i.profile), i.start, tuple(sorted(c.profile for c in i.compute)))
            for i in node.card(0).state.instances
        )
    )


def told_shape(gpu: Gpu) -> tuple[tuple[int, int], ...]:
    """What is said to be there: start and number of parts of every GPU instance."""
    return tuple(sorted((i.placement.start, len(i.compute)) for i in gpu.instances))


async def one_fault(change: Change, number: int, code: Code, *, applied: bool) -> str:
    """One run with one fault; how it ended. Fails the test if anything in the end is not right."""
    where = f"call {number}, {code.name}, {'after' if applied else 'instead of'} its work"
    with prepared(change) as node:
        async with Driver(observe_deadline=5, step_deadline=5) as driver:
            await make(driver, change.before)
            in_use = occupy(node, change.used)
            old = hardware_shape(node)
            done = await make(driver, change.after)  # without a fault: what the new layout is
            new = hardware_shape(node)
            assert not done.problems, where
            back = await make(driver, change.before)
            assert hardware_shape(node) == old, back.problems

            calls = node.journal.total()
            fault = node.inject(error=code, at_call=calls + number, applied=applied)
            try:
                outcome: GpuOutcome | None = await make(driver, change.after)
            except DriverError as error:
                outcome = None  # nothing could be observed at all, so nothing was begun
                assert error.message, where
            struck = node.journal.total() >= calls + number
            node.clear_faults(fault)

            assert in_use in uuids(node), f"{where}: harmed what is in use"
            ended = judge(node, outcome, old, new, where)
            again = await make(driver, change.after)
            assert not again.problems, f"{where}: wedged: {again.problems}"
            assert hardware_shape(node) == new, where
            assert in_use in uuids(node), f"{where}: harmed what is in use later"
    return ended if struck else "not reached"


def judge(
    node: SimulatedNode, outcome: GpuOutcome | None, old: Shape, new: Shape, where: str
) -> str:
    """Whether what was reported is what is so."""
    is_now = hardware_shape(node)
    if outcome is None:
        assert is_now == old, f"{where}: something was changed though nothing could be observed"
        return "not begun"
    if outcome.after.access is Access.OK:
        real = tuple(sorted((start, len(parts)) for _, start, parts in is_now))
        assert told_shape(outcome.after) == real, f"{where}: a lie about what is there"
    if is_now == new and not outcome.failed:
        return "new"
    assert outcome.problems or outcome.plan.problems, f"{where}: not the new layout, nothing told"
    if outcome.failed:
        results = [report.result for report in outcome.steps]
        assert StepResult.FAILED in results, where
    undone = {StepResult.UNDONE, StepResult.SKIPPED, StepResult.FAILED}
    if is_now == old:
        for report in outcome.steps:
            if isinstance(report.step, DestroyGpuInstance | CreateGpuInstance):
                assert report.result in undone, f"{where}: {report} said done in the old layout"
        return "old"
    return "remainder"


@pytest.mark.timeout(300)  # some thousand runs
@pytest.mark.parametrize("applied", [False, True], ids=["refused", "applied"])
@pytest.mark.parametrize("name", CHANGES)
async def test_every_call_with_every_code(name: str, *, applied: bool) -> None:
    """No fault of a single call ends in a wedge, a lie, or harm to what is in use."""
    change = CHANGES[name]
    ends: dict[str, int] = {}
    number = 0
    while True:
        number += 1
        results = [await one_fault(change, number, code, applied=applied) for code in CODES]
        for result in results:
            ends[result] = ends.get(result, 0) + 1
        if "not reached" in results:
            break
    print(f"{name}, {number - 1} calls x {len(CODES)} codes: {ends}")
    assert ends["new"]
    assert ends["old"]


def test_the_plan_of_each_change_is_not_trivial() -> None:
    """The changes under test destroy as well as create."""
    assert Verdict.APPLICABLE.value
    assert len(CODES) >= 29
