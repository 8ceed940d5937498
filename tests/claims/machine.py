"""A machine with claims: its API server's objects, its folders, its present agent."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from nodeagent.claims.cdi_files import ToolkitEdits
from nodeagent.claims.daemons import ClaimDaemons
from nodeagent.claims.decisions import Allocated
from nodeagent.claims.node_claims import ClaimPlaces, NodeClaims
from nodeagent.errors import NodeagentError
from nodeagent.gpu.capability_files import Instance
from nodeagent.reconcile.plan_update import NoPlan
from nodeagent.reconcile.reconciler import NodeDriver
from nodeagent.simulation import SimulatedNode
from nodeagent.views.node_state import Phase as NodePhase
from tests.rig import Rig, running

NODE = "gpu-node-0"
UIDS = [f"0000000{n}-1111-2222-3333-444444444444" for n in range(9)]
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


async def no_daemons() -> None:
    """There are none to be asked."""


class Home:
    """One machine: its API server's claims, its folders, its present agent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.boot_id = "first"
        self.api_away = False
        self.pods: list[Allocated] | None = []  # what the kubelet lists; None: it does not answer
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

    def run_pod(self, claim: tuple[str, str, str], *keys: tuple[str, str]) -> None:
        """A pod has the claim's devices, given as pool and device."""
        assert self.pods is not None
        namespace, name, _ = claim
        self.pods += [Allocated(namespace, name, f"{name}-pod", (*key, "")) for key in keys]

    async def allocations(self) -> tuple[Allocated, ...]:
        """As the kubelet says."""
        if self.pods is None:
            raise NodeagentError("the kubelet does not answer")
        return tuple(self.pods)

    @asynccontextmanager
    async def agent(
        self,
        *,
        driver: AbstractAsyncContextManager[NodeDriver] | None = None,
        daemons: ClaimDaemons | None = None,
    ) -> AsyncIterator[tuple[NodeClaims, Rig]]:
        """One agent's life, without a plan; with MPS where its parts are given."""

        async def fetch(namespace: str, name: str) -> object | None:
            if self.api_away:
                raise NodeagentError("the API server does not answer")
            return self.claims.get((namespace, name))

        async def observe() -> Any:
            return rig.state.observed

        rig = Rig(
            self.folder,
            driver=driver,
            beside=lambda *goal: claims.beside(*goal),  # noqa: PLW0108  # made below
        )
        claims = NodeClaims(
            ClaimPlaces(NODE, self.boot_id, self.records_dir, self.cdi),
            change=rig.changes.change,
            fetch=fetch,
            observe=observe,
            capabilities=capabilities,
            toolkit=ToolkitEdits([self.folder / "etc-cdi"]).read,
            daemons=daemons or ClaimDaemons("1000", self.folder / "run", False, no_daemons),
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


def pool(rig: Rig, gpu: int = 0) -> str:
    """Of a GPU by index."""
    return f"{NODE}/{rig.gpu(gpu).uuid.lower()}"


def laid_out(node: SimulatedNode, gpu: int = 0) -> list[tuple[int, int]]:
    """What the hardware has: start and size of each GPU instance."""
    instances = node.card(gpu).state.instances
    return sorted((one.start, one.size) for one in instances)
