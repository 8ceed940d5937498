"""A fault at the NVML calls of a run that changes the MIG mode, one at a time.

Whatever the driver answers: the run ends with the new layout, or the old one, or says what is
missing. Nothing is said that is not so, and once the fault is over the plan is reached.

Each code is tried once, the codes spread over a function's calls, and an eighth of that in the
normal run; with NODEAGENT_TEST_ALL_FAULTS set, every call is hit with every code.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import pytest

from nodeagent.documents.reading import read_document
from nodeagent.errors import DriverError
from nodeagent.gpu.driver import Driver
from nodeagent.plan.desired import DesiredNode
from nodeagent.plan.observed import Access, Gpu, ObservedNode
from nodeagent.plan.plan import GpuOutcome, GpuPlan, StepResult, Verdict
from nodeagent.plan.planner import plan
from nodeagent.plan.resolve import resolve
from nodeagent.reconcile.executor import execute
from nodeagent.simulation import Code, simulated
from nodeagent.simulation.functions import documented_errors
from tests.draws import long_run
from tests.rig import open_driver, plan_text

ALL = bool(os.environ.get("NODEAGENT_TEST_ALL_FAULTS"))


@dataclass(frozen=True)
class Scenario:
    """From one layout to another."""

    board: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.before} to {self.after}"


SCENARIOS = [
    Scenario("h100-80gb:1", "disabled", "{3g.40gb: 1, 1g.10gb: 2}"),
    pytest.param(Scenario("h100-80gb:1", "{3g.40gb: 2}", "disabled"), marks=pytest.mark.full),
]


@dataclass(frozen=True)
class Place:
    """A call of a run: its number since the run began, and its function."""

    number: int
    function: str


async def desired(driver: Driver, mig: str) -> tuple[DesiredNode, ObservedNode]:
    """What the plan asks of the node as it is."""
    observed = await driver.observe()
    wanted = resolve(read_document(plan_text(mig)), observed)
    assert isinstance(wanted, DesiredNode)
    return wanted, observed


async def apply(driver: Driver, wanted: DesiredNode) -> tuple[GpuPlan, GpuOutcome]:
    """One round as the agent does it."""
    made = plan(wanted, await driver.observe())
    outcome = await execute(made, driver, parallel=1)
    return made.gpus[0], outcome.gpus[0]


async def prepare(scenario: Scenario) -> tuple[DesiredNode, Gpu]:
    """Bring about the layout before; what is asked for, and the GPU as it is."""
    async with open_driver() as driver:
        before, _ = await desired(driver, scenario.before)
        await apply(driver, before)
        wanted, observed = await desired(driver, scenario.after)
    return wanted, observed.gpus[0]


async def calls_of(scenario: Scenario) -> list[Place]:
    """The calls of a run in which nothing goes wrong."""
    with simulated(scenario.board) as node:
        wanted, _ = await prepare(scenario)
        async with open_driver() as driver:
            begun = node.journal.begun
            _, outcome = await apply(driver, wanted)
            assert not outcome.problems
        calls = [c for c in node.journal.calls if c.number > begun]
    return [Place(call.number - begun, call.name) for call in calls]


def faults(places: list[Place]) -> Iterator[tuple[Place, Code, bool]]:
    """Which call is hit with which code; True: after its work was done, instead of before."""
    by_function: dict[str, list[Place]] = {}
    for place in places:
        by_function.setdefault(place.function, []).append(place)
    for function, calls in by_function.items():
        changes = any(word in function for word in ("Create", "Destroy", "Set"))
        hits = list(product(documented_errors(function), (False, True) if changes else (False,)))
        if ALL:
            yield from ((call, code, applied) for call in calls for code, applied in hits)
            continue
        for number, (code, applied) in enumerate(hits):
            if long_run() or number % 8 == len(function) % 8:
                yield calls[number * (len(calls) - 1) // max(1, len(hits) - 1)], code, applied


def shape(gpu: Gpu) -> tuple[object, ...]:
    """What counts of a layout."""
    return (
        gpu.mig,
        sorted(
            (i.profile, i.placement, sorted(c.profile for c in i.compute)) for i in gpu.instances
        ),
    )


async def truth(wanted: DesiredNode) -> tuple[Gpu, bool]:
    """The GPU as it is, read anew without faults; whether it is as wanted."""
    async with open_driver() as driver:
        observed = await driver.observe()
    return observed.gpus[0], plan(wanted, observed).verdict is Verdict.IN_SYNC


async def strike(scenario: Scenario, place: Place, code: Code, *, applied: bool) -> str:
    """One run with one fault; raises AssertionError on a lie or a wedge."""
    with simulated(scenario.board) as node:
        wanted, before = await prepare(scenario)
        async with open_driver() as driver:
            number = node.journal.begun + place.number
            fault = node.inject(place.function, error=code, at_call=number, applied=applied)
            try:
                made, outcome = await apply(driver, wanted)
            except DriverError:
                made, outcome = None, None
            node.clear_faults(fault)
        now, reached = await truth(wanted)
        if made is None or outcome is None or made.verdict is not Verdict.APPLICABLE:
            assert shape(now) == shape(before), "acted without a plan"
            end = "refused"
        else:
            end = judge(outcome, now, before, reached=reached)
        async with open_driver() as driver:
            for _ in range(2):
                await apply(driver, wanted)
            observed = await driver.observe()
        assert plan(wanted, observed).verdict is Verdict.IN_SYNC, (
            "does not reach the plan when the fault is over"
        )
    return end


def judge(outcome: GpuOutcome, now: Gpu, before: Gpu, *, reached: bool) -> str:
    """What the run ended with; raises AssertionError when it says what is not so."""
    results = [report.result for report in outcome.steps]
    if outcome.after.access is Access.OK:
        assert shape(outcome.after) == shape(now), "says it is otherwise than it is"
    if not outcome.problems:
        assert reached, "says that all is well, and it is not"
        assert set(results) <= {StepResult.DONE, StepResult.SKIPPED}
        return "new layout"
    assert all(problem.message for problem in outcome.problems)
    if reached:
        return "new layout, with a problem"
    if shape(now) == shape(before):
        return "old layout"
    return "a remainder, reported"


@pytest.mark.timeout(3600 if ALL else 600)  # some hundred runs a scenario, or some thousand
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
async def test_every_fault(
    scenario: Scenario, record_property: Callable[[str, object], None]
) -> None:
    """No fault at any call makes the run wedge or lie."""
    ends: Counter[str] = Counter()
    wrong: list[str] = []
    for place, code, applied in faults(await calls_of(scenario)):
        try:
            ends[await strike(scenario, place, code, applied=applied)] += 1
        except Exception as error:  # noqa: BLE001 - all of them are wanted, not the first
            how = "after" if applied else "instead of"
            what = f"{code.name} {how} call {place.number}, {place.function}"
            wrong.append(f"{what}: {type(error).__name__}: {str(error).splitlines()[0]}")
    assert not wrong, "\n".join(wrong)
    for end, count in ends.items():
        record_property(end, count)
    assert ends["old layout"] > 0
    assert ends["new layout"] > 0
