"""Daemons and modes of the node: published, kept from Ready, changed and restored in the end."""

import pytest

from nodeagent.errors import DriverError, NodeagentError
from nodeagent.mps.lifecycle.model import ReportSubject
from nodeagent.plan.plan import StepResult, Verdict
from nodeagent.plan.problems import Code
from nodeagent.plan.shares import ComputeMode, TimeSlice
from nodeagent.plan.steps import SetComputeMode, SetTimeSlice, StartMps
from nodeagent.simulation import SimulatedNode
from nodeagent.simulation.state_file import STATE_VARIABLE
from tests.machine_load import until
from tests.mps.fleet_rig import status
from tests.reconcile.controller_rig import (
    DEFAULT,
    EXCLUSIVE,
    NOTHING,
    PROHIBITED,
    TWO,
    WHOLE,
    Agent,
    NodeRig,
    document,
    mig_devices,
    modes,
)

LARGER = WHOLE.replace("4Gi", "8Gi")

# --- what clients get -----------------------------------------------------------------------------


async def test_published_as_long_as_there_is_a_daemon(rig: NodeRig, agent: Agent) -> None:
    device = (await agent.gpu()).uuid
    assert rig.published(device) == set()
    await agent.made(WHOLE)
    assert rig.published(device) == {"small-0", "small-1"}
    assert f"{device}-small-1" in rig.announced()
    pid = status(agent.fleet, device).pid
    await agent.made(LARGER.replace("small", "big"))
    assert rig.published(device) == {"big-0", "big-1"}
    assert status(agent.fleet, device).pid == pid
    await agent.made(NOTHING)
    assert rig.published(device) == set()
    assert rig.announced() == ""


async def test_a_daemon_that_is_ready_late_is_published(rig: NodeRig, agent: Agent) -> None:
    device = (await agent.gpu()).uuid
    rig.knobs(None).turn("start_error", "no luck")
    outcome = (await agent.reach(WHOLE)).gpus[0]
    assert [problem.code for problem in outcome.problems] == [Code.MPS]
    assert outcome.after.mps is not None
    assert outcome.after.mps.state != "Ready"
    assert rig.published(device) == set()
    rig.knobs(None).clear()
    agent.fleet.retry()
    await until(lambda: status(agent.fleet, device).is_ready, 8)
    assert (await agent.planned(WHOLE)).verdict is Verdict.IN_SYNC
    assert rig.published(device) == {"small-0", "small-1"}
    assert device in rig.announced()


async def test_a_drained_daemon_is_not_published(rig: NodeRig, agent: Agent) -> None:
    """No client should be sent where no daemon answers; when wanted back, all is there again."""
    device = (await agent.made(WHOLE)).after.uuid
    assert await agent.fleet.drain(device, seconds=5) == ()
    await agent.node.observe()
    assert (rig.published(device), rig.announced()) == (set(), "")
    await agent.fleet.restart(device)
    await agent.node.observe()
    assert rig.published(device) == {"small-0", "small-1"}


# --- what keeps a daemon from Ready ---------------------------------------------------------------


async def test_a_wrong_mode_keeps_a_daemon_from_ready(
    rig: NodeRig, node: SimulatedNode, agent: Agent
) -> None:
    await agent.made(WHOLE)
    gpu = await agent.gpu()
    pid = status(agent.fleet, gpu.uuid).pid
    node.card(0).state.compute_mode = DEFAULT
    await agent.node.observe()
    await until(lambda: not status(agent.fleet, gpu.uuid).is_ready)
    assert "compute mode is default" in status(agent.fleet, gpu.uuid).why
    assert rig.said(ReportSubject.LIMITS_DIFFER, gpu.uuid)
    repair = await agent.planned(WHOLE)
    assert [type(step) for step in repair.steps] == [SetComputeMode]
    await agent.made(WHOLE)
    await until(lambda: status(agent.fleet, gpu.uuid).is_ready)
    assert status(agent.fleet, gpu.uuid).pid == pid
    assert modes(node) == [EXCLUSIVE]


async def test_a_mode_that_is_left_alone_keeps_no_daemon_from_ready(
    rig: NodeRig, node: SimulatedNode
) -> None:
    async with rig.agent(exclusive=False) as agent:
        device = (await agent.gpu()).uuid
        wanted = next(s for s in (await agent.planned(WHOLE)).steps if isinstance(s, StartMps))
        await agent.node.apply(wanted)
        assert status(agent.fleet, device).is_ready
        await agent.node.observe()
        assert status(agent.fleet, device).is_ready
    assert modes(node) == [DEFAULT]


# --- compute mode ---------------------------------------------------------------------------------


async def test_a_compute_mode_is_as_before_in_the_end(
    rig: NodeRig, node: SimulatedNode, agent: Agent
) -> None:
    node.card(0).state.compute_mode = PROHIBITED  # the user who set it wants it back
    device = (await agent.made(WHOLE)).after.uuid
    assert modes(node) == [EXCLUSIVE]
    assert (await agent.gpu()).earlier_mode is ComputeMode.PROHIBITED
    assert "prohibited" in rig.memory_file.read_text()
    await agent.made(document("{devices: [0], mig: disabled}"))
    assert modes(node) == [PROHIBITED]
    assert agent.memory.mode(device) is None
    assert device not in rig.memory_file.read_text()


async def test_a_mode_goes_with_its_device(node: SimulatedNode, agent: Agent) -> None:
    """A destroyed MIG device needs no restoring, though its successor may have its UUID."""
    await agent.made(TWO)
    uuids = {device.uuid for device in mig_devices(await agent.gpu())}
    assert all(agent.memory.mode(uuid) for uuid in uuids)
    await agent.made(document("{devices: [0], mig: {7g.80gb: 1}}"))
    assert not any(agent.memory.mode(uuid) for uuid in uuids)
    await agent.made(document("{devices: [0], mig: {3g.40gb: 2}}"))
    assert not any(d.earlier_mode for d in mig_devices(await agent.gpu()))
    assert modes(node)[1:] == [DEFAULT] * 2


async def test_a_crash_between_note_and_change(
    rig: NodeRig, node: SimulatedNode, agent: Agent
) -> None:
    """Noted, never changed: the next agent forgets the note; what was changed it restores."""
    device = (await agent.gpu()).uuid
    agent.memory.remember(device, ComputeMode.DEFAULT)
    async with rig.agent() as after_the_crash:
        gpu = await after_the_crash.gpu()
        assert after_the_crash.memory.mode(device) is None
        assert (await after_the_crash.planned(NOTHING)).verdict is Verdict.IN_SYNC
    agent.memory.forget(device, ComputeMode)
    agent.memory.remember(device, ComputeMode.DEFAULT)
    node.card(0).state.compute_mode = EXCLUSIVE
    async with rig.agent() as after_the_change:
        gpu = await after_the_change.gpu()
        assert gpu.earlier_mode is ComputeMode.DEFAULT
        await after_the_change.made(NOTHING)
    assert modes(node) == [DEFAULT]


async def test_a_mode_that_is_not_known_is_not_changed(
    rig: NodeRig, node: SimulatedNode, agent: Agent
) -> None:
    """It could not be restored; also when the GPU was last seen well, but does not answer now."""
    gpu = await agent.gpu()
    step = SetComputeMode(gpu.uuid, gpu.uuid, ComputeMode.EXCLUSIVE_PROCESS, "a test's")
    fault = node.inject("nvmlDeviceGetComputeMode", error="UNKNOWN", times=None)
    with pytest.raises(NodeagentError, match="could not be restored"):
        await agent.node.apply(step)
    node.clear_faults(fault)
    await agent.node.observe()
    node.card(0).state.compute_mode = PROHIBITED
    node.inject("nvmlDeviceGet*", error="UNKNOWN", times=1)
    with pytest.raises(NodeagentError, match="could not be restored"):
        await agent.node.apply(step)
    assert agent.memory.mode(gpu.uuid) is None
    assert not rig.memory_file.exists()
    assert modes(node) == [PROHIBITED]


async def test_a_memory_that_cannot_be_kept(rig: NodeRig, node: SimulatedNode) -> None:
    rig.memory_file.parent.parent.joinpath("state").write_text("a file where a folder should be")
    async with rig.agent() as agent:
        outcome = (await agent.reach(WHOLE)).gpus[0]
    assert [report.result for report in outcome.steps] == [StepResult.FAILED, StepResult.SKIPPED]
    assert str(rig.memory_file) in outcome.problems[0].message
    assert modes(node) == [DEFAULT]
    assert not rig.processes()


# --- time slices ----------------------------------------------------------------------------------


async def test_a_time_slice_is_as_before_in_the_end(
    rig: NodeRig, node: SimulatedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STATE_VARIABLE, str(rig.state))
    long = document("{devices: [0], timeSlice: long}")
    async with rig.agent(time_slices=True) as agent:
        assert (await agent.gpu()).time_slice is TimeSlice.DEFAULT
        await agent.made(long)
        gpu = await agent.gpu()
        assert (gpu.time_slice, gpu.earlier_time_slice) == (TimeSlice.LONG, TimeSlice.DEFAULT)
    async with rig.agent() as agent:  # which asks only for what it changed
        gpu = await agent.gpu()
        assert (gpu.time_slice, gpu.earlier_time_slice) == (TimeSlice.LONG, TimeSlice.DEFAULT)
        await agent.made(document("{devices: [0], mig: disabled}"))
        gpu = await agent.gpu()
        assert (gpu.time_slice, gpu.earlier_time_slice) == (TimeSlice.DEFAULT, None)
        agent.memory.remember(gpu.uuid, TimeSlice.DEFAULT)
    async with rig.agent() as agent:
        await agent.node.observe()
        assert agent.memory.time_slice(gpu.uuid) is None


async def test_a_time_slice_that_is_not_reported_is_not_changed(
    node: SimulatedNode, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without nvidia-smi there is nothing that it could be restored to."""
    monkeypatch.setenv(STATE_VARIABLE, "/nowhere")
    gpu = await agent.gpu()
    with pytest.raises(DriverError):
        await agent.node.apply(SetTimeSlice(gpu.uuid, TimeSlice.LONG, "a test's"))
    assert agent.memory.time_slice(gpu.uuid) is None
    assert node.card(0).state.time_slice == 0
