"""Driver and fleet as one node: observed together, changed in order, remembered and published."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator, Mapping

import pytest

from nodeagent.cluster.kubelet.device_users import KubeletUsage
from nodeagent.errors import DriverError, GpuInUse, NodeagentError
from nodeagent.execute.executor import execute
from nodeagent.health.fencing import as_fenced, fences
from nodeagent.health.findings import Action, Finding, Moment, Place, Severity
from nodeagent.mps.lifecycle.model import Subject
from nodeagent.mps.processes import CONTROL, SERVER
from nodeagent.plan.observed import HEALTHY, ObservedNode, Placement
from nodeagent.plan.plan import StepResult, Verdict
from nodeagent.plan.problems import Code
from nodeagent.plan.shares import ComputeMode, TimeSlice
from nodeagent.plan.steps import (
    SetComputeMode,
    SetMigMode,
    SetTimeSlice,
    StartMps,
    Step,
    StopMps,
)
from nodeagent.simulation import SimulatedNode, Switches, simulated
from nodeagent.simulation.nvidia_smi import STATE_VARIABLE
from nodeagent.structs import replace
from tests.execute.controller_rig import Agent, NodeRig, document, mig_devices, modes
from tests.mps.fleet_rig import status, until
from tests.simulated_cluster.kubelet import Kubelet

DEFAULT, PROHIBITED, EXCLUSIVE = 0, 2, 3  # as NVML numbers them
WHOLE = document("{devices: [0], mps: {shares: {small: {count: 2, memory: 4Gi, threads: 20}}}}")
LARGER = WHOLE.replace("4Gi", "8Gi")
NOTHING = document("{devices: [0], mig: disabled}")
TWO = document("{devices: [0], mig: {3g.40gb: 2}, mps: {replicas: 2}}")
ONE = document("{devices: [0], mig: [{profile: 3g.40gb, mps: {replicas: 2}}, {profile: 3g.40gb}]}")
RECUT = document("{devices: [0], mig: {1g.10gb: 2}, mps: {replicas: 2}}")


@pytest.fixture
def rig() -> Iterator[NodeRig]:
    """Everything of it ends with the test."""
    with NodeRig() as made:
        yield made


@pytest.fixture
def node(rig: NodeRig) -> Iterator[SimulatedNode]:
    """One H100."""
    with simulated("h100-80gb:1", state=rig.state) as made:
        yield made


@pytest.fixture
async def agent(rig: NodeRig, node: SimulatedNode) -> AsyncIterator[Agent]:
    """One that lives as long as the test."""
    async with rig.agent() as made:
        yield made


# --- observed as one ------------------------------------------------------------------------------


async def test_daemons_stand_beside_their_devices(agent: Agent) -> None:
    """On the GPU itself, and on each MIG device that has one, and on no other."""
    await agent.made(WHOLE)
    gpu = await agent.gpu()
    assert gpu.mps is not None
    assert (gpu.mps.state, gpu.mps.clients.known) == ("Ready", True)
    await agent.made(ONE)
    gpu = await agent.gpu()
    assert gpu.mps is None
    has = [device.mps is not None for device in mig_devices(gpu)]
    assert sorted(has) == [False, True]
    assert await agent.node.observe_gpu(gpu.uuid) == gpu


async def test_a_server_is_no_users_work(rig: NodeRig, agent: Agent) -> None:
    """A daemon's own server, which the driver lists, is no user; its client is named once, and
    when it is gone, the idle server does not keep the plan from taking MPS away.
    """
    await agent.made(WHOLE)
    device = (await agent.gpu()).uuid
    with rig.slot(device, "small-0") as client:
        client.wait_until_accepted()
        client.allocate(1 << 30)
        await until(lambda: len(status(agent.fleet, device).clients) == 1)
        gpu = await agent.gpu()
        assert gpu.mps is not None
        assert set(gpu.mps.servers) == set(rig.servers(device)) != set()
        assert not {user.pid for user in gpu.usage.processes} & set(gpu.mps.servers)
        refused = await agent.planned(NOTHING)
        assert refused.verdict is Verdict.BLOCKED
        [problem] = refused.gpus[0].problems
        assert str(client.pid) in problem.message
        assert str(gpu.mps.servers[0]) not in problem.message
    await until(lambda: not status(agent.fleet, device).clients)
    assert rig.servers(device)
    await agent.made(NOTHING)
    assert not rig.processes()


async def test_daemons_of_devices_that_vanished_end(
    rig: NodeRig, node: SimulatedNode, agent: Agent
) -> None:
    """Another program destroyed a MIG device past the agent: its daemon goes, with files and
    memory; the other is undisturbed.
    """
    await agent.made(TWO)
    gone, stays = mig_devices(await agent.gpu())
    assert stays.mps is not None
    hardware = node.card(0).state
    hardware.instances = [i for i in hardware.instances if i.start != 0]
    gpu = await agent.gpu()
    [left] = mig_devices(gpu)
    assert left.mps is not None
    assert (left.uuid, left.mps.pid) == (stays.uuid, stays.mps.pid)
    assert not rig.processes(device=gone.uuid)
    assert not (rig.run_dir / "mps" / gone.uuid).exists()
    assert gone.uuid not in rig.announced()
    assert stays.uuid in rig.announced()
    assert agent.memory.mode(gone.uuid) is None
    assert agent.memory.mode(stays.uuid) is ComputeMode.DEFAULT


async def test_a_gpu_that_does_not_answer_keeps_its_daemons(
    rig: NodeRig, node: SimulatedNode, agent: Agent
) -> None:
    """What is not seen is not gone."""
    await agent.made(TWO)
    before = {one.pid for one in rig.processes(CONTROL)}
    node.lose(0)
    await agent.node.observe()
    assert {one.pid for one in rig.processes(CONTROL)} == before
    assert len(agent.fleet.statuses()) == 2


# --- steps ----------------------------------------------------------------------------------------


async def test_a_client_keeps_its_daemon(rig: NodeRig, agent: Agent) -> None:
    """A StopMps that comes although there is a client is refused as in use, and names him."""
    await agent.made(WHOLE)
    device = (await agent.gpu()).uuid
    with rig.slot(device, "small-1") as client:
        client.wait_until_accepted()
        with pytest.raises(GpuInUse, match=str(client.pid)):
            await agent.node.apply(StopMps(device, device, "a test's"))
        assert rig.published(device) == {"small-0", "small-1"}
        client.allocate(1 << 20)


async def test_a_device_given_away_meanwhile_keeps_its_daemon(
    rig: NodeRig, node: SimulatedNode
) -> None:
    """The kubelet gave it to a pod after the plan was made: the pod finds the daemon it waits for,
    though it is no client yet.
    """
    async with (
        Kubelet(rig.folder / "pod-resources") as kubelet,
        rig.agent(allocations=KubeletUsage(kubelet.socket, deadline=30)) as agent,
    ):
        await agent.made(WHOLE)
        device = (await agent.gpu()).uuid
        planned = await agent.planned(NOTHING)
        assert [type(step) for step in planned.gpus[0].steps][:1] == [StopMps]
        kubelet.allocate("trainer", [f"{device}::0"], namespace="work")
        outcome = await execute(planned, agent.node, parallel=1)
        [problem] = outcome.gpus[0].problems
        assert problem.code is Code.IN_USE
        assert "work/trainer" in problem.message
        assert status(agent.fleet, device).phase == "Ready"


@pytest.mark.parametrize("recreated_is_new", [False, True])
async def test_a_recut_with_daemons_before_and_after(
    rig: NodeRig, *, recreated_is_new: bool
) -> None:
    """Daemons stop, the card is cut anew, daemons start on what came of it: also where a device
    that is made in another's place has its UUID.
    """
    switches = Switches(new_uuid_on_recreate=recreated_is_new)
    with simulated("h100-80gb:1", state=rig.state, switches=switches) as node:
        async with rig.agent() as agent:
            await agent.made(TWO)
            await agent.made(RECUT)
            assert modes(node)[1:] == [EXCLUSIVE] * 2
            await agent.made(TWO)
            assert modes(node)[1:] == [EXCLUSIVE] * 2
            devices = mig_devices(await agent.gpu())
            assert [d.mps.state if d.mps else None for d in devices] == ["Ready"] * 2
            assert len(rig.processes(CONTROL)) == 2
            assert {device.uuid for device in devices} == {d.device for d in agent.fleet.running()}


async def test_a_device_is_named_or_nothing_is_done(
    rig: NodeRig, node: SimulatedNode, agent: Agent
) -> None:
    """A step for a device that was not found among the new ones does not take another's, though it
    is of the same kind at the same place.
    """
    await agent.made(document("{devices: [0], mig: [{profile: 3g.40gb, start: 0}]}"))
    gpu = await agent.gpu()
    wanted = (await agent.planned(WHOLE)).gpus[0].steps[-1]
    assert isinstance(wanted, StartMps)
    start = replace(wanted, device="", profile="3g.40gb", placement=Placement(0, 4))
    mode = SetComputeMode(
        gpu.uuid, "", ComputeMode.EXCLUSIVE_PROCESS, "a test's", "3g.40gb", Placement(0, 4)
    )
    for step in (start, mode):
        with pytest.raises(NodeagentError, match=r"no new 3g\.40gb at 0:4"):
            await agent.node.apply(step)
    assert not rig.processes()
    assert modes(node)[1:] == [DEFAULT]


# --- compute mode ---------------------------------------------------------------------------------


async def test_a_compute_mode_is_as_before_in_the_end(
    rig: NodeRig, node: SimulatedNode, agent: Agent
) -> None:
    """What it was is written down before the change, and crossed out when it is that again."""
    node.card(0).state.compute_mode = PROHIBITED  # the user who set it wants it back
    await agent.made(WHOLE)
    device = (await agent.gpu()).uuid
    assert modes(node) == [EXCLUSIVE]
    assert (await agent.gpu()).earlier_mode is ComputeMode.PROHIBITED
    assert "prohibited" in rig.memory_file.read_text()
    await agent.made(document("{devices: [0], mig: disabled}"))
    assert modes(node) == [PROHIBITED]
    assert agent.memory.mode(device) is None
    assert device not in rig.memory_file.read_text()


async def test_a_mode_goes_with_its_device(node: SimulatedNode, agent: Agent) -> None:
    """A MIG device that is destroyed has nothing to be restored to, though its successor may have
    its UUID.
    """
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
    """Noted, but never changed: the next agent finds the device as it was and forgets the note;
    what was changed it restores.
    """
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
    """Where nothing can be noted, the change is not made, and the daemon not started."""
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
    """Noted, set, seen; forgotten by a crash before the change; restored when the plan has none."""
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


# --- what clients get -----------------------------------------------------------------------------


async def test_published_as_long_as_there_is_a_daemon(rig: NodeRig, agent: Agent) -> None:
    """After its start, not before; other shares, other files; gone when it is stopped."""
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
    """Its start failed, so clients got nothing; when the fleet has it Ready after all, they do."""
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
    await agent.made(WHOLE)
    device = (await agent.gpu()).uuid
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
    """A user sets the compute mode back: the daemon is not Ready and says why, though nothing is
    ended; the plan's one step repairs it.
    """
    await agent.made(WHOLE)
    gpu = await agent.gpu()
    pid = status(agent.fleet, gpu.uuid).pid
    node.card(0).state.compute_mode = DEFAULT
    await agent.node.observe()
    await until(lambda: not status(agent.fleet, gpu.uuid).is_ready)
    assert "compute mode is default" in status(agent.fleet, gpu.uuid).why
    assert rig.said(Subject.LIMITS_DIFFER, gpu.uuid)
    repair = await agent.planned(WHOLE)
    assert [type(step) for step in repair.steps] == [SetComputeMode]
    await agent.made(WHOLE)
    await until(lambda: status(agent.fleet, gpu.uuid).is_ready)
    assert status(agent.fleet, gpu.uuid).pid == pid
    assert modes(node) == [EXCLUSIVE]


async def test_a_mode_that_is_left_alone_keeps_no_daemon_from_ready(
    rig: NodeRig, node: SimulatedNode
) -> None:
    """With the setting that leaves compute modes alone, any will do."""
    async with rig.agent(exclusive=False) as agent:
        device = (await agent.gpu()).uuid
        wanted = next(s for s in (await agent.planned(WHOLE)).steps if isinstance(s, StartMps))
        await agent.node.apply(wanted)
        assert status(agent.fleet, device).is_ready
        await agent.node.observe()
        assert status(agent.fleet, device).is_ready
    assert modes(node) == [DEFAULT]


# --- from one agent to the next -------------------------------------------------------------------


async def test_daemons_outlive_who_started_them(rig: NodeRig, node: SimulatedNode) -> None:
    """One that did its work and ended leaves them running, with the client's files; the next
    adopts them as they are, and has nothing to do.
    """
    async with rig.agent() as once:
        await once.made(TWO)
        devices = {d.uuid: d.mps.pid for d in mig_devices(await once.gpu()) if d.mps}
    assert {one.pid for one in rig.processes(CONTROL)} == set(devices.values())
    first, second = devices
    with rig.slot(first, "replica-0", at=first) as client:
        client.wait_until_accepted()
        async with rig.agent() as following:
            assert (await following.planned(TWO)).verdict is Verdict.IN_SYNC
            await following.fleet.settled()
            gpu = await following.gpu()
            adopted = {d.uuid: d.mps.pid for d in mig_devices(gpu) if d.mps}
            assert adopted == devices
            assert {d.mps.state for d in mig_devices(gpu) if d.mps} == {"Ready"}
            assert (await following.planned(RECUT)).verdict is Verdict.BLOCKED
        client.allocate(1 << 20)
    assert rig.published(second) == {"replica-0", "replica-1"}


async def test_one_that_died_in_between_is_started_anew(rig: NodeRig, node: SimulatedNode) -> None:
    """No agent was there to see it: the next one starts it, after its orphaned server is gone, and
    calls it settled only when it is Ready.
    """
    async with rig.agent() as once:
        await once.made(WHOLE)
        device = (await once.gpu()).uuid
        pid = status(once.fleet, device).pid
        with rig.slot(device, "small-0") as client:
            client.wait_until_accepted()
    assert rig.servers(device)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    async with rig.agent() as following:
        await following.fleet.settled()
        after = status(following.fleet, device)
        assert after.is_ready
        assert after.pid != pid
        assert not rig.processes(SERVER)
        assert (await following.planned(WHOLE)).verdict is Verdict.IN_SYNC
    assert modes(node) == [EXCLUSIVE]


# --- health -----------------------------------------------------------------------------------


class Ill:
    """A health source that calls devices sick, and hears what is done."""

    def __init__(self) -> None:
        self.findings: tuple[Finding, ...] = ()
        self.seen: list[ObservedNode] = []
        self.steps: list[tuple[str, bool | None]] = []

    def observed_node(self, observed: ObservedNode) -> None:
        self.seen.append(observed)

    def fenced(self, observed: ObservedNode) -> tuple[ObservedNode, Mapping[str, str]]:
        found = fences(self.findings, observed)
        return as_fenced(observed, found), found.reasons

    def begin_step(self, step: Step) -> None:
        self.steps.append((type(step).__name__, None))

    def end_step(self, step: Step, *, done: bool) -> None:
        self.steps.append((type(step).__name__, done))

    def say(self, gpu: str, placement: Placement) -> None:
        """Uncorrected errors there."""
        at = Moment(1.0, 1.0)
        place = Place(gpu, 1, None, placement)
        self.findings = (
            Finding(
                "ecc",
                "eccUncorrected",
                Severity.UNHEALTHY,
                Action.RESET_GPU,
                "3 errors",
                place,
                at,
                at,
            ),
        )


async def test_what_is_sick_is_reported_to_planner_and_daemons(
    rig: NodeRig, node: SimulatedNode
) -> None:
    """The planner's picture has it, for any caller; the daemon there takes no client, its sibling
    does; all is as before when it is over.
    """
    ill = Ill()
    async with rig.agent(health=ill) as agent:
        await agent.made(TWO)
        observed = await agent.node.observe()
        (gpu,) = observed.gpus
        left, right = sorted(gpu.instances, key=lambda i: i.placement)
        sick, fit = left.compute[0].uuid, right.compute[0].uuid
        ill.say(gpu.uuid, left.placement)
        agent.node.fence()  # without another look
        assert agent.node.seen is not None
        assert agent.node.seen.gpus[0].health_limits.slices == left.placement.mask
        assert status(agent.fleet, sick).trouble.startswith(
            "takes no new clients: it has uncorrected"
        )
        assert status(agent.fleet, fit).trouble == ""
        assert (await agent.node.observe()).gpus[0].health_limits.slices == left.placement.mask
        one = await agent.node.observe_gpu(gpu.uuid)
        assert one.health_limits.slices == left.placement.mask
        ill.findings = ()
        assert (await agent.node.observe()).gpus[0].health_limits == HEALTHY
        assert status(agent.fleet, sick).trouble == ""
        assert ill.seen[-1].gpus[0].uuid == gpu.uuid


async def test_health_hears_of_each_step(rig: NodeRig, node: SimulatedNode) -> None:
    """Before it and afterwards, with whether it was done."""
    ill = Ill()
    async with rig.agent(health=ill) as agent:
        (gpu,) = (await agent.node.observe()).gpus
        node.inject("nvmlDeviceSetMigMode", error="UNKNOWN")
        with pytest.raises(DriverError):
            await agent.node.apply(SetMigMode(gpu.uuid, True, "the test says so"))
        await agent.node.apply(SetMigMode(gpu.uuid, True, "the test says so"))
        name = "SetMigMode"
        assert ill.steps == [(name, None), (name, False), (name, None), (name, True)]
