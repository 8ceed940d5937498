"""What nos requests for each GPU by its annotations or its configuration of the device plugin,
whether a GPU can be that, and how its shares become `mps`.

nos divides a card into ceil(MiB / 1000) equal gigabytes (an H100 with 81,559 MiB has 82), so one
of these is neither a GB nor a GiB. It is read as that fraction of the card's memory, cut down to
whole MiB: then every layout that nos thinks possible fits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nodeagent.cluster.plan_sources.nos.grammar import (
    MODE_LABEL,
    DeviceRequest,
    PartitioningKind,
    Requests,
    mig_profile,
    share_size,
)
from nodeagent.documents.bounded_yaml import Value, read_tree
from nodeagent.documents.findings import MAX_PROBLEMS, path_text
from nodeagent.documents.mps import MAX_CLIENTS
from nodeagent.documents.terms import MAX_INDEX, MAX_INSTANCES
from nodeagent.errors import DocumentError
from nodeagent.plan.names import ProfileName, find, nearest_profile
from nodeagent.plan.observed import Access, Gpu, ObservedNode
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.shares import MIB
from nodeagent.text import listed, quote

_ALLOWED = {
    PartitioningKind.MIG: "a MIG profile such as 1g.10gb or 1g.10gb.me",
    PartitioningKind.MPS: "a share such as 10gb",
}


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """What one GPU is asked to be: MIG with these instances, or shared so."""

    index: int
    gpu: Gpu | None
    instances: Counter[str] = field(default_factory=Counter)
    shares: Counter[int] = field(default_factory=Counter)
    where: str = ""

    @property
    def uuid(self) -> str:
        return self.gpu.uuid if self.gpu else ""


def requested_devices(
    mode: PartitioningKind, asked: Iterable[DeviceRequest], observed: ObservedNode
) -> tuple[dict[int, GpuRequest], list[Problem]]:
    """What each GPU is asked to be, by index, and all that is wrong with it."""
    known = {gpu.index: gpu for gpu in (*observed.gpus, *observed.gone)}
    requests: dict[int, GpuRequest] = {}
    wrong: list[Problem] = []
    for one in asked:
        if len(wrong) > MAX_PROBLEMS:
            break  # a hostile node must not cost time
        gpu = known.get(one.index)
        problem = _no_such_gpu(one, known) or _take(one, mode, gpu, requests)
        if problem:
            wrong.append(problem)
    wrong += [problem for request in requests.values() for problem in _beyond(request)]
    return dict(sorted(requests.items())), wrong


def _take(
    one: DeviceRequest, mode: PartitioningKind, gpu: Gpu | None, requests: dict[int, GpuRequest]
) -> Problem | None:
    """Add to what the GPU is asked to be, or say what is wrong with it."""
    size, name = share_size(one.profile), mig_profile(one.profile)
    if not (name if mode is PartitioningKind.MIG else size):
        what = f"asks for {quote(one.profile)} on a node whose label {MODE_LABEL} is {mode.value}"
        return one.fault(Code.UNKNOWN_PROFILE, what, f"write {_ALLOWED[mode]}")
    request = requests.setdefault(one.index, GpuRequest(one.index, gpu, where=one.where))
    if size:
        request.shares[size] += one.count
    elif name:
        request.instances[str(name)] += one.count
        return _no_such_profile(one, name, gpu)
    return None


def _no_such_gpu(one: DeviceRequest, known: Mapping[int, Gpu]) -> Problem | None:
    if one.index in known or (not known and one.index <= MAX_INDEX):
        return None
    have = f"it has {listed(map(str, known))}" if known else f"the largest is {MAX_INDEX}"
    what = f"names GPU {one.index}, which this node does not have"
    return one.fault(Code.UNKNOWN_DEVICE, what, have)


def _no_such_profile(one: DeviceRequest, name: ProfileName, gpu: Gpu | None) -> Problem | None:
    """The problem of a profile that the card lacks; None also while its profiles are not known."""
    if gpu is not None and gpu.access is Access.OK and gpu.mig is None:
        what = f"asks for {quote(one.profile)}, but {gpu.title} has no MIG"
        remedy = f"remove it, or set the label {MODE_LABEL} to {PartitioningKind.MPS.value}"
        return one.fault(Code.NOT_MIG_CAPABLE, what, remedy, gpu=gpu.uuid)
    if gpu is None or not gpu.profiles or len(find(name, gpu.profiles)) == 1:
        return None
    names = [profile.name for profile in gpu.profiles]
    near = nearest_profile(str(name), names)
    what = f"asks for {quote(one.profile)}, which {gpu.title} has not"
    remedy = f"{f'did you mean {near}? ' if near else ''}it offers {listed(names)}"
    return one.fault(Code.UNKNOWN_PROFILE, what, remedy, gpu=gpu.uuid)


def _beyond(request: GpuRequest) -> Iterator[Problem]:
    """What no GPU can be."""
    for count, most, what in (
        (request.instances.total(), MAX_INSTANCES, "MIG devices"),
        (request.shares.total(), MAX_CLIENTS, "shares"),
    ):
        if count > most:
            yield Problem(
                code=Code.DOES_NOT_FIT,
                message=f"GPU {request.index} is asked for {count} {what}",
                remedy=f"at most {most} fit",
                gpu=request.uuid,
                path=request.where,
            )


# --- GPUs that nos asks nothing of ----------------------------------------------------------------


def emptied(
    mode: PartitioningKind, requests: Mapping[int, GpuRequest], observed: ObservedNode
) -> list[GpuRequest]:
    """The GPUs in MIG mode without a spec, on a node that nos divides by MIG alone.

    For nos a spec is total: what it does not name has to go, once it is free. It never switches
    MIG on or off, so other GPUs are left alone, and so is the layout of a node it does not know
    as a whole.
    """
    if mode is not PartitioningKind.MIG:
        return []
    left = [gpu for gpu in observed.gpus if gpu.index not in requests]
    return [GpuRequest(gpu.index, gpu) for gpu in left if gpu.mig is not None and gpu.mig.current]


MEMORY_LABEL = "nvidia.com/gpu.memory"  # MiB of each GPU, as feature discovery writes it
USER = 1000  # nos' own daemon runs as this user, and so its clients have to

_MIB_OF_A_GIGABYTE = 1000
_MAX_LABEL = 12  # digits


def card_memory(gpu: Gpu | None, labels: Mapping[str, str]) -> int:
    """MiB, by the driver, else by the node's label; 0 when neither is known."""
    by_driver = gpu.memory // MIB if gpu else 0
    label = labels.get(MEMORY_LABEL, "")
    is_number = label.isascii() and label.isdecimal() and len(label) <= _MAX_LABEL
    return by_driver or (int(label) if is_number else 0)


def share_memory(size: int, card: int) -> str:
    """The memory of a share of `size` of nos' gigabytes on a card of `card` MiB, as a quantity."""
    if not card:
        return f"{size}G"  # at least as in its name
    gigabytes = -(-card // _MIB_OF_A_GIGABYTE)
    return f"{max(1, size * card // gigabytes)}Mi"


def mps_entry(counts: Mapping[int, int], card: int) -> dict[str, Any]:
    """The plan's `mps` with so many shares of each size, on a card of `card` MiB (0: unknown).

    nos limits no threads, so nothing does here.
    """
    return {
        "shares": {
            f"{size}gb": {"count": counts[size], "memory": share_memory(size, card)}
            for size in sorted(counts)
        },
        "user": USER,
    }


# --- the configuration of the device plugin -------------------------------------------------------

_RENAMED = "gpu-"
_MAX_INDEX = 4


def read_configuration(text: str) -> Requests:
    """The shares that a configuration asks for; the rest of it is ignored."""
    try:
        document = read_tree(text).value
    except DocumentError as error:
        return Requests(wrong=tuple(error.problems))
    sharing = document.get("sharing") if isinstance(document, dict) else None
    mps = sharing.get("mps") if isinstance(sharing, dict) else None
    resources = mps.get("resources") if isinstance(mps, dict) else None
    if resources is None:
        return Requests()
    if not isinstance(resources, list):
        return Requests(wrong=(_wrong(("resources",), resources, "a list"),))
    found = [f for number, one in enumerate(resources) for f in _resource(number, one)]
    return Requests(
        devices=tuple(f for f in found if isinstance(f, DeviceRequest) and f.count),
        wrong=tuple(f for f in found if isinstance(f, Problem)),
    )


def _resource(number: int, resource: Value) -> Iterator[DeviceRequest | Problem]:
    place = ("resources", number)
    if not isinstance(resource, dict):
        yield _wrong(place, resource, "a map")
        return
    renamed, replicas = resource.get("rename"), resource.get("replicas")
    profile = renamed.removeprefix(_RENAMED) if isinstance(renamed, str) else ""
    size = share_size(profile)
    if size is None or renamed == profile:
        yield _wrong((*place, "rename"), renamed, "gpu-<N>gb, such as gpu-10gb")
    elif resource.get("memoryGB", size) != size:
        yield _wrong((*place, "memoryGB"), resource["memoryGB"], f"{size}, as in rename")
    elif type(replicas) is not int or not 0 <= replicas <= MAX_CLIENTS:
        yield _wrong((*place, "replicas"), replicas, f"a number from 0 to {MAX_CLIENTS}")
    else:
        yield from _on_devices(place, resource.get("devices"), profile, replicas)


def _on_devices(
    place: tuple[str | int, ...], devices: Value, profile: str, replicas: int
) -> Iterator[DeviceRequest | Problem]:
    place = (*place, "devices")
    if not isinstance(devices, list):
        yield _wrong(place, devices, 'a list of GPU indices such as ["0"]')
        return
    for number, device in enumerate(devices):
        text = str(device) if type(device) in (int, str) else ""
        if text.isascii() and text.isdecimal() and len(text) <= _MAX_INDEX:
            yield DeviceRequest(int(text), profile, replicas, _path(place))
        else:
            yield _wrong((*place, number), device, "the index of a GPU")


def _wrong(place: tuple[str | int, ...], found: Value, accepted: str) -> Problem:
    return Problem(
        code=Code.INVALID_VALUE,
        message=f"the device plugin's configuration has {quote(found)} at {_path(place)}",
        remedy=f"write {accepted}",
        path=_path(place),
    )


def _path(place: tuple[str | int, ...]) -> str:
    return path_text(("sharing", "mps", *place))
