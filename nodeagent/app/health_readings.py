"""What is sampled and heard of the GPUs, as readings for health."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from nodeagent.gpu.event_listener import Binding, Event, gpu_event_of, xid_of
from nodeagent.health.findings import Moment
from nodeagent.health.modes import owned_modes
from nodeagent.health.readings import (
    Answer,
    GpuEvent,
    GpuReading,
    NodeReading,
    Silence,
    XidEvent,
)
from nodeagent.health.state import GpuPast
from nodeagent.health.xid_dedup import pci_address
from nodeagent.plan.plan import NodePlan
from nodeagent.telemetry.samples import SampleBatch

_TAKEN_OFF = 1  # nvmlSystemEventTypeGpuDriverUnbind; 2 is the opposite


class ReadingsOf:
    """Remembers the GPUs that the kernel driver was taken off.

    `planned` gives the plan in force as the node stands to it, None when there is none.
    """

    def __init__(self, planned: Callable[[], NodePlan | None]) -> None:
        self._planned = planned
        self._unbound: set[str] = set()  # UUIDs

    def round(
        self, found: SampleBatch, now: Moment, boot_id: str, on_the_bus: tuple[str, ...] | None
    ) -> NodeReading:
        """A round of the sampler. `on_the_bus` are the addresses of the GPUs on the PCI bus."""
        return NodeReading(
            now,
            boot_id,
            gpus=tuple(self._gpu(gpu, found.modes.get(gpu.uuid)) for gpu in found.gpus),
            known=found.known,
            listed_addresses=found.addresses,
            pci_addresses=None if found.addresses is None else on_the_bus,
            answer=found.answer,
        )

    def _gpu(self, gpu: GpuReading, numbers: Mapping[str, int] | None) -> GpuReading:
        if gpu.uuid in self._unbound and gpu.answer is not None:
            if gpu.answer.silence is None:  # it was bound again, and nobody told
                self._unbound.discard(gpu.uuid)
            else:
                return replace(gpu, answer=replace(gpu.answer, silence=Silence.UNBOUND))
        plan = self._planned()
        mine = [p for p in plan.gpus if p.before.uuid == gpu.uuid] if plan else []
        if numbers is None or not mine:
            return gpu
        return replace(gpu, modes=owned_modes(mine[0], mig=gpu.mig, numbers=numbers))

    def events(
        self,
        events: Iterable[Event],
        now: Moment,
        boot_id: str,
        gpus: Mapping[str, GpuPast],
    ) -> NodeReading | None:
        """What NVML told by itself; None where health does not care. `gpus` is what is known of
        them by UUID.
        """
        xids: list[XidEvent] = []
        others: list[GpuEvent] = []
        bound: list[GpuReading] = []
        for event in events:
            if isinstance(event, Binding):
                bound += self._bound(event, gpus)
                continue
            xid, other = xid_of(event), gpu_event_of(event)
            xids += [xid] if xid else []
            others += [other] if other and other.gpu else []
        if not (xids or others or bound):
            return None
        return NodeReading(now, boot_id, tuple(bound), xids=tuple(xids), events=tuple(others))

    def _bound(self, event: Binding, gpus: Mapping[str, GpuPast]) -> Iterable[GpuReading]:
        for uuid, past in gpus.items():
            if _number(past.pci_bus_id) != event.gpu:
                continue
            known = GpuReading(uuid, past.index, past.pci_bus_id)
            if event.kind == _TAKEN_OFF:
                self._unbound.add(uuid)
                answer = Answer(Silence.UNBOUND, event.at, "the kernel driver was taken off it")
            else:
                self._unbound.discard(uuid)
                answer = Answer()  # what it is like now, the next round tells
            yield replace(known, answer=answer)


def _number(address: str) -> int | None:
    """The kernel driver's number for a GPU: its domain, bus and device (gpuGenerate32BitId in
    NVIDIA's open kernel modules).
    """
    parts = pci_address(address)
    if parts is None:
        return None
    domain, bus, device = parts
    return (domain & 0xFFFF) << 16 | bus << 8 | device
