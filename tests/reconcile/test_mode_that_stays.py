"""A mode change that does not come to what was planned ends, whatever driver or programs do."""

import asyncio
from pathlib import Path

import pytest

from nodeagent.documents.reading import read_document
from nodeagent.gpu.driver import Driver
from nodeagent.plan.desired import DesiredNode
from nodeagent.plan.observed import Gpu, MigMode, ObservedNode
from nodeagent.plan.plan import Policy, StepReport
from nodeagent.plan.planner import plan
from nodeagent.plan.problems import Code
from nodeagent.plan.resolve import resolve
from nodeagent.plan.steps import SetMigMode, Step
from nodeagent.reconcile.executor import execute
from nodeagent.simulation import SimulatedNode, Switches, simulated
from nodeagent.structs import replace
from tests.gpu.steps_of import laid_out
from tests.machine_load import stretched
from tests.plan.cards import card, wanted
from tests.processes.real import running
from tests.reconcile.test_executor import DONE, SKIPPED, results
from tests.reconcile.test_executor_mps import PaperNode
from tests.rig import open_driver, plan_text

RESETS = Policy(reset_when_idle=True)
LIMIT = 120  # seconds for what ends after a few steps


def wanting(*, on: bool, gpu: Gpu) -> DesiredNode:
    """MIG on with whatever is there, or off."""
    desired = resolve(
        read_document(plan_text("enabled" if on else "disabled")), ObservedNode((gpu,))
    )
    assert isinstance(desired, DesiredNode)
    return desired


async def observed(node: SimulatedNode, *, on: bool) -> Gpu:
    """GPU 0 in mode `on`, with the other one pending."""
    state = node.card(0).state
    state.mig, state.pending = on, not on
    async with open_driver() as driver:
        return (await driver.observe()).gpus[0]


class Unmoved(PaperNode):
    """Reports every step as done, and changes nothing."""

    async def apply(self, step: Step) -> None:
        self.taken.append(step)


@pytest.mark.parametrize("current", [True, False])
@pytest.mark.parametrize("pending", [True, False])
async def test_a_mode_that_never_changes_is_set_once_on_each_way(
    current: bool, pending: bool
) -> None:
    with simulated("a100-40gb:1") as node:
        gpu = replace(
            await observed(node, on=current),
            mig=MigMode(current, pending),
            mode_change_needs_reset=False,
        )
    on = current if current != pending else not current
    made = plan(wanting(on=on, gpu=gpu), ObservedNode((gpu,)))
    driver = Unmoved(gpu)
    async with asyncio.timeout(stretched(LIMIT)):
        outcome = (await execute(made, driver, parallel=1)).gpus[0]
    assert 1 <= len(driver.taken) <= 2
    assert all(isinstance(step, SetMigMode) for step in driver.taken)
    (problem,) = outcome.problems
    assert problem.code is Code.STEP_FAILED
    assert "still it would take" in problem.message


@pytest.mark.parametrize("on", [True, False])
async def test_another_program_that_undoes_each_change_does_not_keep_the_agent_busy(
    on: bool,
) -> None:
    with simulated("a100-40gb:1") as node:
        gpu = await observed(node, on=on)
        made = plan(wanting(on=on, gpu=gpu), ObservedNode((gpu,)))

        def undo(_: StepReport) -> None:
            node.card(0).set_mig_mode(enabled=not on)

        async with open_driver() as driver, asyncio.timeout(stretched(LIMIT)):
            outcome = (await execute(made, driver, parallel=1, on_progress=undo)).gpus[0]
        assert len(outcome.steps) == 1
        assert [problem.code for problem in outcome.problems] == [Code.STEP_FAILED]


@pytest.mark.parametrize("on", [True, False])
async def test_a_driver_that_keeps_the_pending_mode_is_in_use(on: bool) -> None:
    with simulated("a100-40gb:1", switches=Switches(pending_mode_stays=True)) as node:
        gpu = await observed(node, on=on)
        made = plan(wanting(on=on, gpu=gpu), ObservedNode((gpu,)))
        async with open_driver() as driver, asyncio.timeout(stretched(LIMIT)):
            outcome = (await execute(made, driver, parallel=1)).gpus[0]
        assert node.journal.total("nvmlDeviceSetMigMode") <= 2
        assert [problem.code for problem in outcome.problems] == [Code.IN_USE]
        assert outcome.after.mig == gpu.mig


@pytest.mark.parametrize("program", ["false", "/nowhere/nvidia-smi"])
@pytest.mark.parametrize("on", [True, False])
async def test_a_mode_that_waited_for_a_reset_before_the_plan_waits_after_one_that_failed(
    on: bool, program: str
) -> None:
    """Who set it may be about to reboot; and each way forth and back is written to the card."""
    with simulated("a100-40gb:1") as node:
        gpu = await observed(node, on=on)
        made = plan(wanting(on=not on, gpu=gpu), ObservedNode((gpu,)), RESETS)
        driver = Driver(observe_deadline=5, step_deadline=5, nvidia_smi=[program])
        async with driver, asyncio.timeout(stretched(LIMIT)):
            outcome = (await execute(made, driver, parallel=1, policy=RESETS)).gpus[0]
        assert [problem.code for problem in outcome.problems] == [Code.RESET_REQUIRED]
        assert outcome.after.mig == gpu.mig
        assert node.journal.total("nvmlDeviceSetMigMode") == 0


async def test_instances_that_do_not_come_back_after_a_failed_reset_are_missed() -> None:
    with simulated("a100-40gb:1") as node:
        node.card(0).state.mig = node.card(0).state.pending = True
        driver = Driver(observe_deadline=5, step_deadline=5, nvidia_smi=["false"])
        async with driver:
            gpu = await laid_out(driver, 0, at0="3g.20gb")
            made = plan(wanting(on=False, gpu=gpu), ObservedNode((gpu,)), RESETS)
            node.inject("nvmlDeviceCreateGpuInstance*", error="UNKNOWN", times=None)
            outcome = (await execute(made, driver, parallel=1, policy=RESETS)).gpus[0]
    assert [problem.code for problem in outcome.problems][-1] is Code.NOT_RESTORED


async def test_a_driver_that_lets_the_mode_wait_against_what_is_known_of_the_card() -> None:
    """What was planned for the new mode is left; a reset is what is missing, and nothing failed."""

    class Waits(PaperNode):
        async def apply(self, step: Step) -> None:
            await super().apply(step)
            assert isinstance(step, SetMigMode)
            self.gpu = replace(self.gpu, mig=MigMode(current=False, pending=True))

    gpu = replace(card("a100-40gb"), mig=MigMode(False, False), mode_change_needs_reset=False)
    made = plan(DesiredNode({gpu.uuid: wanted(gpu, [("1g.5gb", 2)])}), ObservedNode((gpu,)))
    outcome = (await execute(made, Waits(gpu), parallel=1)).gpus[0]
    assert results(outcome) == [DONE, SKIPPED, SKIPPED]
    assert [problem.code for problem in outcome.problems] == [Code.RESET_REQUIRED]
    assert not outcome.turned_back


@pytest.mark.parametrize(
    ("cgroup", "end"),
    [
        ("/system.slice/nvidia-persistenced.service", "`systemctl stop nvidia-persistenced`"),
        ("/user.slice/user-0.slice/session-3.scope", "`kill {pid}`"),
    ],
)
async def test_who_holds_a_gpu_open_that_is_not_reset(
    tmp_path: Path, cgroup: str, end: str
) -> None:
    """Also where NVML lists nobody. The mode waits: with the process gone, or after a reboot."""
    smi = ["sh", "-c", "echo GPU 3: In use by another client; exit 255"]
    (tmp_path / "devices").write_text("Character devices:\n  1 nvidia\n")
    with simulated("a100-40gb:4"), running("cat", "x") as pid:
        for name, text in (("fdinfo/3", "flags:\t0100002\n"), ("cgroup", f"0::{cgroup}\n")):
            (tmp_path / f"{pid}" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / f"{pid}" / name).write_text(text)
        (tmp_path / f"{pid}/fd").mkdir()
        (tmp_path / f"{pid}/fd/3").symlink_to("/dev/null")  # device 1, 3: this test's /dev/nvidia3
        driver = Driver(observe_deadline=5, step_deadline=5, nvidia_smi=smi, proc_root=tmp_path)
        async with driver, asyncio.timeout(stretched(LIMIT)):
            gpu = (await driver.observe()).gpus[3]
            made = plan(wanting(on=True, gpu=gpu), ObservedNode((gpu,)), RESETS)
            outcome = (await execute(made, driver, parallel=1, policy=RESETS)).gpus[0]
    (problem,) = outcome.problems
    assert problem.code is Code.IN_USE
    assert f"held open by pid {pid} (cat)" in problem.message
    assert problem.remedy == f"run {end.format(pid=pid)}, or reboot"
    assert outcome.after.mig == MigMode(current=False, pending=True)
