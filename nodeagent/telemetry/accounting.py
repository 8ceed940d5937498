"""Accounts for devices by owner: time held, time used, and how long they have been idle.

Pure but for the clock that the caller reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nodeagent.cluster.kubelet.processes import Owner
from nodeagent.metrics import agent_metrics
from nodeagent.metrics.agent_metrics import AgentSample
from nodeagent.metrics.agent_samples import HeldTime, Hold, Holder, held_samples
from nodeagent.metrics.samples import SampleSet
from nodeagent.plan.observed import Gpu, ObservedNode
from nodeagent.telemetry.ownership import GPU_UTIL, Device, Use, device_of

GRAPHICS_ACTIVE = 1001  # DCGM's field id; 0 to 1, of a GPU or an instance
ACTIVITY_FIELDS = (GPU_UTIL, GRAPHICS_ACTIVE)
_IDLE_BELOW = 0.005  # less is shown as 0 percent


def activity(sample: SampleSet) -> Mapping[Device, float]:
    """How active each device was, from 0 to 1, where that is known."""
    found: dict[Device, float] = {}
    for number, scale in ((GPU_UTIL, 0.01), (GRAPHICS_ACTIVE, 1.0)):  # the finer one wins
        for subject, value in sample.values.get(number, ()):
            device = device_of(subject.entity)
            if device is not None:
                found[device] = value * scale
    return found


class Holders:
    """Adds up while devices are held. Times are seconds of a clock that does not jump."""

    def __init__(self, *, longest_gap: float) -> None:
        self._time = HeldTime(longest_gap=longest_gap)
        self._idle_since: dict[tuple[Device, Holder], float] = {}
        self._uses: Mapping[Device, Use] = {}
        self._known: frozenset[Device] = frozenset()
        self._observed = ObservedNode()
        self._now = 0.0

    def observe(
        self,
        now: float,
        observed: ObservedNode,
        uses: Mapping[Device, Use],
        active: Mapping[Device, float],
    ) -> None:
        """Who has what at `now`, and how active it was since the last time."""
        self._time.observe(now, _holds(observed, uses, active))
        idle: dict[tuple[Device, Holder], float] = {}
        for device, use in uses.items():
            part = active.get(device)
            if part is None or part >= _IDLE_BELOW:
                continue
            for owner in use.owners:
                key = (device, _holder(owner))
                idle[key] = self._idle_since.get(key, now)
        # What was just active can be idle from the next sample on.
        self._idle_since = idle
        self._uses, self._observed, self._now = uses, observed, now
        self._known = frozenset(uses) & frozenset(active)

    def samples(self) -> Iterator[AgentSample]:
        """Time held and used, and for how long devices that are held have done nothing."""
        yield from held_samples(self._time.held)
        for gpu in self._observed.gpus:
            yield from self._idle(gpu, (gpu.uuid, None), ("", ""))
            for instance in gpu.instances:
                labels = (instance.profile, str(instance.id))
                yield from self._idle(gpu, (gpu.uuid, instance.id), labels)

    def _idle(self, gpu: Gpu, device: Device, part: tuple[str, str]) -> Iterator[AgentSample]:
        use = self._uses.get(device)
        if use is None or device not in self._known:
            return
        for owner in use.owners:
            since = self._idle_since.get((device, _holder(owner)), self._now)
            whose = (owner.container, owner.namespace, owner.pod, owner.unit, owner.user)
            labels = (str(gpu.index), gpu.uuid, *part, *whose)
            yield AgentSample(agent_metrics.HELD_IDLE, self._now - since, labels)


def _holder(owner: Owner) -> Holder:
    """A pod's time is not divided among its containers."""
    if owner.pod:
        return Holder(owner.namespace, owner.pod)
    return Holder(container=owner.container, unit=owner.unit, user=owner.user)


def _holds(
    observed: ObservedNode, uses: Mapping[Device, Use], active: Mapping[Device, float]
) -> Iterator[Hold]:
    for gpu in observed.gpus:
        yield from _of_device((gpu.uuid, None), 1.0, 0.0, uses, active)
        slots = max((p.start + p.size for k in gpu.profiles for p in k.placements), default=0)
        for instance in gpu.instances:
            size = float(instance.placement.size)
            share = size / slots if slots else 0.0
            yield from _of_device((gpu.uuid, instance.id), share, size, uses, active)


def _of_device(
    device: Device,
    gpus: float,
    slices: float,
    uses: Mapping[Device, Use],
    active: Mapping[Device, float],
) -> Iterator[Hold]:
    use = uses.get(device)
    holders = dict.fromkeys(map(_holder, use.owners)) if use else {}
    for holder in holders:
        yield Hold(
            f"{device[0]} {device[1]}",
            holder,
            gpus / len(holders),
            slices / len(holders),
            active.get(device),
        )
