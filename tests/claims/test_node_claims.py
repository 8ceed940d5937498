"""Claims on a simulated node, from the API server's object to the CDI file and back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nodeagent.claims.cdi_files import ToolkitEdits
from nodeagent.claims.model import Phase
from nodeagent.claims.node_claims import ClaimPlaces, NodeClaims
from nodeagent.claims.records import read_records
from nodeagent.errors import NodeagentError, StillInUse
from nodeagent.gpu.capability_files import Instance
from nodeagent.reconcile.plan_update import NoPlan
from nodeagent.simulation import SimulatedNode, simulated
from nodeagent.views.node_state import Phase as NodePhase
from tests.rig import Rig, running

NODE = "gpu-node-0"
UIDS = [f"0000000{n}-1111-2222-3333-444444444444" for n in range(9)]
CREATE = "nvmlDeviceCreateGpuInstance*"
TOOLKIT = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "devices": [{"name": "all", "containerEdits": {}}],
    "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]},
}


def capabilities() -> dict[int, Instance]:
    """As /proc/driver/nvidia-caps/mig-minors has it for two GPUs."""
    numbers: dict[int, Instance] = {}
    for gpu in range(2):
        for instance in range(15):
            for compute in (None, *range(8)):
                numbers[len(numbers) + 3] = (gpu, instance, compute)
    return numbers


class Home:
    """One machine: its API server's claims, its folders, its present agent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.boot_id = "first"
        self.claims: dict[tuple[str, str], Any] = {}
        (folder / "etc-cdi").mkdir()
        (folder / "etc-cdi" / "nvidia.json").write_text(json.dumps(TOOLKIT))
        self.records_dir = folder / "state" / "claims"
        self.cdi = folder / "cdi"

    def claim(self, number: int, *devices: tuple[str, str], name: str = "") -> tuple[str, str, str]:
        """Allocate pools and devices to a claim; what the kubelet calls it."""
        name = name or f"trainer-{number}"
        results = [
            {"request": f"r{i}", "driver": "gpu.nodeagent.io", "pool": pool, "device": device}
            for i, (pool, device) in enumerate(devices)
        ]
        self.claims["team", name] = {
            "metadata": {"namespace": "team", "name": name, "uid": UIDS[number]},
            "status": {"allocation": {"devices": {"results": results}}},
        }
        return "team", name, UIDS[number]

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[tuple[NodeClaims, Rig]]:
        """One agent's life, without a plan."""

        async def fetch(namespace: str, name: str) -> object | None:
            return self.claims.get((namespace, name))

        async def observe() -> Any:
            return rig.state.observed

        rig = Rig(self.folder, reserved=lambda gpu: claims.reserved(gpu))  # noqa: PLW0108  # made below
        claims = NodeClaims(
            ClaimPlaces(NODE, self.boot_id, self.records_dir, self.cdi),
            change=rig.changes.change,
            fetch=fetch,
            observe=observe,
            capabilities=capabilities,
            toolkit=ToolkitEdits([self.folder / "etc-cdi"]).read,
        )
        await claims.load()
        async with running(rig):
            rig.control.offer(NoPlan("no plan"))
            await rig.settle(NodePhase.NO_PLAN)
            yield claims, rig

    def files(self) -> list[str]:
        """In the CDI directory."""
        return sorted(path.name for path in self.cdi.iterdir()) if self.cdi.exists() else []

    def records(self) -> list[str]:
        """Names of the files."""
        return sorted(path.name for path in self.records_dir.iterdir())


@pytest.fixture
def node() -> Iterator[SimulatedNode]:
    """Two cards that switch MIG at once."""
    with simulated("h100-80gb:2") as node:
        yield node


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A machine on which nothing was claimed yet."""
    return Home(tmp_path)


def pool(rig: Rig, gpu: int = 0) -> str:
    """Of a GPU by index."""
    return f"{NODE}/{rig.gpu(gpu).uuid.lower()}"


def laid_out(node: SimulatedNode, gpu: int = 0) -> list[tuple[int, int]]:
    """What the hardware has: start and size of each GPU instance."""
    instances = node.card(gpu).state.instances
    return sorted((one.start, one.size) for one in instances)


async def test_a_slice_comes_with_the_claim_and_goes_with_it(
    node: SimulatedNode, home: Home
) -> None:
    """On an empty card out of MIG mode; the record and the CDI file come and go with it."""
    async with home.agent() as (claims, rig):
        name = home.claim(0, (pool(rig), "mig-1g-10gb-6"))
        [device] = await claims.prepare(*name)
        assert laid_out(node) == [(6, 1)]
        assert home.records() == [f"{UIDS[0]}.json"]
        [file] = home.files()
        assert file == f"nodeagent.io-claim_{UIDS[0]}.json"
        document = json.loads((home.cdi / file).read_text())
        [entry] = document["devices"]
        assert device.cdi_id == f"nodeagent.io/claim={entry['name']}"
        paths = [node["path"] for node in entry["containerEdits"]["deviceNodes"]]
        known = {what: number for number, what in capabilities().items()}
        assert device.instance is not None
        caps = [known[0, device.instance, None], known[0, device.instance, device.compute]]
        assert paths == ["/dev/nvidia0", *(f"/dev/nvidia-caps/nvidia-cap{n}" for n in caps)]
        [record] = read_records(home.records_dir)
        assert record in claims.records
        assert claims.records[0].phase is Phase.READY
        await claims.release(UIDS[0])
        assert laid_out(node) == []
        assert (home.records(), home.files()) == ([], [])
        await claims.release(UIDS[0])  # the kubelet may ask once more


async def test_again_changes_nothing_and_mends_what_is_gone(
    node: SimulatedNode, home: Home
) -> None:
    """A second prepare verifies: the same ids; a lost CDI file and a lost instance come again."""
    async with home.agent() as (claims, rig):
        name = home.claim(0, (pool(rig), "mig-2g-20gb-0"))
        first = await claims.prepare(*name)
        assert await claims.prepare(*name) == first
        (home.cdi / home.files()[0]).unlink()
        assert await claims.prepare(*name) == first
        assert len(home.files()) == 1
        node.card(0).state.instances.clear()
        again = await claims.prepare(*name)
        assert laid_out(node) == [(0, 2)]
        assert [d.cdi_id for d in again] == [d.cdi_id for d in first]
        await claims.release(UIDS[0])
        assert laid_out(node) == []


async def test_seven_at_once_and_two_gpus_in_one_claim(node: SimulatedNode, home: Home) -> None:
    """Claims of one card take turns; one claim may have devices of several cards."""
    async with home.agent() as (claims, rig):
        names = [home.claim(n, (pool(rig), f"mig-1g-10gb-{n}")) for n in range(7)]
        await asyncio.gather(*(claims.prepare(*name) for name in names))
        assert laid_out(node) == [(n, 1) for n in range(7)]
        await asyncio.gather(*(claims.release(uid) for uid in UIDS[:6]))
        both = home.claim(
            7, (pool(rig), "mig-1g-10gb-0"), (pool(rig, 1), "mig-3g-40gb-4"), name="both"
        )
        assert len(await claims.prepare(*both)) == 2
        assert (laid_out(node), laid_out(node, 1)) == ([(0, 1), (6, 1)], [(4, 4)])
        await claims.release(UIDS[7])
        assert (laid_out(node), laid_out(node, 1)) == ([(6, 1)], [])


async def test_two_claims_never_have_the_same_part(node: SimulatedNode, home: Home) -> None:
    """Whatever the scheduler says: the second is refused with the first's name."""
    async with home.agent() as (claims, rig):
        await claims.prepare(*home.claim(0, (pool(rig), "mig-2g-20gb-4")))
        with pytest.raises(NodeagentError, match="mig-2g-20gb-4 of claim team/trainer-0"):
            await claims.prepare(*home.claim(1, (pool(rig), "mig-1g-10gb-5")))
        with pytest.raises(NodeagentError, match="trainer-0"):
            await claims.prepare(*home.claim(2, (pool(rig), "gpu")))
        assert laid_out(node) == [(4, 2)]
        assert home.records() == [f"{UIDS[0]}.json"]


async def test_a_foreign_instance_is_named_and_stays(node: SimulatedNode, home: Home) -> None:
    """One that no claim has, in the claim's place; also after an attempt and a release."""
    async with home.agent() as (claims, rig):
        await claims.prepare(*home.claim(0, (pool(rig), "mig-1g-10gb-0")))
        (home.records_dir / f"{UIDS[0]}.json").unlink()
        await claims.load()  # the record is lost: it is nobody's now
        name = home.claim(1, (pool(rig), "mig-1g-10gb-0"))
        with pytest.raises(StillInUse, match=r"1g.10gb at slice 0 \(of no claim\)"):
            await claims.prepare(*name)
        await claims.release(UIDS[1])
        assert laid_out(node) == [(0, 1)]


async def test_what_is_used_is_not_released(node: SimulatedNode, home: Home) -> None:
    """A slice and a whole GPU; the user is named, and the end of it lets it go."""
    async with home.agent() as (claims, rig):
        [part] = await claims.prepare(*home.claim(0, (pool(rig), "mig-1g-10gb-3")))
        await claims.prepare(*home.claim(1, (pool(rig, 1), "gpu")))
        for device, uid in ((part.uuid, UIDS[0]), (rig.gpu(1).uuid, UIDS[1])):
            node.occupy(device, pid=4711, command="train")
            with pytest.raises(StillInUse, match="4711"):
                await claims.release(uid)
            assert f"{uid}.json" in home.records()
            node.release(device)
            await claims.release(uid)
        assert laid_out(node) == []
        assert home.records() == []


async def test_the_next_agent_goes_on(node: SimulatedNode, home: Home) -> None:
    """With what was prepared, and with what an agent left half done when it was killed."""
    async with home.agent() as (claims, rig):
        first = home.claim(0, (pool(rig), "mig-1g-10gb-0"))
        prepared = await claims.prepare(*first)
        second = home.claim(1, (pool(rig), "mig-1g-10gb-1"))
        node.inject("nvmlGpuInstanceCreateComputeInstance*", error="NVML_ERROR_UNKNOWN")
        with pytest.raises(NodeagentError, match="trainer-1"):
            await claims.prepare(*second)
    async with home.agent() as (claims, _):
        assert await claims.prepare(*first) == prepared
        await claims.prepare(*second)
        assert laid_out(node) == [(0, 1), (1, 1)]
        await claims.release(UIDS[0])
        await claims.release(UIDS[1])
        assert laid_out(node) == []


async def test_after_a_reboot_it_is_made_again(node: SimulatedNode, home: Home) -> None:
    """Instances and CDI files are gone; the ids in the records stand for others now."""
    async with home.agent() as (claims, rig):
        name = home.claim(0, (pool(rig), "mig-1g-10gb-2"))
        before = await claims.prepare(*name)
    node.reboot()
    for file in home.files():
        (home.cdi / file).unlink()
    home.boot_id = "second"
    async with home.agent() as (claims, rig):
        after = await claims.prepare(*name)
        assert laid_out(node) == [(2, 1)]
        assert [d.cdi_id for d in after] == [d.cdi_id for d in before]
        assert len(home.files()) == 1
    node.reboot()
    home.boot_id = "third"
    async with home.agent() as (claims, rig):
        other = home.claim(3, (pool(rig), "mig-1g-10gb-2"), name="other")
        with pytest.raises(NodeagentError, match="trainer-0"):
            await claims.prepare(*other)
        await claims.release(UIDS[0])
        await claims.prepare(*other)
        await claims.release(UIDS[0])
        assert laid_out(node) == [(2, 1)]


async def test_allocated_anew_under_the_same_uid(node: SimulatedNode, home: Home) -> None:
    """What it had before goes first."""
    async with home.agent() as (claims, rig):
        await claims.prepare(*home.claim(0, (pool(rig), "mig-1g-10gb-0")))
        await claims.prepare(*home.claim(0, (pool(rig), "mig-3g-40gb-4")))
        assert laid_out(node) == [(4, 4)]


async def test_a_record_that_cannot_be_read_holds_back_its_gpus(
    node: SimulatedNode, home: Home
) -> None:
    """Nothing new comes; the agent goes on, and says which file it is."""
    home.records_dir.mkdir(parents=True)
    (home.records_dir / f"{UIDS[5]}.json").write_text("{")
    async with home.agent() as (claims, rig):
        with pytest.raises(NodeagentError, match=UIDS[5]):
            await claims.prepare(*home.claim(0, (pool(rig), "mig-1g-10gb-0")))
        with pytest.raises(NodeagentError, match=UIDS[5]):
            await claims.release(UIDS[5])
        assert laid_out(node) == []
        assert len(claims.problems) == 1


async def test_a_record_that_cannot_be_written_comes_before_the_hardware(
    node: SimulatedNode, home: Home
) -> None:
    """A full disk, say: nothing is made."""
    async with home.agent() as (claims, rig):
        home.records_dir.parent.mkdir()
        home.records_dir.write_text("a file in the folder's place")
        with pytest.raises(NodeagentError, match="cannot be kept"):
            await claims.prepare(*home.claim(0, (pool(rig), "mig-1g-10gb-0")))
        assert laid_out(node) == []
        home.records_dir.unlink()
        await claims.prepare(*home.claim(0, (pool(rig), "mig-1g-10gb-0")))
        assert laid_out(node) == [(0, 1)]
