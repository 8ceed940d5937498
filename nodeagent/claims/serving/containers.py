"""Devices that reach one container and cannot be used there together. Pure.

A program is a client of one MPS daemon, with the limits of one share, and sees the device of that
daemon alone: beside another device, with or without MPS, one of the two would never be used, and no
program would say so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nodeagent.claims.model import ClaimedDevice, ClaimRecord, ClaimRefused
from nodeagent.claims.serving.pod_object import PodObject
from nodeagent.plan.problems import Code, Problem


@dataclass(frozen=True, slots=True)
class Conflict:
    """A container of a pod (namespace/name) with its devices, of which one at least has MPS."""

    pod: str
    container: str
    devices: tuple[tuple[ClaimRecord, ClaimedDevice], ...]

    def concerns(self, record: ClaimRecord) -> bool:
        """Return whether a device of that claim is among them."""
        return any(one.uid == record.uid for one, _ in self.devices)

    def problem_of(self, record: ClaimRecord) -> Problem:
        """As a problem of that claim."""
        return Problem.of(
            Code.MPS_CLIENT,
            "podDevices",
            container=self.container,
            pod=self.pod,
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
        if len(devices) > 1 and any(device.mps for _, device in devices):
            yield Conflict(f"{pod.metadata.namespace}/{pod.metadata.name}", name, tuple(devices))


def refuse_conflicts(
    record: ClaimRecord, others: Iterable[ClaimRecord], pods: Iterable[PodObject]
) -> None:
    """Raise ClaimRefused where a container of the pods would have a device of the claim beside one
    that it cannot be used with, of the claim itself or of the `others`.
    """
    known = (record, *others)
    found = (one for pod in pods for one in conflicts(pod, known) if one.concerns(record))
    if conflict := next(found, None):
        problem = conflict.problem_of(record)
        raise ClaimRefused(f"{record.title}: {problem.message}", remedy=problem.remedy)


def _name(record: ClaimRecord, device: ClaimedDevice, own: ClaimRecord) -> str:
    """`request gpu (mig-1g-10gb-6) of claim team/other`."""
    of = "" if record.uid == own.uid else f" of {record.title}"
    return f"request {device.result.main_request} ({device.result.device}){of}"
