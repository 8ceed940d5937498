"""One daemon for two GPUs, on a simulated node: it comes, outlives the agent, and goes."""

import asyncio
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from nodeagent.mps.processes import CONTROL
from nodeagent.plan.desired import DesiredGpu
from nodeagent.plan.observed import Gpu
from nodeagent.plan.plan import Policy, StepResult, Verdict
from nodeagent.plan.problems import Code
from nodeagent.plan.steps import SetMigMode
from nodeagent.reconcile.executor import execute
from nodeagent.reconcile.owner import GpuOwners, Part
from nodeagent.simulation import SimulatedNode, simulated
from nodeagent.simulation.mps.clients import SimulatedClient
from tests.machine_load import until
from tests.mps.fleet_rig import US, status
from tests.reconcile.controller_rig import DEFAULT, EXCLUSIVE, Agent, NodeRig, document, modes

TOGETHER = document("{devices: [0, 1], mps: {clients: {memory: 4Gi}, together: true}}")
APART = document("{devices: [0, 1], mps: {clients: {memory: 4Gi}}}")
NOTHING = document("{devices: [0, 1], mig: disabled}")
WITHOUT_ONE = document("{devices: [1], mig: disabled}")


@pytest.fixture
def node(rig: NodeRig) -> Iterator[SimulatedNode]:
    with simulated("h100-80gb:2", state=rig.state) as made:
        yield made


async def uuids(agent: Agent) -> list[str]:
    """The first is that of the daemon."""
    return sorted(gpu.uuid for gpu in (await agent.node.observe()).gpus)


def client(rig: NodeRig, primary: str) -> SimulatedClient:
    lines = (rig.run_dir / "mps" / primary / "env" / "clients-0.env").read_text().splitlines()
    environment = dict(line.split("=", 1) for line in lines)
    pipes = rig.pipes(primary)
    return SimulatedClient(
        pipes, uid=US, environment=environment, state=rig.state, device=0, beside=(1,)
    )


async def test_from_own_daemons_to_one_and_to_none(
    rig: NodeRig, node: SimulatedNode, agent: Agent
) -> None:
    await agent.made(APART)
    assert len(rig.processes(CONTROL)) == 2
    await agent.made(TOGETHER)
    first, second = await uuids(agent)
    [daemon] = rig.processes(CONTROL)
    assert daemon.pipe_directory == str(rig.pipes(first))
    assert modes(node) == [EXCLUSIVE, EXCLUSIVE]
    env = (rig.run_dir / "mps" / first / "env" / "clients-0.env").read_text()
    assert f"CUDA_VISIBLE_DEVICES={first},{second}\n" in env
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=4096M,1=4096M\n" in env
    seen = await agent.node.observe()
    assert {gpu.mps.pid for gpu in seen.gpus if gpu.mps} == {daemon.pid}
    assert (await agent.planned(TOGETHER)).verdict is Verdict.IN_SYNC
    other = next(gpu.index for gpu in seen.gpus if gpu.uuid == second)
    node.card(other).state.compute_mode = DEFAULT
    await agent.node.observe()
    await until(lambda: not status(agent.fleet, first).is_ready)
    assert "compute mode is default" in status(agent.fleet, first).why
    await agent.made(NOTHING)
    assert (rig.processes(), modes(node)) == ([], [DEFAULT, DEFAULT])
    assert rig.announced() == ""


async def test_a_lost_gpu_leaves_it_to_the_others(
    rig: NodeRig, node: SimulatedNode, agent: Agent
) -> None:
    await agent.made(TOGETHER)
    first, second = await uuids(agent)
    pid = status(agent.fleet, first).pid
    for uuid in (first, second):
        index = next(gpu.index for gpu in (await agent.node.observe()).gpus if gpu.uuid == uuid)
        node.lose(index)
        planned = await agent.planned(TOGETHER)
        assert (planned.verdict, planned.steps) == (Verdict.BLOCKED, ())
        assert status(agent.fleet, first).pid == pid


@pytest.mark.parametrize("which", [0, 1])
async def test_a_gpu_that_was_taken_out_does_not_keep_it(
    rig: NodeRig, node: SimulatedNode, which: int
) -> None:
    async with rig.agent() as agent:
        await agent.made(TOGETHER)
        gone = (await uuids(agent))[which]
        index = next(gpu.index for gpu in (await agent.node.observe()).gpus if gpu.uuid == gone)
    node.swap(index)
    async with rig.agent() as agent:
        await agent.made(document(f"{{devices: [{1 - index}], mig: disabled}}"))
        assert rig.processes(CONTROL) == []


async def test_clients_keep_it_and_the_next_agent_adopts_it(
    rig: NodeRig, node: SimulatedNode
) -> None:
    async with rig.agent() as agent:
        await agent.made(TOGETHER)
        first, second = await uuids(agent)
        pid = status(agent.fleet, first).pid
    with client(rig, first) as program:
        program.wait_until_accepted()
        async with rig.agent() as agent:
            assert status(agent.fleet, first).pid == pid
            await until(lambda: bool(status(agent.fleet, first).clients))
            assert (await agent.planned(TOGETHER)).verdict is Verdict.IN_SYNC
            for text in (NOTHING, APART, WITHOUT_ONE):
                refused = await agent.planned(text)
                assert {gpu.verdict for gpu in refused.gpus} == {Verdict.BLOCKED}
                assert str(program.pid) in refused.gpus[0].problems[0].message
    async with rig.agent() as agent:
        await agent.made(WITHOUT_ONE)  # which ends it for the other, too
        assert rig.processes() == []
        gpu = (await agent.node.observe()).gpu(second)
        assert gpu is not None
        assert gpu.mps is None


@pytest.mark.parametrize("what", ["python", "MIG mode", "does not answer"])
async def test_what_came_on_another_gpu_since_it_was_planned(
    rig: NodeRig, node: SimulatedNode, agent: Agent, what: str
) -> None:
    await agent.made(document("{devices: [1], mps: {clients: {}}}"))  # its mode is set
    second = (await agent.node.observe()).gpus[1].uuid
    await agent.fleet.stop(second)
    planned = await agent.planned(TOGETHER)
    match what:
        case "python":
            node.occupy(1, command="python")
        case "MIG mode":
            await agent.node.apply(SetMigMode(second, True, ""))
        case _:
            node.lose(1)
    outcome = await execute(planned, agent.node, parallel=2)
    assert rig.processes(CONTROL) == []
    [problem] = (problem for gpu in outcome.gpus for problem in gpu.problems)
    assert problem.code == Code.IN_USE
    assert "is not started: GPU 1 (NVIDIA H100 80GB HBM3) " in problem.message
    assert what in problem.message
    if what == "MIG mode":
        assert "mig: disabled" in problem.remedy
        await agent.made(
            document("{devices: [0, 1], mig: disabled, mps: {clients: {}, together: true}}")
        )
    if what == "python":
        assert {gpu.verdict for gpu in (await agent.planned(TOGETHER)).gpus} == {Verdict.BLOCKED}
        node.release(1)
        await agent.made(TOGETHER)


async def test_it_is_not_ended_while_the_other_gpu_is_given_to_a_pod(
    rig: NodeRig, node: SimulatedNode, agent: Agent
) -> None:
    """A pod that has just got the GPU is no client yet, and finds the daemon when it starts."""
    await agent.made(TOGETHER)
    first, _ = await uuids(agent)
    index = next(gpu.index for gpu in (await agent.node.observe()).gpus if gpu.uuid == first)
    node.occupy(index, command="python")
    outcome = await agent.reach(document(f"{{devices: [{1 - index}], mig: disabled}}"))
    assert [problem.code for problem in outcome.gpus[0].problems] == [Code.IN_USE]
    assert len(rig.processes(CONTROL)) == 1


async def test_a_claim_that_got_another_gpu_since_makes_it_wait(
    rig: NodeRig, node: SimulatedNode, agent: Agent
) -> None:
    owners = GpuOwners(nullcontext(agent.node), Policy())
    await owners.open()
    first, second = await uuids(agent)
    await owners.observe()
    planned = await agent.planned(TOGETHER)

    async def as_it_is(_: Gpu) -> DesiredGpu:
        return DesiredGpu(None, "claim team/mine")

    await owners.settle(Part(second, as_it_is))
    outcome = await owners.settle_plan(planned, stop=asyncio.Event(), on_progress=lambda _: None)
    assert outcome.gpus == ()
    assert rig.processes() == []
    await owners.observe()
    outcome = await owners.settle_plan(planned, stop=asyncio.Event(), on_progress=lambda _: None)
    assert [gpu.problems for gpu in outcome.gpus] == [(), ()]
    assert status(agent.fleet, first).is_ready
    assert all(gpu.mps for gpu in owners.observed.gpus)


async def test_nothing_is_taken_away_for_one_that_fails_on_another_gpu(
    rig: NodeRig, node: SimulatedNode, agent: Agent
) -> None:
    """Nor when the first one's turn comes again while the other still waits for its own."""
    first, _ = await uuids(agent)
    index = next(gpu.index for gpu in (await agent.node.observe()).gpus if gpu.uuid == first)
    await agent.made(document(f"{{devices: [{index}], mps: {{clients: {{}}}}}}"))
    pid = status(agent.fleet, first).pid
    node.inject("nvmlDeviceSetComputeMode", error="UNKNOWN", gpu=1 - index, times=None)
    outcome = await agent.reach(TOGETHER, parallel=2)
    assert status(agent.fleet, first).pid == pid
    own = next(gpu for gpu in outcome.gpus if gpu.plan.before.uuid == first)
    assert {report.result for report in own.steps} == {StepResult.SKIPPED}
    assert own.problems[0].message.startswith("one MPS daemon is to serve it with others: ")
    node.clear_faults()
    await agent.made(TOGETHER)
    assert status(agent.fleet, first).pid != pid
