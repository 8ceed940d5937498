"""Finds the owners of each GPU and GPU instance, by claims, allocations and processes.

A device with one owner is labelled with that owner. A device shared by MPS or by time-slicing has
no owner's label, except for memory and utilization: the device's value is split into one series for
each owner and one without owner for the rest (the driver's share and processes of unknown owners),
so that the sum is the device's. Pure.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from nodeagent.cluster.kubelet.processes import Owner
from nodeagent.metrics.samples import Entity, SampleSet, Slice, Subject, Value, WholeGpu
from nodeagent.metrics.sources import Number
from nodeagent.plan.observed import ComputeInstance, Gpu, ObservedNode
from nodeagent.plan.users import User
from nodeagent.structs import Struct, field, replace
from nodeagent.telemetry.samples import ProcessReading
from nodeagent.views.claims import Claim

FB_USED = 252  # DCGM's field ids; MiB
GPU_UTIL = 203  # percent
_MEBIBYTE = 1 << 20

Device = tuple[str, int | None]  # a GPU by its UUID, and one of its instances, if any


class DeviceUse(Struct, frozen=True):
    """The owners of a device, and the processes of each that are known."""

    owners: tuple[Owner, ...] = ()
    processes: Mapping[Owner, tuple[ProcessReading, ...]] = field(default_factory=dict)

    def of(self, owners: Iterable[Owner], figure: str) -> list[Any]:
        """A figure of each of their processes in which it is known: memory or multiprocessors."""
        processes = (one for owner in owners for one in self.processes.get(owner, ()))
        return [value for one in processes if (value := getattr(one, figure)) is not None]

    @property
    def sole(self) -> Owner | None:
        return self.owners[0] if len(self.owners) == 1 else None


UNUSED = DeviceUse()


def uses(
    observed: ObservedNode,
    processes: Mapping[Device, tuple[ProcessReading, ...]],
    owner_of: Callable[[int], Owner | None],
    held: Mapping[Device, tuple[Owner, ...]] = MappingProxyType({}),
) -> Mapping[Device, DeviceUse]:
    """The use of each device that has an owner.

    `processes` are newer than `observed` and take precedence. `owner_of` finds the owner of a
    process of which `observed` has no pod. `held` has the pods of claims, also of devices that are
    newer than `observed`.
    """
    found: dict[Device, DeviceUse] = {}
    for gpu in observed.gpus:
        if not gpu.answers:
            continue
        for device, users, servers in _devices(gpu):
            use = _use(users, servers, processes.get(device), owner_of, held.get(device, ()))
            if use.owners:
                found[device] = use
    answering = {gpu.uuid for gpu in observed.gpus if gpu.answers}
    made = {d: DeviceUse(tuple(sorted(owners))) for d, owners in held.items() if d[0] in answering}
    return {**made, **found}


def claimed(claims: Iterable[Claim]) -> Mapping[Device, tuple[Owner, ...]]:
    """The pods of claims by the devices that these have; an administrator only looks at them."""
    found: dict[Device, tuple[Owner, ...]] = {}
    for claim in claims:
        owners = tuple(Owner(pod.namespace, pod.name, pod.container) for pod in claim.pods)
        for device in claim.devices:
            if owners and not device.admin_access and (device.gi is not None or not device.profile):
                key = device.gpu, device.gi
                found[key] = (*found.get(key, ()), *owners)
    return found


def pids_without_pod(
    observed: ObservedNode, processes: Mapping[Device, tuple[ProcessReading, ...]]
) -> set[int]:
    """The processes whose owner has to be looked up."""
    users = [
        user
        for gpu in observed.gpus
        for _, of_device, _ in _devices(gpu)
        for user in of_device
        if user.pid
    ]
    named = {user.pid for user in users if user.pod}
    seen = {process.pid for listed in processes.values() for process in listed}
    return ({user.pid for user in users} | seen) - named


def _devices(gpu: Gpu) -> Iterator[tuple[Device, tuple[User, ...], frozenset[int]]]:
    """List the devices, with their users and the pids of their MPS servers, which have no owner."""
    parts: list[tuple[int | None, Sequence[Gpu | ComputeInstance]]] = [(None, (gpu,))]
    parts += [(instance.id, instance.compute) for instance in gpu.instances]
    for number, devices in parts:
        users = tuple(user for device in devices for user in device.usage.processes)
        servers = frozenset(pid for device in devices if device.mps for pid in device.mps.servers)
        yield (gpu.uuid, number), users, servers


def _use(
    users: tuple[User, ...],
    servers: frozenset[int],
    processes: tuple[ProcessReading, ...] | None,
    owner_of: Callable[[int], Owner | None],
    held: Iterable[Owner],
) -> DeviceUse:
    pods = {user.pid: Owner(user.namespace, user.pod, user.container) for user in users if user.pod}
    if processes is None:
        processes = tuple(ProcessReading(user.pid, user.memory) for user in users if user.pid)
    holders = [
        Owner(user.namespace, user.pod, user.container)
        for user in users
        if user.pod and not user.pid  # an allocation
    ]
    holders += (owner for owner in held if owner.container)
    known: dict[Owner, tuple[ProcessReading, ...]] = dict.fromkeys(holders, ())
    for process in processes:
        owner = None if process.pid in servers else pods.get(process.pid) or owner_of(process.pid)
        if owner is None:
            continue
        owner = _completed(owner, holders)
        known[owner] = (*known.get(owner, ()), process)
    pods_known = {(owner.namespace, owner.pod) for owner in known}
    # A pod of which a container is known is no other owner beside it.
    rest = {owner for owner in held if (owner.namespace, owner.pod) not in pods_known}
    return DeviceUse(tuple(sorted(rest.union(known))), known)


def _completed(owner: Owner, holders: Iterable[Owner]) -> Owner:
    """The owner with its container, taken from the pod's only allocation where the process shows
    none.
    """
    if not owner.pod or owner.container:
        return owner
    same = [h for h in holders if (h.namespace, h.pod) == (owner.namespace, owner.pod)]
    return same[0] if len(same) == 1 else owner


# --- shared devices -------------------------------------------------------------------------------


def by_owner(sample: SampleSet, uses: Mapping[Device, DeviceUse]) -> SampleSet:
    """The sample with memory and utilization of shared devices split by owner."""
    shared = {device: use for device, use in uses.items() if len(use.owners) > 1}
    if not shared:
        return sample
    values = dict(sample.values)
    for number in (FB_USED, GPU_UTIL):
        if number in values:
            values[number] = tuple(_split(number, values[number], shared))
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


def _split(
    number: int, values: Iterable[Value], shared: Mapping[Device, DeviceUse]
) -> Iterator[Value]:
    for subject, total in values:
        device = device_of(subject.entity)
        use = shared.get(device, UNUSED) if device else UNUSED
        parts = _parts(number, use)
        if not parts or subject.attributes:
            yield subject, total
            continue
        for owner, part in parts.items():
            yield Subject(subject.entity, owner.labels), part
        yield subject, max(0, total - sum(parts.values()))


def _parts(number: int, use: DeviceUse) -> dict[Owner, Number]:
    figure = "memory" if number == FB_USED else "multiprocessors"
    sums = {owner: sum(each) for owner in use.owners if (each := use.of((owner,), figure))}
    return {o: one // _MEBIBYTE if number == FB_USED else round(one) for o, one in sums.items()}
