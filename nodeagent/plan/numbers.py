"""Which GPUs a plan means by number: those that had the numbers when it was accepted.

A GPU that falls off the bus moves those behind it up as soon as NVML is started anew, be it by the
agent in its course or with the next one. What the plan says of a number is not said of the GPU that
gets it.
"""

from collections.abc import Iterable

from nodeagent.plan.observed import Access, Gpu, ObservedNode
from nodeagent.structs import Struct, read_in_threads, replace


@read_in_threads
class NumberedGpu(Struct, frozen=True):
    """The number that a GPU keeps."""

    number: int
    uuid: str
    pci_bus_id: str


Numbers = tuple[NumberedGpu, ...]


def numbers_of(observed: ObservedNode, before: Iterable[NumberedGpu] = ()) -> Numbers:
    """The numbers `before`, and those of the GPUs that came since: one in the place of another that
    is gone is its replacement, and has its number. Where no GPU is known, all are new.
    """
    here = {gpu.uuid: gpu for gpu in observed.gpus if gpu.uuid}
    found = {one.uuid: one for one in before}
    if here and not here.keys() & found.keys():
        found = {}
    for uuid, gpu in here.items():
        of_slot = (o for o in found.values() if o.pci_bus_id == gpu.pci_bus_id)
        known = found.get(uuid) or next((o for o in of_slot if o.uuid not in here), None)
        if known:
            del found[known.uuid]
            number = known.number
        else:
            taken = {one.number for one in found.values()}
            number = gpu.index if gpu.index not in taken else max(taken) + 1
        found[uuid] = NumberedGpu(number, uuid, gpu.pci_bus_id)
    return tuple(sorted(found.values(), key=lambda one: one.number))


def numbered(observed: ObservedNode, numbers: Numbers) -> ObservedNode:
    """The GPUs with the numbers that they keep, and those of them that are not listed any more."""
    by_uuid = {one.uuid: one.number for one in numbers}
    gpus = tuple(replace(gpu, index=by_uuid.get(gpu.uuid, gpu.index)) for gpu in observed.gpus)
    here = {gpu.uuid for gpu in gpus}
    gone = tuple(
        Gpu(one.number, one.uuid, pci_bus_id=one.pci_bus_id, access=Access.LOST)
        for one in numbers
        if one.uuid not in here
    )
    return replace(observed, gpus=gpus, gone=gone)
