"""One agent's health without a sampler: readings are given to it, and its time is in our hands."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from nodeagent.app.health_service import HealthPaths, HealthService
from nodeagent.health.findings import Moment
from nodeagent.health.readings import NodeReading, XidEvent, XidSource
from nodeagent.health.state import HealthState
from nodeagent.plan.observed import ComputeInstance, Gpu, GpuInstance, ObservedNode, Placement
from nodeagent.plan.users import Usage, User
from nodeagent.reconcile.event_log import EventLog
from nodeagent.reconcile.node_controller import LastObservation
from nodeagent.signals import Signal
from nodeagent.structs import replace
from nodeagent.views.node_state import NodeState
from tests.cluster.client.rig import running
from tests.health.rig import ADDRESS, EPOCH, GPU, gpu
from tests.plan.cards import card

LEFT, RIGHT = Placement(0, 4), Placement(4, 4)
TRAINER = User(4711, "python", namespace="ml", pod="train-0", container="main")


def _instance(number: int, placement: Placement, *users: User) -> GpuInstance:
    device = ComputeInstance(0, "3g.40gb", 3, f"MIG-{number}", usage=Usage(users))
    return GpuInstance(number, 9, "3g.40gb", placement, (device,))


CARD: Gpu = replace(card("h100-80gb"), uuid=GPU, pci_bus_id=ADDRESS)
NODE = ObservedNode((replace(CARD, instances=(_instance(1, LEFT), _instance(2, RIGHT, TRAINER))),))


class Rig:
    """One agent's health, its time in our hands."""

    def __init__(self, folder: Path, *, boot: str = "boot-1", **places: Path) -> None:
        self.uptime = 1000.0
        self.boot = boot
        self.changes = 0
        self.events = EventLog()
        self.observation = LastObservation()
        named = {"kernel_log": None, "state": folder / "health.json", **places}
        self.part = HealthService(
            HealthPaths(**named),
            self.events,
            observation=self.observation,
            states=Signal(NodeState("node-a", "file")),
            now=lambda: Moment(self.uptime, EPOCH + self.uptime),
            boot_id=lambda: self.boot,
        )
        self.part.news.subscribe(self._changed)

    def _changed(self, _: HealthState) -> None:
        self.changes += 1

    def see(self, node: ObservedNode = NODE) -> None:
        self.observation.node = node
        self.part.observed_node(node)

    def take(self, *gpus: object, after: float = 1.0, **values: object) -> None:
        self.uptime += after
        now = Moment(self.uptime, EPOCH + self.uptime)
        self.part.take(NodeReading(now, self.boot, gpus=gpus, **values))  # type: ignore[arg-type]

    def xid(self, number: int, **values: object) -> None:
        event = XidEvent(number, self.uptime + 1, XidSource.NVML, GPU, **values)  # type: ignore[arg-type]
        self.take(gpu(), xids=(event,))

    def causes(self) -> list[str]:
        return [finding.cause for finding in self.part.state.findings]

    def reported(self) -> list[tuple[str, str]]:
        found = (event for event in self.events.events for _ in range(event.count))
        return [(event.type, event.message) for event in found]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Loaded, and followed up until the end."""
        await self.part.load()
        async with running(self.part.run()):
            await asyncio.sleep(0)
            yield
