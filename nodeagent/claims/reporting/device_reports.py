"""What is reported of claimed devices: how well they are, which their pods' status says, and the
`status.devices` of ResourceClaims. Pure.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from nodeagent.claims.model import ClaimedDevice, ClaimRecord, RecordPhase
from nodeagent.claims.parts import is_there
from nodeagent.claims.serving.claim_object import ClaimCondition, ClaimObject, Key, ShownDevice
from nodeagent.health.fencing import Fence, fences
from nodeagent.health.findings import Finding, Severity
from nodeagent.health.reporting import sentence
from nodeagent.health.state import HealthState
from nodeagent.plan.observed import Access, ObservedNode
from nodeagent.structs import replace
from nodeagent.views.health_remedies import HealthRemedies
from nodeagent.views.text import shortened

Status = Literal["healthy", "unhealthy", "unknown"]
Json = dict[str, Any]

READY: Final = "Ready"
MAX_MESSAGE: Final = 1024  # characters; the API allows 32 KiB


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """`at`: when that was found, in seconds since 1970; two that differ in it alone are equal.
    `remedy`: what mends it, with which the message ends.
    """

    pool: str
    device: str
    health: Status
    at: float = field(compare=False)
    message: str = ""
    remedy: str = ""


_NO_HEALTH: Final = HealthState()
_SHOWS: Final = "the agent makes it again, and `nodeagent claims` shows what keeps it from that"


def device_health(
    records: Iterable[ClaimRecord],
    remedies: HealthRemedies,
    health: HealthState = _NO_HEALTH,
    *,
    unread: str = "",
    now: float,
) -> tuple[DeviceHealth, ...]:
    """The health of each device that a claim has, by what is observed and found at `now`.

    A device is unhealthy as soon as one of its memory slices, or its GPU, takes nothing new, and
    where a claim that is ready does not have it any more; nothing is said of one that is not there
    yet. `unread`: why nothing new is known of the GPUs, if so.
    """
    node = remedies.observed
    fenced = fences(health.findings, node).all
    found: dict[tuple[str, str], DeviceHealth] = {}
    for record, device in ((one, device) for one in records for device in one.devices):
        remedy = ""
        if health.findings and (finding := _unhealthy(device, node, health, fenced)):
            known = health.gpus.get(finding.place.gpu)
            remedy = remedies.of_finding(finding, known.index if known else None)
            status: Status = "unhealthy"
            message = f"{sentence(finding, health.gpus)}. {remedy}".rstrip()
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
        found[key] = DeviceHealth(pool, name, status, now, message, remedy)
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


def device_statuses(
    record: ClaimRecord, health: Mapping[tuple[str, str], DeviceHealth]
) -> tuple[ShownDevice, ...]:
    """The statuses of a claim that is ready, or was, without times; `health` by pool and device."""
    return tuple(
        ShownDevice(
            driver=device.result.driver,
            pool=device.result.pool,
            device=device.result.device,
            share_id=device.result.share_id or None,
            conditions=(_ready(record, health.get((device.result.pool, device.result.device))),),
            data=_data(device),
        )
        for device in record.devices
    )


def _ready(record: ClaimRecord, health: DeviceHealth | None) -> ClaimCondition:
    message = shortened(health.message, most=MAX_MESSAGE) if health else ""
    if record.phase is RecordPhase.RELEASING:
        return ClaimCondition(READY, "False", "Releasing", "it is being released")
    if record.phase is not RecordPhase.READY:
        return ClaimCondition(READY, "False", "Preparing", "it is being made again")
    match health.health if health else "unknown":
        case "healthy":
            return ClaimCondition(READY, "True", "Prepared")
        case "unhealthy":
            return ClaimCondition(READY, "False", "Unhealthy", message)
        case "unknown":
            return ClaimCondition(READY, "Unknown", "Unknown", message)


def _data(device: ClaimedDevice) -> Json:
    """The fields of `data`, without those that are not known."""
    found: Json = {"gpu": device.gpu}
    if device.uuid:
        found["uuid"] = device.uuid
    if device.placement is not None:
        found["profile"] = device.profile
        found["placement"] = {"start": device.placement.start, "size": device.placement.size}
    return found


def dated(
    wanted: Iterable[ShownDevice], there: Mapping[Key, ShownDevice], now: str
) -> list[ShownDevice]:
    """The statuses with the time of the one condition of each: while that stays, the one there."""
    found = []
    for one in wanted:
        [ready] = one.conditions or ()
        before = there[one.key].conditions if one.key in there else ()
        since = (b.last_transition_time for b in before or () if b.status == ready.status)
        ready = replace(ready, last_transition_time=next(since, now))
        found.append(replace(one, conditions=(ready,)))
    return found


def shown_statuses(claim: ClaimObject) -> Iterator[ShownDevice]:
    """What the API server has of this driver's devices, with the condition that is the agent's."""
    for device in claim.status.devices:
        ready = tuple(one for one in device.conditions or () if one.type == READY)
        if device.is_own and ready:
            yield replace(device, conditions=ready)
