"""Devices that reach one container: which of them have one MPS daemon together, and which cannot be
used together. Pure.

A program is a client of one MPS daemon and sees the devices of that daemon alone: beside another
device, with or without MPS, one of the two would never be used, and no program would say so.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from nodeagent.claims.model import ClaimedDevice, ClaimRecord, ClaimRefused
from nodeagent.claims.serving.pod_object import PodObject
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.shares import Share, WantedMps
from nodeagent.structs import Struct, replace


class Conflict(Struct, frozen=True):
    """What reaches one container, or all devices of one request: `where` names it. One of the
    devices at least has MPS.
    """

    where: str
    devices: tuple[tuple[ClaimRecord, ClaimedDevice], ...]

    def concerns(self, record: ClaimRecord) -> bool:
        """Return whether a device of that claim is among them."""
        return any(one.uid == record.uid for one, _ in self.devices)

    def problem_of(self, record: ClaimRecord) -> Problem:
        """As a problem of that claim."""
        return Problem.of(
            Code.MPS_CLIENT,
            "podDevices",
            where=self.where,
            devices=", ".join(_name(one, device, record) for one, device in self.devices),
        )


def conflicts(pod: PodObject, records: Iterable[ClaimRecord]) -> Iterator[Conflict]:
    """Of a pod with the claims that have these records; others are passed over.

    What an administrator looks at is no device to compute on.
    """
    found: dict[str, list[tuple[ClaimRecord, ClaimedDevice]]] = {}
    for record in records:
        if record.namespace != pod.metadata.namespace:
            continue
        for container in pod.users_of(record.name):
            found.setdefault(container.name, []).extend(
                (record, device)
                for device in record.devices
                if container.uses(device.result.main_request) and not device.result.admin_access
            )
    for name, devices in found.items():
        if _exclude_each_other(devices):
            where = f"container {name} of pod {pod.metadata.namespace}/{pod.metadata.name}"
            yield Conflict(where, tuple(devices))


def _exclude_each_other(devices: Sequence[tuple[ClaimRecord, ClaimedDevice]]) -> bool:
    """Return whether there is MPS, and not one daemon for all, with one kind of client."""
    daemons = {device.mps for _, device in devices}
    if len(devices) < 2 or daemons == {None}:
        return False
    return len(daemons) > 1 or not all(one.devices for one in daemons if one)


def on_one_daemon(record: ClaimRecord, pods: Iterable[PodObject]) -> ClaimRecord:
    """The record with one MPS daemon for the GPUs that reach one container, as far as that is
    known and can be: those of one request do, and those that a container of the pods uses.
    """
    for requests in _reaching_one(record, pods):
        own = [
            one
            for one in record.devices
            if one.result.main_request in requests and not one.result.admin_access
        ]
        alone = {one.gpu: one.mps for one in own if one.mps and one.placement is None}
        if 1 < len(alone) == len(own) and (mps := _for_all(alone)):
            devices = (replace(one, mps=mps) if one in own else one for one in record.devices)
            record = replace(record, devices=tuple(devices))
    return record


def _reaching_one(record: ClaimRecord, pods: Iterable[PodObject]) -> Iterable[set[str]]:
    """Which main requests have a container in common, directly or by others."""
    found = [{request} for request in dict.fromkeys(map(_request, record.devices))]
    for container in (user for pod in pods for user in pod.users_of(record.name)):
        used = [requests for requests in found if any(map(container.uses, requests))]
        rest = [requests for requests in found if requests not in used]
        found = [*rest, set[str]().union(*used)]
    return found


def _for_all(devices: Mapping[str, WantedMps]) -> WantedMps | None:
    """One daemon for these GPUs, each with what is wanted of it alone: the limits of memory count
    for each GPU, the least of threads for all. None where the daemons are not alike.
    """
    first, *more = devices.values()
    if any(_kinds(first) != _kinds(one) for one in more):
        return None
    shares = zip(*(one.sharing.shares for one in devices.values()), strict=True)
    together = tuple(_together(dict(zip(devices, kind, strict=True))) for kind in shares)
    sharing = replace(first.sharing, shares=together)
    return replace(first, sharing=sharing, devices=tuple(sorted(devices)))


def _kinds(wanted: WantedMps) -> tuple[object, ...]:
    """What has to be the same on all GPUs of a daemon."""
    kinds = [(share.count, share.memory is None) for share in wanted.sharing.shares]
    return wanted.account, wanted.sharing.enforce, kinds


def _together(kind: Mapping[str, Share]) -> Share:
    """One kind of client, by GPU, on all of them."""
    shares = kind.values()
    limits = [(gpu, share.memory, share.total) for gpu, share in kind.items() if share.memory]
    threads = [share.threads for share in shares if share.threads is not None]
    return replace(
        next(iter(shares)),
        threads=min(threads, default=None),
        by_device=tuple(sorted(limits)) if len({one[1:] for one in limits}) > 1 else (),
    )


def refuse_conflicts(
    record: ClaimRecord, others: Iterable[ClaimRecord], pods: Iterable[PodObject]
) -> None:
    """Raise ClaimRefused where a container of the pods would have a device of the claim beside one
    that it cannot be used with, of the claim itself or of the `others`.
    """
    known = (record, *others)
    of_pods = (one for pod in pods for one in conflicts(pod, known) if one.concerns(record))
    if conflict := next(chain(_of_requests(record), of_pods), None):
        problem = conflict.problem_of(record)
        raise ClaimRefused(f"{record.title}: {problem.message}", remedy=problem.remedy)


def _of_requests(record: ClaimRecord) -> Iterator[Conflict]:
    """Of whatever container has them."""
    for request in dict.fromkeys(map(_request, record.devices)):
        own = tuple((record, one) for one in record.devices if _request(one) == request)
        if _exclude_each_other(own):
            yield Conflict(f"request {request}", own)


def _request(device: ClaimedDevice) -> str:
    return device.result.main_request


def _name(record: ClaimRecord, device: ClaimedDevice, own: ClaimRecord) -> str:
    """`request gpu (mig-1g-10gb-6) of claim team/other`."""
    of = "" if record.uid == own.uid else f" of {record.title}"
    return f"request {_request(device)} ({device.result.device}){of}"
