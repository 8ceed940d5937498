"""A ResourceClaim's `status.devices` as the agent has it to say. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from nodeagent.claims.model import ClaimedDevice, ClaimRecord, RecordPhase
from nodeagent.claims.names import DRIVER
from nodeagent.claims.reporting.device_health import DeviceHealth
from nodeagent.claims.serving.claim_object import ClaimObject, Key

Json = dict[str, Any]

READY: Final = "Ready"
MAX_MESSAGE: Final = 1024  # characters; the API allows 32 KiB


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
