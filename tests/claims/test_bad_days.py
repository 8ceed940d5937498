"""Bad days: what the user of a pod reads when something fails, and that it mends itself.

Others are where their part is tested: a kubelet that restarts in `cluster/kubelet/plugin`, reboots
and claims of vanished pods in `test_upkeep`, crashes in `test_crash_matrix`.
"""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from nodeagent.claims.capacity import CLIENTS, MEMORY, THREADS
from nodeagent.claims.model import ClaimHeldUp, ClaimRefused
from nodeagent.claims.names import WHOLE_GPU
from nodeagent.claims.serving.cdi import file_name
from nodeagent.claims.serving.claim_object import ClaimObject, read_claim
from nodeagent.cluster.client import requests
from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.errors import NodeagentError
from nodeagent.simulation import SimulatedNode, simulated
from tests.claims.borders import Border, WatchedHome, watched
from tests.claims.machine import UIDS, Home, allocated, laid_out, pool_of, until_done
from tests.claims.mps_rig import agent
from tests.cluster.client.rig import kubeconfig
from tests.mps.fleet_rig import status
from tests.reconcile.controller_rig import NodeRig
from tests.rig import CREATE
from tests.simulated_cluster.allocator import Allocated
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.store import Key

DEVICE = "mig-1g-10gb-2"
SOON = 30.0  # seconds that anything may take on a busy machine


class Cluster(Home):
    """A machine whose claims are at an API server."""

    access: ClusterAccess

    async def fetch(self, namespace: str, name: str) -> ClaimObject | None:
        return await self.access.find(requests.get_claim(namespace, name), read_claim)


# --- the cluster ----------------------------------------------------------------------------------


async def test_the_api_server_is_away(node: SimulatedNode, folder: Path) -> None:
    """Nothing is made before the claim can be read; one that is deleted meanwhile is no fault."""
    home = Cluster(folder)
    async with ApiServer() as api:
        home.access = ClusterAccess(kubeconfig(folder, api.url))
        body = {"metadata": {"name": "trainer"}, "status": allocated((pool_of(node), DEVICE))}
        made = api.store.create("resourceclaims", "team", body)
        claim = "team", "trainer", str(made["metadata"]["uid"])
        async with home.access, home.core() as (claims, _):
            await api.stop()
            with pytest.raises(NodeagentError) as away:
                await claims.prepare(*claim)
            assert str(away.value) == (
                f"{api.url} does not answer the ResourceClaim team/trainer: Connection refused "
                "(`nodeagent check` says what is missing; the agent goes on with what it knows and "
                "tries again)"
            )
            assert (laid_out(node), home.records()) == ([], [])
            await api.start()
            await claims.prepare(*claim)
            assert laid_out(node) == [(2, 1)]
            await api.stop()
            await claims.release(claim[2])  # which needs no claim
            assert (laid_out(node), home.records()) == ([], [])
            await api.start()
            api.store.delete(Key("resourceclaims", "team", "trainer"))
            with pytest.raises(ClaimRefused) as gone:
                await claims.prepare(*claim)
            assert str(gone.value) == (
                "claim team/trainer is gone (its pods are created again with it; `kubectl get pods "
                "-n team` shows them)"
            )


async def test_128_claims_at_once(home: Home) -> None:
    """On eight cards with room for 56: whoever comes too late reads who has the device. The next
    agent, of which the kubelet asks for all of them again, makes nothing anew.
    """
    with simulated("h100-80gb:8") as node:
        devices = [(pool_of(node, n % 8), f"mig-1g-10gb-{n // 8 % 7}") for n in range(128)]
        names = [home.claim(n, device) for n, device in enumerate(devices)]
        async with home.core() as (claims, _):
            answers = await asyncio.gather(
                *(claims.prepare(*name) for name in names), return_exceptions=True
            )
            late = [(n, str(a)) for n, a in enumerate(answers) if isinstance(a, ClaimRefused)]
            holders = {devices[n]: n for n, a in enumerate(answers) if isinstance(a, tuple)}
            assert (len(holders), len(late)) == (56, 72)
            for n, message in late:
                pool, device = devices[n]
                holder = holders[pool, device]  # as a rule the first; threads may overtake others
                assert message == (
                    f"claim team/trainer-{n} was allocated a device that is held: {device} of "
                    f"claim team/trainer-{holder} (wait until the pods of claim "
                    f"team/trainer-{holder} have ended, or have this one's scheduled again: "
                    "`kubectl delete pod -n team "
                    f"$(kubectl get resourceclaim -n team trainer-{n} -o "
                    "jsonpath='{.status.reservedFor[*].name}')`)"
                )
            assert sum(len(laid_out(node, gpu)) for gpu in range(8)) == 56
        node.journal.clear()
        async with home.core() as (claims, _):
            again = await asyncio.gather(*(claims.prepare(*names[n]) for n in holders.values()))
            assert again == [answers[n] for n in holders.values()]
            assert not node.journal.named("nvmlDeviceCreate*")
            await asyncio.gather(*(claims.release(uid) for _, _, uid in names))
        assert sum(len(laid_out(node, gpu)) for gpu in range(8)) == 0
        assert (home.records(), home.files()) == ([], [])


async def test_16_shares_at_once(home: Home) -> None:
    """Of a GPU with room for 11, as a scheduler that over-commits may allocate them: the others
    read who has it, and have theirs when that is released.
    """
    with NodeRig() as machine, simulated("l40s:1", state=machine.state) as node:
        share = Allocated(pool_of(node), WHOLE_GPU, {MEMORY: 4 << 30, THREADS: 0, CLIENTS: 1})
        names = [home.claim(number, share) for number in range(16)]
        async with agent(home, machine, share="memory") as (claims, _, parts):
            answers = await asyncio.gather(
                *(claims.prepare(*name) for name in names), return_exceptions=True
            )
            late = [n for n, found in enumerate(answers) if isinstance(found, ClaimHeldUp)]
            held = [n for n, found in enumerate(answers) if isinstance(found, tuple)]
            assert (len(held), len(late)) == (11, 5)
            said = str(answers[late[0]])
            assert f"trainer-{late[0]} was allocated 4Gi of GPU 0" in said
            assert f"claim team/trainer-{held[0]} has 4Gi" in said
            uuid = node.card(0).identity.uuid
            assert {*(status(parts.fleet, uuid).shares or {})} == {names[n][2] for n in held}
            for number in held:
                await claims.release(names[number][2])
            for number in late:
                await claims.prepare(*names[number])
            await asyncio.gather(*(claims.release(names[number][2]) for number in late))
            assert parts.fleet.statuses() == ()
    assert (home.records(), home.files()) == ([], [])


# --- the driver -----------------------------------------------------------------------------------


async def test_a_driver_that_hangs_for_long(node: SimulatedNode, home: Home) -> None:
    """The step is given up, and the card left alone; what the call made after all is adopted."""
    async with home.core(step_deadline=1.0) as (claims, _):
        name = home.claim(0, (pool_of(node), DEVICE))
        hang = node.inject(CREATE, hang=True)
        with pytest.raises(NodeagentError) as caught:
            await claims.prepare(*name)
        assert str(caught.value) == (
            "claim team/trainer-0: GPU 0: could not create 1g.10gb at 2: GPU 0: creating 1g.10gb "
            "at 2:1 did not return within 1 s; nvmlDeviceCreateGpuInstanceWithPlacement is still "
            "in the driver (look at `dmesg | grep NVRM`; if it lasts, reboot the node)"
        )
        node.clear_faults(hang)
        await until_done(lambda: claims.prepare(*name))
        assert laid_out(node) == [(2, 1)]
        assert len(node.journal.named(CREATE)) == 1


async def test_a_driver_that_refuses_to_destroy(node: SimulatedNode, home: Home) -> None:
    """Others come and go meanwhile; when it lets go, the agent ends what the kubelet began."""
    async with home.core(step_deadline=1.0) as (claims, hardware):
        await claims.prepare(*home.claim(0, (pool_of(node), DEVICE)))
        refusal = node.inject("nvmlGpuInstanceDestroy", error="IN_USE", times=None)
        with pytest.raises(NodeagentError) as caught:
            await claims.release(UIDS[0])
        assert str(caught.value) == (
            "claim team/trainer-0: GPU 0: could not destroy 1g.10gb at 2: GPU 0: the GPU "
            "instance is still in use, or still has compute instances "
            "[nvmlGpuInstanceDestroy: InUse, NVML code 19] (`fuser -v /dev/nvidia*` shows what "
            "uses it: end it, or wait for its end)"
        )
        assert laid_out(node) == [(2, 1)]
        await claims.prepare(*home.claim(1, (pool_of(node), "mig-1g-10gb-5")))
        node.clear_faults(refusal)
        await hardware.observe()
        await home.upkeep(claims).round()
        assert laid_out(node) == [(5, 1)]
        assert (home.records(), home.files()) == ([f"{UIDS[1]}.json"], [file_name(UIDS[1])])


# --- the disk -------------------------------------------------------------------------------------


def no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


async def test_a_full_disk_at_each_write(folder: Path) -> None:
    """Of records and the CDI file: nothing is begun that is not written down, and when there is
    room again, the next call goes on.
    """
    full = 0
    while True:
        border = Border(full, error=no_space, concerns=lambda what: what.startswith("write"))
        home = WatchedHome(folder / str(full))
        with simulated("h100-80gb:1") as node, watched(node, home, border):
            name = home.claim(0, (pool_of(node), DEVICE))
            async with home.core() as (claims, _):
                calls = partial(claims.prepare, *name), partial(claims.release, name[2])
                with border.counting():
                    messages = [said for call in calls if (said := await failing_once(call))]
                assert (laid_out(node), home.records(), home.files()) == ([], [], [])
        if not border.failed:
            break
        record, file = home.records_dir / f"{UIDS[0]}.json", home.cdi / file_name(UIDS[0])
        if file.name in border.failed:
            expected = (
                f"{file} cannot be written: No space left on device (make room in {home.cdi}; "
                "the agent retries)"
            )
        else:
            expected = (
                f"the record of claim team/trainer-0 cannot be kept ({record}): No space left on "
                f"device (make room in {record.parent} (`df -h {record.parent}`) and let the agent "
                "write there; the agent retries)"
            )
        assert messages == [expected]
        full += 1
    assert full == 4  # intent, CDI file, ready, releasing


async def failing_once(call: Callable[[], Awaitable[object]]) -> str:
    """What is said where the first call fails; the second does not."""
    try:
        await call()
    except NodeagentError as error:
        await call()
        return str(error)
    return ""
