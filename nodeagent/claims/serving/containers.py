"""Devices that reach one container and cannot be used there together. Pure.

A program is a client of one MPS daemon, and sees the device of that daemon alone: beside another
device, with or without MPS, one of the two would never be used, and no program would say so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nodeagent.claims.model import ClaimedDevice, ClaimRecord, ClaimRefused
from nodeagent.claims.serving.pod_object import PodObject

Held = tuple[ClaimRecord, ClaimedDevice]


@dataclass(frozen=True, slots=True)
class Conflict:
    """A container of a pod (namespace/name) with its devices, of which one at least has MPS."""

    pod: str
    container: str
    devices: tuple[Held, ...]

    def concerns(self, record: ClaimRecord) -> bool:
        """Return whether a device of that claim is among them."""
        return any(one.uid == record.uid for one, _ in self.devices)

    def message(self, record: ClaimRecord) -> str:
        """The sentence about that claim, which it does not name."""
        found = ", ".join(_name(one, device, record) for one, device in self.devices)
        return (
            f"container {self.container} of pod {self.pod} has devices that exclude each other, "
            f"since a program that uses MPS sees the device of one MPS daemon alone: {found}"
        )

    @property
    def remedy(self) -> str:
        return (
            "have each container of the pod name one of them in resources.claims (with request, "
            "where a claim has several), or configure all of them without MPS"
        )


def conflicts(pod: PodObject, records: Iterable[ClaimRecord]) -> Iterator[Conflict]:
    """Of a pod with the claims that have these records; others are passed over.

    What an administrator looks at is no device to compute on.
    """
    found: dict[str, list[Held]] = {}
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
        if len(devices) > 1 and any(device.mps for _, device in devices):
            yield Conflict(f"{pod.metadata.namespace}/{pod.metadata.name}", name, tuple(devices))


def require_one_daemon(
    record: ClaimRecord, others: Iterable[ClaimRecord], pods: Iterable[PodObject]
) -> None:
    """Raise ClaimRefused where a container of the pods would have a device of the claim beside one
    that it cannot be used with, of the claim itself or of the `others`.
    """
    known = (record, *others)
    found = (one for pod in pods for one in conflicts(pod, known) if one.concerns(record))
    if conflict := next(found, None):
        raise ClaimRefused(f"{record.title}: {conflict.message(record)}", remedy=conflict.remedy)


def _name(record: ClaimRecord, device: ClaimedDevice, own: ClaimRecord) -> str:
    """`request gpu (mig-1g-10gb-6) of claim team/other`."""
    of = "" if record.uid == own.uid else f" of {record.title}"
    return f"request {device.result.main_request} ({device.result.device}){of}"
