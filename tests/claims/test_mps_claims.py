"""Claims with MPS on a simulated node: the daemon comes, serves and goes with its claim."""

import asyncio
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from nodeagent.claims.capacity import CLIENTS, MEMORY, THREADS
from nodeagent.claims.model import ClaimRefused, RecordPhase
from nodeagent.claims.offering.gpu_rules import GpuRules
from nodeagent.claims.serving.daemons import ClaimDaemons
from nodeagent.documents.reading import digest_of
from nodeagent.errors import NodeagentError, StillInUse
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.plan import Policy
from nodeagent.reconcile.owner import GpuOwners
from nodeagent.simulation import SimulatedNode, simulated
from tests.claims.machine import UIDS, Home, laid_out, pool_of, reserve
from tests.claims.mps_rig import DEVICE, GIB, LIMITS, agent, client, share, shared, unresolved
from tests.mps.fleet_rig import US, ready, status
from tests.reconcile.controller_rig import EXCLUSIVE, NodeRig, modes
from tests.simulated_cluster.allocator import Allocated


@pytest.fixture
def node(machine: NodeRig) -> Iterator[SimulatedNode]:
    with simulated("h100-80gb:1", state=machine.state) as made:
        yield made


async def test_the_next_agent_and_the_next_start_of_the_machine(
    node: SimulatedNode, machine: NodeRig, home: Home
) -> None:
    """The daemon is taken over as it is; after a reboot it is made again before the kubelet asks,
    and so is one that somebody ended.
    """
    async with agent(home, machine) as (claims, rig, parts):
        name = shared(home, rig, 0, DEVICE, **LIMITS)
        [device] = await claims.prepare(*name)
        pid = status(parts.fleet, device.uuid).pid
    async with agent(home, machine) as (claims, rig, parts):
        await ready(parts.fleet, device.uuid)
        assert await claims.prepare(*name) == (device,)
        assert status(parts.fleet, device.uuid).pid == pid
    for process in machine.processes():
        os.kill(process.pid, signal.SIGKILL)
    node.reboot()
    shutil.rmtree(machine.run_dir)
    for file in home.files():
        (home.cdi / file).unlink()
    home.boot_id = "second"
    async with agent(home, machine) as (claims, rig, parts):
        assert await unresolved(claims, home, rig) == []
        [again] = claims.store.records[0].devices
        first = status(parts.fleet, again.uuid)
        assert first.is_ready
        assert first.pid != pid
        assert claims.store.records[0].phase is RecordPhase.READY
        await parts.fleet.stop(again.uuid)
        assert await unresolved(claims, home, rig) == []
        assert status(parts.fleet, again.uuid).is_ready


async def test_a_daemon_that_does_not_come(
    node: SimulatedNode, machine: NodeRig, home: Home
) -> None:
    """The claim is not ready, and says why, until the daemon serves; then its slice is the one that
    was made first. Another user's claim beside it is refused.
    """
    async with agent(home, machine) as (claims, rig, parts):
        name = shared(home, rig, 0, DEVICE, **LIMITS)
        machine.knobs(None).turn("start_error", "no luck")
        for _ in range(2):  # the second call has no step to take any more
            with pytest.raises(NodeagentError, match=r"^claim team/trainer-0: .* MPS daemon"):
                await claims.prepare(*name)
        assert (laid_out(node), home.files()) == ([(2, 1)], [])
        assert claims.store.records[0].phase is RecordPhase.INTENT
        foreign = shared(home, rig, 1, "mig-1g-10gb-5", replicas=2, user=f"{US + 1}:{US + 1}")
        with pytest.raises(NodeagentError, match=r"trainer-1 wants MPS as user .*team/trainer-0"):
            await claims.prepare(*foreign)
        machine.knobs(None).clear()
        parts.fleet.retry()
        [uuid] = [state.device for state in parts.fleet.statuses()]
        await ready(parts.fleet, uuid)
        [device] = await claims.prepare(*name)
        assert (device.uuid, laid_out(node)) == (uuid, [(2, 1)])
        await claims.release(UIDS[0])
        assert parts.fleet.statuses() == ()


@pytest.mark.parametrize(
    ("board", "name", "threads"), [("l40s", "gpu", 17.78), ("h100-80gb", "mig-2g-20gb-2", 40.76)]
)
async def test_shares_of_one_device(
    board: str, name: str, threads: float, machine: NodeRig, home: Home
) -> None:
    """One daemon holds the programs of both claims to the limits of their shares. A release waits
    for the claim's own pods alone; the daemon outlives it, the agent and the machine's run, and
    ends with the last claim. So does a MIG device, which is made with the first.
    """
    pods: dict[int, str] = {}
    with simulated(f"{board}:1", state=machine.state) as node:
        async with agent(home, machine, share="memory", pods=pods) as (claims, rig, parts):
            names = [share(home, rig, number, device=name) for number in (0, 1)]
            for claim in names:
                reserve(claims, claim, f"pod-of-{claim[1]}")
            [other], [first] = [await claims.prepare(*claim) for claim in reversed(names)]
            uuid = first.device_uuid
            before = status(parts.fleet, uuid)
            assert (before.is_ready, other.device_uuid) == (True, uuid)
            assert modes(node).count(EXCLUSIVE) == 1
            assert set(before.shares or ()) == {*UIDS[:2]}
            assert machine.published(uuid) == set()  # containers have the claims' CDI files
            with client(home, machine, first) as program:
                assert (program.terms["limit"], program.terms["percentage"]) == (8 * GIB, threads)
                pods[program.pid] = "pod-of-trainer-0"
                await claims.release(UIDS[1])
                assert set(status(parts.fleet, uuid).shares or ()) == {UIDS[0]}
                with pytest.raises(StillInUse, match=rf"GPU 0 .*{program.pid}"):
                    await claims.release(UIDS[0])
                program.allocate(GIB)
            assert status(parts.fleet, uuid).pid == before.pid
        for process in machine.processes():
            os.kill(process.pid, signal.SIGKILL)
        node.reboot()
        shutil.rmtree(machine.run_dir)
        home.boot_id = "second"
        async with agent(home, machine, share="memory") as (claims, rig, parts):
            [again] = await claims.prepare(*names[0])
            assert status(parts.fleet, again.device_uuid).is_ready
            await claims.release(UIDS[0])
            assert (parts.fleet.statuses(), laid_out(node)) == ((), [])
    assert (home.records(), home.files()) == ([], [])


async def test_a_share_on_what_a_plan_left(machine: NodeRig, home: Home) -> None:
    """Its daemon is taken over; the plan's slots are not published any more."""
    with simulated("l40s:1", state=machine.state):
        async with agent(home, machine, share="memory") as (claims, rig, parts):
            for entries in (f"{{devices: [0], mps: {{replicas: 2, user: {US}}}}}", ""):
                rig.offer(text := f"version: v1\ngpus: [{entries}]".encode())
                await rig.until(lambda: rig.state.digest == digest_of(text))
                await rig.rest()
            [before] = parts.fleet.statuses()
            assert machine.published(before.device) == {"replica-0", "replica-1"}
            await claims.prepare(*share(home, rig, 0))
            assert status(parts.fleet, before.device).pid == before.pid
            assert machine.published(before.device) == set()


async def test_a_further_share_costs_little(
    machine: NodeRig, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU is read before the step, which changes the daemon alone; the disk is waited for with
    its intent, its result and what the daemon is to be.
    """
    syncs, fsync = list[int](), os.fsync

    def counted(file: int) -> None:
        syncs.append(file)
        fsync(file)

    monkeypatch.setattr(os, "fsync", counted)
    with simulated("l40s:1", state=machine.state) as node:
        async with machine.agent() as parts:
            owners = GpuOwners(nullcontext(parts.node), Policy())
            await owners.open()
            observed = await parts.node.observe()

            async def observe() -> ObservedNode:
                return observed

            user = f"{US}:{US if os.geteuid() == 0 else os.getegid()}"
            daemons = ClaimDaemons(user, machine.run_dir, False, parts.fleet.poll)
            rules = GpuRules(share="memory")
            claims = home.node_claims(owners, observe, daemons, lambda _: rules)
            consumed = {MEMORY: 8 * GIB, THREADS: 0, CLIENTS: 1}
            for number in (0, 1):
                node.journal.clear()
                syncs.clear()
                await claims.prepare(*home.claim(number, Allocated(pool_of(node), "gpu", consumed)))
            assert (node.journal.total("nvmlDeviceGetComputeMode"), len(syncs)) == (1, 3)
            await owners.close()


@pytest.mark.parametrize("mended", [True, False])
async def test_a_release_beside_a_record_that_cannot_be_read(
    machine: NodeRig, home: Home, *, mended: bool
) -> None:
    """The daemon stays as it is, with the share that is not known: its pod may be idle just now. It
    ends with the claim, or when nobody uses it after a person has removed the record.
    """
    with simulated("l40s:1", state=machine.state):
        async with agent(home, machine, share="memory") as (claims, rig, parts):
            names = [share(home, rig, number) for number in (0, 1)]
            [device], _ = [await claims.prepare(*name) for name in names]
            before = status(parts.fleet, device.gpu).pid
        damaged = home.records_dir / home.records()[0]
        content = damaged.read_text()
        damaged.write_text("cut off")
        async with agent(home, machine, share="memory") as (claims, rig, parts):
            await ready(parts.fleet, device.gpu)
            await claims.release(UIDS[1])
            assert await unresolved(claims, home, rig) == []
            after = status(parts.fleet, device.gpu)
            assert (after.pid, UIDS[0] in (after.shares or {})) == (before, True)
            if mended:
                damaged.write_text(content)
                await claims.store.reread()
                await claims.release(UIDS[0])
            else:
                damaged.unlink()
                with client(home, machine, device):
                    await unresolved(claims, home, rig)
                    assert status(parts.fleet, device.gpu).pid == before
                await parts.fleet.poll()
                await unresolved(claims, home, rig)
            assert parts.fleet.statuses() == ()


@pytest.mark.usefixtures("node")
async def test_two_daemons_for_one_container(machine: NodeRig, home: Home) -> None:
    """The kubelet asks for both claims at once: one is refused, whichever comes later, and nothing
    is made for it; apart they are ready.
    """
    async with agent(home, machine) as (claims, rig, _):
        first, second = (
            shared(home, rig, number, device, **LIMITS)
            for number, device in enumerate(("mig-1g-10gb-2", "mig-1g-10gb-4"))
        )
        names = [name for _, name, _ in (first, second)]
        for name in names:
            status = home.claims["team", name]["status"]
            status["reservedFor"] = [{"resource": "pods", "name": "pod", "uid": "1"}]
        together = [{"name": "main", "resources": {"claims": [{"name": n} for n in names]}}]
        apart = [{"name": n, "resources": {"claims": [{"name": n}]}} for n in names]
        spec: dict[str, Any] = {
            "containers": together,
            "resourceClaims": [{"name": n, "resourceClaimName": n} for n in names],
        }
        named = {"namespace": "team", "name": "pod"}
        home.pod_objects["team", "pod"] = {"metadata": named, "spec": spec}
        calls = [claims.prepare(*claim) for claim in (first, second)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        refused = [found for found in results if isinstance(found, ClaimRefused)]
        assert refused
        assert "container main of pod team/pod has devices that exclude" in str(refused[0])
        assert len(claims.store.records) == 2 - len(refused)
        spec["containers"] = apart
        for claim in (first, second):
            await claims.prepare(*claim)
        assert [one.phase for one in claims.store.records] == [RecordPhase.READY] * 2
