"""Daemons of the node: published to clients, kept from Ready by a mode, left to the next agent."""

from __future__ import annotations

import os
import signal

from nodeagent.mps.lifecycle.model import ReportSubject
from nodeagent.mps.processes import SERVER
from nodeagent.plan.plan import Verdict
from nodeagent.plan.problems import Code
from nodeagent.plan.steps import SetComputeMode, StartMps
from nodeagent.simulation import SimulatedNode
from tests.mps.fleet_rig import status, until
from tests.reconcile.controller_rig import (
    DEFAULT,
    EXCLUSIVE,
    NOTHING,
    WHOLE,
    Agent,
    NodeRig,
    modes,
)

LARGER = WHOLE.replace("4Gi", "8Gi")

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
