"""How well the devices of this node's claims are, with what their pods' status says of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

from nodeagent.claims.model import ClaimedDevice, ClaimRecord, RecordPhase
from nodeagent.claims.parts import is_there
from nodeagent.health.fencing import Fence, fences
from nodeagent.health.findings import Finding, Severity
from nodeagent.health.reporting import sentence
from nodeagent.health.state import HealthState
from nodeagent.plan.observed import Access, ObservedNode
from nodeagent.views.health_remedies import HealthRemedies

Status = Literal["healthy", "unhealthy", "unknown"]


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """`at`: when that was found, in seconds since 1970; two that differ in it alone are equal."""

    pool: str
    device: str
    health: Status
    at: float = field(compare=False)
    message: str = ""


_NO_HEALTH: Final = HealthState()
_SHOWS: Final = "the agent makes it again, and `nodeagent claims` shows what keeps it from that"


def device_health(
    records: Iterable[ClaimRecord],
    node: ObservedNode,
    health: HealthState = _NO_HEALTH,
    *,
    node_name: str,
    unread: str = "",
    now: float,
) -> tuple[DeviceHealth, ...]:
    """The health of each device that a claim has, by what is observed and found at `now`.

    A device is unhealthy as soon as one of its memory slices, or its GPU, takes nothing new, and
    where a claim that is ready does not have it any more; nothing is said of one that is not there
    yet. `unread`: why nothing new is known of the GPUs, if so.
    """
    remedies = HealthRemedies(node_name, in_cluster=True, observed=node)
    fenced = fences(health.findings, node).all
    found: dict[tuple[str, str], DeviceHealth] = {}
    for record, device in ((one, device) for one in records for device in one.devices):
        if health.findings and (finding := _unhealthy(device, node, health, fenced)):
            known = health.gpus.get(finding.place.gpu)
            helps = remedies.of_finding(finding, known.index if known else None)
            status: Status = "unhealthy"
            message = f"{sentence(finding, health.gpus)}. {helps}".rstrip()
        elif unread:
            status, message = "unknown", unread
        else:
            status, message = _access(device, node)
            gpu = node.gpu(device.gpu)
            if gpu and status == "healthy" and not is_there(device, gpu):
                if record.phase is not RecordPhase.READY:
                    continue
                status = "unhealthy"
                message = f"{device.result.device} of {gpu.title} is gone; {_SHOWS}"
        key = pool, name = device.result.pool, device.result.device
        found[key] = DeviceHealth(pool, name, status, now, message)
    return tuple(found.values())


def _unhealthy(
    device: ClaimedDevice, node: ObservedNode, health: HealthState, fenced: Iterable[Fence]
) -> Finding | None:
    """What is wrong with it; of a GPU that is not listed any more, what is found of all of it."""
    if node.gpu(device.gpu) is None:
        found = (f for f in health.findings if f.place.gpu == device.gpu)
        return next((f for f in found if f.severity is Severity.UNHEALTHY), None)
    mine = (fence for fence in fenced if fence.gpu == device.gpu)
    return next((fence.finding for fence in mine if device.lies_on(fence.placement)), None)


def _access(device: ClaimedDevice, node: ObservedNode) -> tuple[Status, str]:
    gpu = node.gpu(device.gpu)
    if gpu is None:
        return "unknown", f"the driver does not list {device.gpu}"
    match gpu.access:
        case Access.OK:
            return "healthy", ""
        case Access.LOST:
            return "unhealthy", f"{gpu.title} is lost: {gpu.access_reason}"
        case Access.UNKNOWN:
            return "unknown", f"{gpu.title} does not answer: {gpu.access_reason}"
