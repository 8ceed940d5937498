"""Carrying out plans with MPS: what fails alone, what turns back, and who gets which daemon.

The node is one of paper: it does what a step says, unless it is set to fail at it. The real one
is made of the driver and the fleet of daemons, each with tests of its own.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import product
from types import UnionType

import pytest

from nodeagent.errors import GpuInUse, GpuLost, NodeagentError
from nodeagent.plan.desired import DesiredGpu, DesiredNode, Layout, WantedInstance
from nodeagent.plan.observed import Access, DeviceDaemon, Gpu, ObservedNode, Placement
from nodeagent.plan.plan import GpuOutcome, StepReport
from nodeagent.plan.planner import plan, plan_gpu
from nodeagent.plan.problems import Code
from nodeagent.plan.shares import ComputeMode, TimeSlice, WantedMps
from nodeagent.plan.steps import (
    CreateGpuInstance,
    DestroyGpuInstance,
    Destruction,
    SetComputeMode,
    SetTimeSlice,
    StartMps,
    Step,
    StopMps,
    after,
)
from nodeagent.reconcile.executor import execute
from nodeagent.reconcile.step_problems import undone_if_gone
from nodeagent.reconcile.step_run import only_adds, only_removes
from nodeagent.structs import replace
from nodeagent.views.text import layout_words
from tests.plan.cards import Place, card, divided, with_instances
from tests.plan.daemons import CLIENT, A, B, D, daemon, daemons_of, give, shared, without_mig
from tests.reconcile.test_executor import DONE, FAILED, SKIPPED, UNDONE, codes, results

Fails = Callable[[Step], Exception | None]
H100 = card("h100-80gb")


def failing(kinds: type[Step] | UnionType, why: str | Exception, **has: object) -> Fails:
    error = NodeagentError(why) if isinstance(why, str) else why

    def fails(step: Step) -> Exception | None:
        is_one = isinstance(step, kinds)
        return error if is_one and all(getattr(step, n) == v for n, v in has.items()) else None

    return fails


UNNAMED = failing(StartMps | SetComputeMode, "it names no device", device="")
NO_CREATION = failing(CreateGpuInstance, "the driver does not know why", profile="1g.10gb")


@dataclass(slots=True)
class PaperNode:
    """One GPU. `fails` says for each step why it fails, or nothing."""

    gpu: Gpu
    fails: Fails = lambda _: None
    taken: list[Step] = field(default_factory=list)
    made: int = 0

    async def observe_gpu(self, uuid: str, *, details: bool = True) -> Gpu:
        assert uuid == self.gpu.uuid
        return self.gpu

    async def observe_changes(
        self,
        uuid: str,
        made: Collection[Placement] = (),
        gone: Collection[int] = (),
        *,
        users: bool = False,
    ) -> Gpu:
        read = CreateGpuInstance | DestroyGpuInstance | StartMps
        assert all(isinstance(step, read) for step in self.taken), "nothing else is read"
        return await self.observe_gpu(uuid)

    async def insist_on_idle(self, steps: Sequence[Destruction]) -> None:
        assert steps

    async def apply(self, step: Step) -> None:
        error = self.fails(step)
        if error:
            raise error
        self.taken.append(step)
        self.gpu = self._with_uuids(after(self.gpu, [step]))

    def _with_uuids(self, gpu: Gpu) -> Gpu:
        """Every device that was made gets an UUID that was never there before."""
        instances = []
        for instance in gpu.instances:
            compute = []
            for device in instance.compute:
                self.made += not device.uuid
                compute.append(replace(device, uuid=device.uuid or f"MIG-new-{self.made}"))
            instances.append(replace(instance, compute=tuple(compute)))
        return replace(gpu, instances=tuple(instances))

    async def execute(self, desired: DesiredGpu) -> GpuOutcome:
        made = plan(DesiredNode({self.gpu.uuid: desired}), ObservedNode((self.gpu,)))
        assert made.steps
        return (await execute(made, self, parallel=1)).gpus[0]


async def test_mig_and_mps_in_one_go() -> None:
    gpu = give(with_instances(H100, [("3g.40gb", 0), ("3g.40gb", 4)]), daemon(A), daemon(A))
    node = PaperNode(gpu)
    outcome = await node.execute(shared(H100, ("3g.40gb", 4, A), ("1g.10gb", 0, B)))
    assert set(results(outcome)) == {DONE}
    assert outcome.problems == ()
    assert not outcome.turned_back
    assert daemons_of(outcome.after) == [B, A]
    started = [s for s in node.taken if isinstance(s, StartMps | SetComputeMode)]
    assert {s.device for s in started} == {"MIG-new-1"}
    assert [r.step for r in outcome.steps] == node.taken


async def test_a_daemon_that_does_not_start_leaves_the_layout() -> None:
    error = NodeagentError("the daemon ended: no such device", remedy="look at its log")
    node = PaperNode(H100, failing(StartMps, error, wanted=A))
    outcome = await node.execute(shared(H100, ("3g.40gb", 0, A), ("3g.40gb", 4, B)))
    assert results(outcome) == [DONE, DONE, DONE, FAILED, DONE, DONE]
    assert codes(outcome) == [Code.MPS]
    assert "start MPS on 3g.40gb at 0" in outcome.problems[0].message
    assert "no such device" in outcome.problems[0].message
    assert outcome.problems[0].remedy == "look at its log"
    assert outcome.failed
    assert not outcome.turned_back
    assert daemons_of(outcome.after) == [None, B]


async def test_without_its_mode_a_daemon_is_not_started() -> None:
    node = PaperNode(H100, failing(SetComputeMode, "not permitted", device="MIG-new-1"))
    outcome = await node.execute(shared(H100, ("1g.10gb", 0, A), ("1g.10gb", 1, B)))
    assert results(outcome) == [DONE, DONE, FAILED, SKIPPED, DONE, DONE]
    assert codes(outcome) == [Code.STEP_FAILED]
    assert "compute mode" in outcome.steps[3].message
    assert daemons_of(outcome.after) == [None, B]


async def test_a_client_that_came_after_planning_keeps_its_device() -> None:
    in_use = GpuInUse("the daemon has clients")
    places = [("3g.40gb", 0), ("2g.20gb", 4), ("1g.10gb", 6)]
    gpu = give(with_instances(H100, places), daemon(A), daemon(B))
    node = PaperNode(gpu, failing(StopMps, in_use, device="MIG-1"))
    made = plan(DesiredNode({gpu.uuid: shared(H100, ("7g.80gb", 0, A))}), ObservedNode((gpu,)))
    node.gpu = give(with_instances(H100, places, used=[2]), daemon(A), daemon(B, CLIENT))
    outcome = (await execute(made, node, parallel=1)).gpus[0]
    assert results(outcome)[:3] == [UNDONE, FAILED, SKIPPED]
    assert codes(outcome) == [Code.IN_USE]
    assert "in use by pid 815 (train)" in outcome.problems[0].message
    assert "4711" not in outcome.problems[0].message, "who uses another device is not in the way"
    assert outcome.turned_back
    assert {type(report.step) for report in outcome.restored} == {StartMps}
    assert daemons_of(outcome.after) == [A, B, None]
    assert {"MIG-0", "MIG-1", "MIG-2"} == {c.uuid for _, c in outcome.after.mig_devices()}


@pytest.mark.parametrize("daemons", list(product((None, daemon(A)), repeat=2)))
def test_a_daemon_on_any_part_made_in_the_devices_place_counts(
    daemons: tuple[DeviceDaemon | None, ...],
) -> None:
    """The device itself is gone; of those in its place, one has what was meant for it, or none."""
    before = divided(H100, "3g.40gb", 0, 1, 1)
    place, profile = before.instances[0].placement, before.instances[0].compute[0].profile
    start = StartMps(H100.uuid, "MIG-gone", A, "a test's", profile, place)
    stop = StopMps(H100.uuid, "MIG-gone", "a test's", profile, place)
    mode = SetComputeMode(
        H100.uuid, "MIG-gone", ComputeMode.EXCLUSIVE_PROCESS, "a test's", profile, place
    )
    there = any(daemons)  # and with it its mode
    for step, stays in ((start, there), (stop, not there), (mode, there)):
        now = undone_if_gone(StepReport(step, DONE), before, give(before, *daemons))
        assert now.result is (DONE if stays else UNDONE)


@pytest.mark.parametrize(
    ("places", "parts", "adds", "removes"),
    [
        ([], [("3g.40gb", 4, None)], True, False),
        ([("1g.10gb", 0)], [("1g.10gb", 0, None), ("3g.40gb", 4, None)], True, False),
        ([("1g.10gb", 0)], [], False, True),
        ([("1g.10gb", 0)], [("3g.40gb", 0, None)], False, False),
        ([], [("3g.40gb", 4, A)], False, False),
        ([("1g.10gb", 0)], [("1g.10gb", 0, None)], False, False),
    ],
)
def test_steps_that_only_add_or_remove_instances(
    places: list[Place],
    parts: list[tuple[str, int | None, WantedMps | None]],
    adds: bool,
    removes: bool,
) -> None:
    """No others are taken on a GPU that was read in part."""
    gpu = with_instances(H100, places)
    steps = plan_gpu(shared(H100, *parts), gpu).steps
    assert (only_adds(steps), only_removes(steps)) == (adds, removes)


async def test_the_way_back_has_the_daemons_too() -> None:
    gpu = give(with_instances(H100, [("3g.40gb", 0), ("3g.40gb", 4)]), daemon(A), None)
    node = PaperNode(gpu, NO_CREATION)
    outcome = await node.execute(shared(H100, *[("1g.10gb", None, D)] * 7))
    assert codes(outcome) == [Code.STEP_FAILED]
    assert layout_words(outcome.after) == "3g.40gb with MPS at 0; 3g.40gb at 4"
    assert layout_words(outcome.after) == layout_words(gpu)
    stopped = outcome.steps[0]
    assert isinstance(stopped.step, StopMps)
    assert stopped.result is UNDONE


async def test_a_daemon_that_does_not_come_back_is_reported() -> None:
    no_start = failing(StartMps, "it ends at once")
    gpu = give(with_instances(H100, [("3g.40gb", 0), ("3g.40gb", 4)]), daemon(A), None)
    node = PaperNode(gpu, lambda step: NO_CREATION(step) or no_start(step))
    outcome = await node.execute(shared(H100, *[("1g.10gb", None, D)] * 7))
    assert codes(outcome) == [Code.STEP_FAILED, Code.MPS, Code.NOT_RESTORED]
    assert "it now has 3g.40gb at 0, 4" in outcome.problems[2].message


async def test_a_new_part_is_not_taken_for_one_in_use() -> None:
    gpu = give(divided(H100, "3g.40gb", 0, 1, used=[0]))
    parts = (
        WantedInstance("3g.40gb", 1, 0, "gpus[0].mig[0]", A),
        WantedInstance("3g.40gb", 1, 0, "gpus[0].mig[1]", None),
    )
    outcome = await PaperNode(gpu).execute(DesiredGpu(Layout(parts, "gpus[0].mig"), "gpus[0]"))
    assert set(results(outcome)) == {DONE}
    (instance,) = outcome.after.instances
    runs = {c.uuid: c.mps.runs if c.mps else None for c in instance.compute}
    assert runs == {"MIG-0-0": None, "MIG-new-1": A}


async def test_a_part_made_in_anothers_place_may_have_its_uuid() -> None:
    """It is new all the same, and gets what was meant for it; the part that stays keeps its own."""

    class SameUuid(PaperNode):
        def _with_uuids(self, gpu: Gpu) -> Gpu:
            (instance,) = gpu.instances
            parts = (replace(c, uuid=f"MIG-0-{n}") for n, c in enumerate(instance.compute))
            return replace(gpu, instances=(replace(instance, compute=tuple(parts)),))

    parts = tuple(
        WantedInstance("3g.40gb", 1, 0, f"gpus[0].mig[{n}]", mps)
        for n, mps in enumerate((None, A, B))
    )
    node = SameUuid(give(divided(H100, "3g.40gb", 0, 1, 2)), UNNAMED)
    outcome = await node.execute(DesiredGpu(Layout(parts, "gpus[0].mig"), "gpus[0]"))
    assert outcome.problems == ()
    assert daemons_of(outcome.after) == [None, A, B]


async def test_a_device_that_could_not_be_looked_at_is_not_guessed() -> None:
    """The GPU does not answer right after its device was made: the first step for that fails by
    itself, and the next one has the device's name.
    """

    @dataclass(slots=True)
    class SilentOnce(PaperNode):
        silences: int = 3  # as often as it is read again

        async def observe_gpu(self, uuid: str, *, details: bool = True) -> Gpu:
            silent = self.made > 0 and self.silences > 0
            self.silences -= silent
            return replace(self.gpu, access=Access.UNKNOWN) if silent else self.gpu

    node = SilentOnce(H100, UNNAMED)
    outcome = await node.execute(shared(H100, ("3g.40gb", 0, A)))
    assert results(outcome) == [DONE, FAILED, DONE]
    assert isinstance(outcome.steps[2].step, StartMps)
    assert outcome.steps[2].step.device == "MIG-new-1"


async def test_a_slow_daemon_keeps_no_other_waiting() -> None:
    last_is_there = asyncio.Event()

    class Slow(PaperNode):
        async def apply(self, step: Step) -> None:
            if isinstance(step, StartMps) and step.device == "MIG-new-1":
                await last_is_there.wait()
            await super().apply(step)
            if isinstance(step, StartMps) and step.device == "MIG-new-3":
                last_is_there.set()

    node = Slow(H100)
    outcome = await node.execute(shared(H100, *[("1g.10gb", start, A) for start in range(3)]))
    assert set(results(outcome)) == {DONE}
    assert daemons_of(outcome.after) == [A, A, A]
    assert node.taken[-1] == outcome.steps[4].step
    assert [type(report.step) for report in outcome.steps[3:]] == [SetComputeMode, StartMps] * 3
    named = [r.step.device for r in outcome.steps if isinstance(r.step, StartMps)]
    assert named == ["MIG-new-1", "MIG-new-2", "MIG-new-3"]


async def test_cancelled_while_daemons_start() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    reports: list[StepReport] = []

    class Slow(PaperNode):
        async def apply(self, step: Step) -> None:
            if isinstance(step, StartMps):
                begun.set()
                await go_on.wait()
            await super().apply(step)

    node = Slow(H100)
    goal = DesiredNode({H100.uuid: shared(H100, ("3g.40gb", 0, A), ("3g.40gb", 4, B))})
    made = plan(goal, ObservedNode((H100,)))
    running = asyncio.create_task(execute(made, node, parallel=1, on_progress=reports.append))
    await begun.wait()
    running.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    started = [step for step in node.taken if isinstance(step, StartMps)]
    assert started
    assert {report.result for report in reports} == {DONE}
    assert {report.step for report in reports} == set(node.taken)


async def test_a_lost_gpu_ends_its_steps() -> None:
    lost = GpuLost("off the bus", code=15)
    node = PaperNode(H100, failing(SetComputeMode, lost))
    outcome = await node.execute(shared(H100, ("3g.40gb", 0, A), ("3g.40gb", 4, B)))
    assert FAILED in results(outcome)
    assert Code.GPU_LOST in codes(outcome)
    assert outcome.turned_back


async def test_time_slice() -> None:
    """It is set, and a failure leaves the rest of the GPU as planned."""
    t4 = without_mig(card("t4"), time_slice=TimeSlice.DEFAULT, compute_mode=ComputeMode.PROHIBITED)
    desired = DesiredGpu(None, "gpus[0]", time_slice=TimeSlice.LONG)
    outcome = await PaperNode(t4).execute(desired)
    assert outcome.problems == ()
    assert (outcome.after.time_slice, outcome.after.compute_mode) == (
        TimeSlice.LONG,
        ComputeMode.DEFAULT,
    )
    refusing = failing(SetTimeSlice, "nvidia-smi said no")
    outcome = await PaperNode(t4, refusing).execute(desired)
    assert results(outcome) == [FAILED, DONE]
    assert codes(outcome) == [Code.STEP_FAILED]
    assert "set the time slice to long" in outcome.problems[0].message


@pytest.mark.parametrize("mode", [ComputeMode.DEFAULT, None])
async def test_what_is_read_back_counts(mode: ComputeMode | None) -> None:
    class Forgetful(PaperNode):
        async def apply(self, step: Step) -> None:
            await super().apply(step)
            if isinstance(step, StartMps):
                self.gpu = replace(self.gpu, compute_mode=mode)

    node = Forgetful(without_mig(card("t4")))
    outcome = await node.execute(DesiredGpu(None, "gpus[0]", mps=A))
    if mode is None:  # not known is not wrong
        assert outcome.problems == ()
    else:
        assert codes(outcome) == [Code.STEP_FAILED]
        assert "set compute mode exclusiveProcess" in outcome.problems[0].message
