"""What several owners of one device have each, told apart. Pure.

The device's own value becomes one series for each owner and one, without owner, for the rest: the
driver's share, and processes of whom nobody knows whose they are. So the sum is the device's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from nodeagent.cluster.kubelet.processes import Owner
from nodeagent.metrics.conversion import Number
from nodeagent.metrics.samples import Entity, SampleSet, Slice, Subject, Value, WholeGpu
from nodeagent.telemetry.ownership import NOBODY, Device, Use

FB_USED = 252  # DCGM's field ids; MiB
GPU_UTIL = 203  # percent
_MEBIBYTE = 1 << 20


def told_apart(sample: SampleSet, uses: Mapping[Device, Use]) -> SampleSet:
    """The sample with memory and utilization of shared devices told of each owner."""
    shared = {device: use for device, use in uses.items() if len(use.owners) > 1}
    if not shared:
        return sample
    values = dict(sample.values)
    for number in (FB_USED, GPU_UTIL):
        if number in values:
            values[number] = tuple(_apart(number, values[number], shared))
    return replace(sample, values=values)


def device_of(entity: Entity) -> Device | None:
    """The device that an entity is; None for a node or a link."""
    match entity:
        case WholeGpu(gpu):
            return gpu.uuid, None
        case Slice(gpu, _, number):
            return gpu.uuid, number
        case _:
            return None


def _apart(number: int, values: Iterable[Value], shared: Mapping[Device, Use]) -> Iterator[Value]:
    for subject, total in values:
        device = device_of(subject.entity)
        use = shared.get(device, NOBODY) if device else NOBODY
        parts = _parts(number, use)
        if not parts or subject.attributes:
            yield subject, total
            continue
        for owner, part in parts.items():
            yield Subject(subject.entity, owner.labels), part
        yield subject, max(0, total - sum(parts.values()))


def _parts(number: int, use: Use) -> dict[Owner, Number]:
    if number == FB_USED:
        return {owner: used // _MEBIBYTE for owner, used in use.memory.items()}
    return {owner: round(busy) for owner, busy in use.multiprocessors.items()}
