"""Carrying out a plan on simulated GPUs: what is done, what is undone, and what is said."""

import asyncio

import pytest

from nodeagent.documents.reading import read_document
from nodeagent.gpu.driver import Driver
from nodeagent.plan.desired import DesiredNode
from nodeagent.plan.observed import Access, MigMode
from nodeagent.plan.plan import GpuOutcome, NodeOutcome, NodePlan, Policy, StepReport, StepResult
from nodeagent.plan.planner import plan
from nodeagent.plan.problems import Code
from nodeagent.plan.resolve import resolve
from nodeagent.plan.steps import SetMigMode, Step
from nodeagent.reconcile.executor import execute
from nodeagent.simulation import Switches, simulated
from nodeagent.views.text import layout_words, step_words
from tests.machine_load import stretched, until
from tests.rig import CREATE, driving, open_driver, plan_text

DONE, FAILED, UNDONE, SKIPPED = StepResult
WAITING = MigMode(current=False, pending=True)


async def planned(driver: Driver, mig: str, policy: Policy | None = None) -> NodePlan:
    observed = await driver.observe()
    desired = resolve(read_document(plan_text(mig)), observed)
    assert isinstance(desired, DesiredNode), desired
    return plan(desired, observed, policy or Policy())


async def apply(driver: Driver, mig: str, *, parallel: int = 8) -> NodeOutcome:
    return await execute(await planned(driver, mig), driver, parallel=parallel)


def results(outcome: GpuOutcome) -> list[StepResult]:
    return [report.result for report in outcome.steps]


def codes(outcome: GpuOutcome) -> list[str]:
    return [problem.code for problem in outcome.problems]


async def test_every_step_is_done_timed_and_read_back() -> None:
    with simulated("h100-80gb:1") as node:
        node.inject(CREATE, delay=0.02, times=None)
        async with open_driver() as driver:
            reported: list[StepReport] = []
            begun: list[tuple[Step, int]] = []  # with how many had ended then
            made = await planned(driver, "{3g.40gb: 2}")
            done = await execute(
                made,
                driver,
                parallel=1,
                on_begin=lambda step: begun.append((step, len(reported))),
                on_progress=reported.append,
            )
            outcome = done.gpus[0]
            assert results(outcome) == [DONE] * 3
            assert begun == [(step, n) for n, step in enumerate(made.gpus[0].steps)]
            assert tuple(reported) == outcome.steps
            assert all(report.seconds >= 0.02 for report in outcome.steps[1:])
            assert layout_words(outcome.after) == "3g.40gb at 0, 4"
            assert all(i.compute[0].uuid for i in outcome.after.instances)
            assert outcome.problems == ()


async def test_gpus_are_worked_on_side_by_side_up_to_a_limit() -> None:
    for parallel, at_once in ((None, 9), (4, 4), (1, 1)):
        with simulated("h100-80gb:9") as node:
            held = [node.inject(CREATE, gpu=index, hang=True) for index in range(9)]
            async with open_driver() as driver:
                made = await planned(driver, "{3g.40gb: 2}")
                working = asyncio.create_task(execute(made, driver, parallel=parallel))
                async with asyncio.timeout(stretched(30)):
                    while sum(not fault.times for fault in held) < at_once:
                        await asyncio.sleep(0.001)
                await asyncio.sleep(0.02)  # too many would come now
                assert sum(not fault.times for fault in held) == at_once
                node.clear_faults()
                outcome = await working
            assert [layout_words(gpu.after) for gpu in outcome.gpus] == ["3g.40gb at 0, 4"] * 9


@pytest.mark.parametrize("fails_at", range(7))
async def test_a_failure_at_any_step_brings_the_earlier_layout_back(fails_at: int) -> None:
    async with driving("h100-80gb:1") as (driver, node):
        await apply(driver, "{3g.40gb: 2}")
        node.inject(CREATE, error="UNKNOWN", times=1, skip=fails_at)
        outcome = (await apply(driver, "{1g.10gb: 7}")).gpus[0]
        assert layout_words(outcome.after) == "3g.40gb at 0, 4"
        assert results(outcome) == [*[UNDONE] * (2 + fails_at), FAILED, *[SKIPPED] * (6 - fails_at)]
        assert codes(outcome) == [Code.STEP_FAILED]
        assert "create 1g.10gb" in outcome.problems[0].message
        assert outcome.restored
        assert {r.result for r in outcome.restored} == {DONE}


async def test_what_cannot_be_restored_is_said_as_it_is() -> None:
    async with driving("h100-80gb:1") as (driver, node):
        await apply(driver, "{3g.40gb: 2}")
        node.inject(CREATE, error="UNKNOWN", times=None)
        outcome = (await apply(driver, "{1g.10gb: 7}")).gpus[0]
        assert codes(outcome) == [Code.STEP_FAILED, Code.NOT_RESTORED]
        assert "no instances; GPU 0: could not create 3g" in outcome.problems[1].message
        assert layout_words(outcome.after) == "no instances"
        assert results(outcome)[:3] == [DONE, DONE, FAILED]


async def test_who_comes_while_the_mode_changes_has_the_steps_end_in_a_failure() -> None:
    async with driving("h100-80gb:1") as (driver, node):
        made = await planned(driver, "{3g.40gb: 2}")

        def come(report: StepReport) -> None:
            if isinstance(report.step, SetMigMode):
                node.occupy(0)

        outcome = (await execute(made, driver, parallel=1, on_progress=come)).gpus[0]
        assert results(outcome) == [DONE, FAILED, SKIPPED]
        assert outcome.turned_back


async def test_a_mode_that_is_not_restored_is_reported() -> None:
    async with driving("h100-80gb:1") as (driver, node):
        made = await planned(driver, "{1g.10gb: 7}")
        node.inject(CREATE, error="UNKNOWN")
        node.inject("nvmlDeviceSetMigMode", error="UNKNOWN", skip=1, times=None)
        outcome = (await execute(made, driver, parallel=1)).gpus[0]
        assert codes(outcome) == [Code.STEP_FAILED, Code.NOT_RESTORED]


async def test_a_creation_that_fails_half_way_is_cleared_away() -> None:
    """A GPU instance left without its device is no earlier layout: the way back removes it."""
    async with driving("h100-80gb:1") as (driver, node):
        await apply(driver, "{3g.40gb: 1}")
        node.inject("nvmlGpuInstanceCreateComputeInstance*", error="UNKNOWN")
        node.inject("nvmlGpuInstanceDestroy", error="UNKNOWN", times=1)
        outcome = (await apply(driver, "{3g.40gb: 1, 1g.10gb: 1}")).gpus[0]
        assert layout_words(outcome.after) == layout_words(outcome.plan.before)
        assert [step_words(r.step) for r in outcome.restored] == ["destroy 1g.10gb at 0"]
        assert codes(outcome) == [Code.STEP_FAILED]


async def test_a_user_who_came_after_planning_is_named_and_left_alone() -> None:
    async with driving("h100-80gb:1") as (driver, node):
        await apply(driver, "{3g.40gb: 2}")
        made = await planned(driver, "{1g.10gb: 7}")
        used = made.gpus[0].before.instances[1].compute[0].uuid
        process = node.occupy(used, command="train")
        outcome = (await execute(made, driver, parallel=1)).gpus[0]
        assert codes(outcome) == [Code.IN_USE]
        assert f"pid {process.pid}" in outcome.problems[0].message
        assert layout_words(outcome.after) == "3g.40gb at 0, 4"
        assert used in [i.compute[0].uuid for i in outcome.after.instances]
        assert node.journal.total("nvml*Create*") == 4  # for the layout before
        assert set(results(outcome)) == {FAILED, SKIPPED}


async def test_a_user_of_the_fifth_costs_the_others_nothing() -> None:
    """Users of all instances are looked up before the first is destroyed."""
    async with driving("h100-80gb:1") as (driver, node):
        await apply(driver, "{1g.10gb: 7}")
        made = await planned(driver, "{7g.80gb: 1}")
        node.occupy(made.gpus[0].before.instances[5].compute[0].uuid, command="train")
        outcome = (await execute(made, driver, parallel=1)).gpus[0]
        assert node.journal.total("nvml*Destroy") == 0
        assert codes(outcome) == [Code.IN_USE]
        assert "(train)" in outcome.problems[0].message


@pytest.mark.parametrize("board", ["a30", "a100-40gb", "h100-80gb"])
async def test_a_mode_that_waits_for_an_idle_gpu_is_set_once_it_is(board: str) -> None:
    """A process came since the plan: the driver leaves the mode pending, and nothing is lost."""
    profile = "1g.10gb" if board == "h100-80gb" else "1g.6gb" if board == "a30" else "1g.5gb"
    async with driving(f"{board}:1", switches=Switches(ampere_mode="whenIdle")) as (driver, node):
        made = await planned(driver, f"{{{profile}: 1}}")
        process = node.occupy(0)
        outcome = (await execute(made, driver, parallel=1)).gpus[0]
        assert codes(outcome) == [Code.IN_USE]
        assert outcome.after.instances == ()
        assert [user.pid for user in outcome.after.usage.processes] == [process.pid]
        node.release()
        if outcome.after.mig == WAITING:
            node.reset(0)  # as the remedy says
        again = (await apply(driver, f"{{{profile}: 1}}")).gpus[0]
        assert again.problems == ()
        assert [i.profile for i in again.after.instances] == [profile]


@pytest.mark.parametrize("error", ["UNKNOWN", "TIMEOUT", "IN_USE"])
async def test_an_error_in_passing_while_reading_back_is_read_again(error: str) -> None:
    async with driving("h100-80gb:1") as (driver, node):
        made = await planned(driver, "{3g.40gb: 2}")

        def after_the_last(report: StepReport) -> None:
            if report.step is made.gpus[0].steps[-1]:
                node.inject("nvmlGpuInstanceGetInfo", error=error, times=2)

        outcome = await execute(made, driver, parallel=1, on_progress=after_the_last)
        assert outcome.gpus[0].problems == ()
        assert layout_words(outcome.gpus[0].after) == "3g.40gb at 0, 4"


async def test_one_gpus_failure_hang_and_loss_leave_the_others_alone() -> None:
    with simulated("h100-80gb:4") as node:
        async with open_driver(step_deadline=0.5, observe_deadline=0.5) as driver:
            made = await planned(driver, "{3g.40gb: 2}")
            node.inject(CREATE, error="UNKNOWN", gpu=0, times=None)
            hang = node.inject(CREATE, hang=True, gpu=1)
            node.lose(2)
            try:
                outcome = await execute(made, driver, parallel=4)
            finally:
                node.clear_faults(hang)
            failed, hung, lost, well = outcome.gpus
            assert Code.STEP_FAILED in codes(failed)
            assert hung.after.access is Access.UNKNOWN
            assert Code.NOT_RESTORED in codes(hung)
            assert lost.after.access is Access.LOST
            assert Code.GPU_LOST in codes(lost)
            assert layout_words(well.after) == "3g.40gb at 0, 4"
            assert well.problems == ()


async def test_a_step_that_needs_a_reset_names_the_gpu() -> None:
    """The driver says so by a code alone; the command that is given has the GPU's address."""
    async with driving("h100-80gb:2") as (driver, node):
        made = await planned(driver, "{3g.40gb: 2}")
        node.inject(CREATE, error="RESET_REQUIRED", gpu=1, times=1)
        outcome = (await execute(made, driver, parallel=1)).gpus[1]
        assert codes(outcome) == [Code.GPU_LOST]
        command = f"`nvidia-smi --gpu-reset -i {outcome.after.pci_bus_id}`"
        assert command in outcome.problems[0].remedy


async def test_what_others_change_meanwhile_is_not_called_applied() -> None:
    async with driving("h100-80gb:1") as (driver, node):
        made = await planned(driver, "{3g.40gb: 2}")

        def reset_after_the_last(report: StepReport) -> None:
            if report.step == made.steps[-1]:
                node.reset(0)

        outcome = (await execute(made, driver, parallel=1, on_progress=reset_after_the_last)).gpus[
            0
        ]
        assert results(outcome) == [DONE] * 3
        assert codes(outcome) == [Code.STEP_FAILED]
        assert "instead of 3g.40gb at 0, 4" in outcome.problems[0].message


async def test_stop_leaves_the_rest_without_going_back() -> None:
    with simulated("h100-80gb:1") as node:
        node.inject(CREATE, delay=0.05, times=None)
        async with open_driver() as driver:
            made = await planned(driver, "{1g.10gb: 7}")
            stop = asyncio.Event()

            def after_two(report: StepReport) -> None:
                if report.step == made.steps[2]:
                    stop.set()

            outcome = (
                await execute(made, driver, parallel=1, on_progress=after_two, stop=stop)
            ).gpus[0]
            assert results(outcome) == [DONE] * 3 + [SKIPPED] * 5
            assert outcome.problems == ()
            assert len(outcome.after.instances) == 2


async def test_a_failure_after_a_stop_is_not_undone() -> None:
    """The next plan goes on from what is there."""
    with simulated("h100-80gb:1") as node:
        node.inject(CREATE, error="UNKNOWN", skip=1)
        async with open_driver() as driver:
            made, stop = await planned(driver, "{1g.10gb: 7}"), asyncio.Event()
            done = await execute(
                made, driver, parallel=1, on_progress=lambda _: None, stop=stop,
                on_begin=lambda step: stop.set() if step == made.steps[2] else None,
            )  # fmt: skip
            (outcome,) = done.gpus
            assert results(outcome)[:3] == [DONE, DONE, FAILED]
            assert outcome.restored == ()
            assert len(outcome.after.instances) == 1


async def test_cancelled_in_the_middle_of_a_step_it_finishes_the_step() -> None:
    with simulated("h100-80gb:1") as node:
        hang = node.inject(CREATE, hang=True)
        async with open_driver() as driver:
            made = await planned(driver, "{1g.10gb: 7}")
            reported: list[StepReport] = []
            task = asyncio.create_task(
                execute(made, driver, parallel=1, on_progress=reported.append)
            )
            await until(lambda: not hang.times)
            task.cancel()
            await asyncio.sleep(0.02)
            assert not task.done()
            node.clear_faults()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert [report.result for report in reported] == [DONE, DONE]
            seen = await driver.observe_gpu(made.gpus[0].before.uuid)
            assert len(seen.instances) == 1
            assert len(seen.instances[0].compute) == 1
