"""What is reported of claimed devices: how well they are, which their pods' status says, and the
`status.devices` of ResourceClaims. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from nodeagent.claims.model import ClaimedDevice, ClaimRecord, RecordPhase
from nodeagent.claims.names import DRIVER
from nodeagent.claims.parts import is_there
from nodeagent.claims.serving.claim_object import ClaimObject, Key
from nodeagent.health.fencing import Fence, fences
from nodeagent.health.findings import Finding, Severity
from nodeagent.health.reporting import sentence
from nodeagent.health.state import HealthState
from nodeagent.plan.observed import Access, ObservedNode
from nodeagent.views.health_remedies import HealthRemedies

Status = Literal["healthy", "unhealthy", "unknown"]
Json = dict[str, Any]

READY: Final = "Ready"
MAX_MESSAGE: Final = 1024  # characters; the API allows 32 KiB


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


# --- status.devices -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """What is said of one device; `data` is what it is on the hardware."""

    key: Key
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str
    data: Json


def device_statuses(
    record: ClaimRecord, health: Mapping[tuple[str, str], DeviceHealth]
) -> tuple[DeviceStatus, ...]:
    """The statuses of a claim that is ready, or was; `health` by pool and device."""
    return tuple(
        _status(record, device, health.get((device.result.pool, device.result.device)))
        for device in record.devices
    )


def _status(
    record: ClaimRecord, device: ClaimedDevice, health: DeviceHealth | None
) -> DeviceStatus:
    key, data = device.result.key, _data(device)
    message = health.message[:MAX_MESSAGE] if health else ""
    if record.phase is RecordPhase.RELEASING:
        return DeviceStatus(key, "False", "Releasing", "it is being released", data)
    if record.phase is not RecordPhase.READY:
        return DeviceStatus(key, "False", "Preparing", "it is being made again", data)
    match health.health if health else "unknown":
        case "healthy":
            return DeviceStatus(key, "True", "Prepared", "", data)
        case "unhealthy":
            return DeviceStatus(key, "False", "Unhealthy", message, data)
        case "unknown":
            return DeviceStatus(key, "Unknown", "Unknown", message, data)


def _data(device: ClaimedDevice) -> Json:
    """The fields of `data`, without those that are not known."""
    found: Json = {"gpu": device.gpu}
    if device.uuid:
        found["uuid"] = device.uuid
    if device.placement is not None:
        found["profile"] = device.profile
        found["placement"] = {"start": device.placement.start, "size": device.placement.size}
    return found


def entries(
    wanted: Iterable[DeviceStatus], there: Mapping[Key, tuple[DeviceStatus, str]], now: str
) -> list[Json]:
    """The entries of `status.devices`. A condition that stays as it is keeps the time of its last
    change.
    """
    found = []
    for one in wanted:
        pool, device, share = one.key
        known = there.get(one.key)
        since = known[1] if known and known[0].status == one.status and known[1] else now
        condition = {
            "type": READY,
            "status": one.status,
            "reason": one.reason,
            "message": one.message,
            "lastTransitionTime": since,
        }
        key = {"driver": DRIVER, "pool": pool, "device": device}
        shared = {"shareID": share} if share else {}
        found.append({**key, **shared, "conditions": [condition], "data": one.data})
    return found


def shown_statuses(claim: ClaimObject) -> Mapping[Key, tuple[DeviceStatus, str]]:
    """The statuses at the API server, each with the time at which its condition changed."""
    return {
        device.key: (
            DeviceStatus(
                device.key,
                ready.status,
                ready.reason,
                ready.message,
                device.data if isinstance(device.data, dict) else {},
            ),
            ready.last_transition_time,
        )
        for device in claim.status.devices
        if device.driver == DRIVER
        for ready in device.conditions or ()
        if ready.type == READY
    }
