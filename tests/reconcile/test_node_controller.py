"""Driver and fleet as one node: observed together, changed in order, healthy in part."""

import asyncio
from collections.abc import Mapping

import pytest

from nodeagent.cluster.kubelet.device_users import KubeletUsage
from nodeagent.errors import DriverError, GpuInUse, NodeagentError
from nodeagent.health.fencing import as_fenced, fences
from nodeagent.health.findings import Action, Finding, Location, Moment, Severity
from nodeagent.mps.processes import CONTROL
from nodeagent.plan.observed import HEALTHY, ObservedNode, Placement
from nodeagent.plan.plan import Verdict
from nodeagent.plan.problems import Code
from nodeagent.plan.shares import ComputeMode
from nodeagent.plan.steps import SetComputeMode, SetMigMode, StartMps, Step, StopMps
from nodeagent.reconcile.executor import execute
from nodeagent.simulation import SimulatedNode, Switches, simulated
from nodeagent.structs import replace
from tests.machine_load import until
from tests.mps.fleet_rig import status
from tests.reconcile.controller_rig import (
    DEFAULT,
    EXCLUSIVE,
    NOTHING,
    PROHIBITED,
    RECUT,
    TWO,
    WHOLE,
    Agent,
    NodeRig,
    document,
    mig_devices,
    modes,
)
from tests.simulated_cluster.kubelet import Kubelet

ONE = document("{devices: [0], mig: [{profile: 3g.40gb, mps: {replicas: 2}}, {profile: 3g.40gb}]}")

# --- observed as one ------------------------------------------------------------------------------


async def test_daemons_stand_beside_their_devices(agent: Agent) -> None:
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
    device = (await agent.made(WHOLE)).after.uuid
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


async def test_shared_devices_are_read_in_full(node: SimulatedNode, agent: Agent) -> None:
    """Those with a daemon, and those whose mode the agent changed: who else changes it is seen."""
    await agent.made(TWO)
    gpu = await agent.gpu()
    first, second = mig_devices(gpu)
    await agent.fleet.stop(first.uuid)  # its mode is still the agent's
    agent.memory.prune({gpu.uuid, first.uuid})  # and the other has its daemon alone
    for _, part in node.card(0).mig_devices():
        part.compute_mode = PROHIBITED
    (seen,) = (await agent.node.observe(details=False)).gpus
    modes_now = {device.uuid: device.compute_mode for device in mig_devices(seen)}
    assert modes_now == dict.fromkeys((first.uuid, second.uuid), ComputeMode.PROHIBITED)


async def test_daemons_of_devices_that_vanished_end(
    rig: NodeRig, node: SimulatedNode, agent: Agent
) -> None:
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


async def test_a_device_whose_name_is_not_known_keeps_its_daemon(
    rig: NodeRig, node: SimulatedNode, agent: Agent
) -> None:
    """The driver shows the compute instances, and for a moment not which MIG devices they are:
    daemon, client and the modes to go back to are there afterwards.
    """
    await agent.made(TWO)
    first, second = mig_devices(await agent.gpu())
    before = {one.pid for one in rig.processes(CONTROL)}
    with rig.slot(first.uuid, "replica-0", at=first.uuid) as client:
        client.wait_until_accepted()
        node.inject("nvmlDeviceGetMigDeviceHandleByIndex", error="NOT_FOUND", times=None)
        assert [device.uuid for device in mig_devices(await agent.gpu())] == ["", ""]
        node.clear_faults()
        assert mig_devices(await agent.gpu())[0].uuid == first.uuid
        client.allocate(1 << 20)
    assert {one.pid for one in rig.processes(CONTROL)} == before
    assert agent.memory.mode(second.uuid) is ComputeMode.DEFAULT


# --- steps ----------------------------------------------------------------------------------------


async def test_a_client_keeps_its_daemon(rig: NodeRig, agent: Agent) -> None:
    device = (await agent.made(WHOLE)).after.uuid
    with rig.slot(device, "small-1") as client:
        client.wait_until_accepted()
        with pytest.raises(GpuInUse, match=str(client.pid)):
            await agent.node.apply(StopMps(device, device, "a test's"))
        assert rig.published(device) == {"small-0", "small-1"}
        client.allocate(1 << 20)


async def test_who_uses_another_device_keeps_no_daemon(node: SimulatedNode, agent: Agent) -> None:
    await agent.made(TWO)
    gpu = await agent.gpu()
    first, second = mig_devices(gpu)
    node.occupy(second.uuid)
    await agent.node.apply(StopMps(gpu.uuid, first.uuid, "a test's"))
    assert [state.device for state in agent.fleet.statuses()] == [second.uuid]


@pytest.mark.parametrize("lost", [False, True])
async def test_a_gpu_that_does_not_answer_any_more_keeps_its_daemon(
    rig: NodeRig, node: SimulatedNode, agent: Agent, lost: bool
) -> None:
    """Who uses it is not known, which counts as in use; how it was seen last does not."""
    device = (await agent.made(WHOLE)).after.uuid
    if lost:
        node.lose(0)
    else:
        node.inject("nvmlDeviceGetMigMode", error="UNKNOWN", times=None)
    with pytest.raises(GpuInUse, match="not known"):
        await agent.node.apply(StopMps(device, device, "a test's"))
    assert status(agent.fleet, device).state == "Ready"


async def test_a_device_given_away_meanwhile_keeps_its_daemon(
    rig: NodeRig, node: SimulatedNode
) -> None:
    """A pod got it after the plan was made: it finds its daemon, though it is no client yet."""
    async with (
        Kubelet(rig.folder / "pod-resources") as kubelet,
        rig.agent(allocations=KubeletUsage(kubelet.socket, deadline=30)) as agent,
    ):
        device = (await agent.made(WHOLE)).after.uuid
        planned = await agent.planned(NOTHING)
        assert [type(step) for step in planned.gpus[0].steps][:1] == [StopMps]
        kubelet.allocate("trainer", [f"{device}::0"], namespace="team")
        outcome = await execute(planned, agent.node, parallel=1)
        [problem] = outcome.gpus[0].problems
        assert problem.code is Code.IN_USE
        assert "team/trainer" in problem.message
        assert status(agent.fleet, device).state == "Ready"


@pytest.mark.parametrize("recreated_is_new", [pytest.param(False, marks=pytest.mark.full), True])
async def test_a_recut_with_daemons_before_and_after(
    rig: NodeRig, *, recreated_is_new: bool
) -> None:
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


# --- health ---------------------------------------------------------------------------------------


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
        return as_fenced(observed, found, lambda *_: "reset it"), found.reasons

    def begin_step(self, step: Step) -> None:
        self.steps.append((type(step).__name__, None))

    def end_step(self, step: Step, *, done: bool) -> None:
        self.steps.append((type(step).__name__, done))

    def say(self, gpu: str, placement: Placement) -> None:
        """Uncorrected errors there."""
        at = Moment(1.0, 1.0)
        place = Location(gpu, 1, None, placement)
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
        ill.say(gpu.uuid, left.placement)
        await agent.node.observe_gpu(gpu.uuid)
        assert status(agent.fleet, sick).trouble, "a daemon may be new on it"


async def test_health_hears_of_each_step(rig: NodeRig, node: SimulatedNode) -> None:
    ill = Ill()
    async with rig.agent(health=ill) as agent:
        (gpu,) = (await agent.node.observe()).gpus
        node.inject("nvmlDeviceSetMigMode", error="UNKNOWN")
        with pytest.raises(DriverError):
            await agent.node.apply(SetMigMode(gpu.uuid, True, "the test says so"))
        await agent.node.apply(SetMigMode(gpu.uuid, True, "the test says so"))
        await agent.node.observe_gpu(gpu.uuid)
        assert ill.seen[-1].gpus[0].in_mig_mode, "an event may name an instance from now on"
        name = "SetMigMode"
        assert ill.steps == [(name, None), (name, False), (name, None), (name, True)]


async def test_what_was_read_since_it_began_is_kept(rig: NodeRig) -> None:
    """It began before a step on GPU 0 and ends after it: GPU 0 is what the step made of it."""
    with simulated("h100-80gb:2") as node:
        async with rig.agent() as agent:
            first, _ = (await agent.node.observe()).gpus
            slow = node.inject(gpu=1, hang=True, times=1000)
            observing = asyncio.create_task(agent.node.observe())
            await until(lambda: slow.times < 1000)
            mode = ComputeMode.EXCLUSIVE_PROCESS
            await agent.node.apply(SetComputeMode(first.uuid, first.uuid, mode, "a test's"))
            node.clear_faults()
            observed = await observing
            assert [gpu.compute_mode for gpu in observed.gpus] == [mode, ComputeMode.DEFAULT]
            assert agent.node.seen == observed
