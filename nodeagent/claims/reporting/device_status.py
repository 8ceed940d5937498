"""A ResourceClaim's `status.devices` as the agent has it to say. Pure.

The object is checked as if a tenant had written all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct, ValidationError, convert, field

from nodeagent.claims.model import ClaimedDevice, ClaimRecord, Phase
from nodeagent.claims.names import DRIVER
from nodeagent.claims.reporting.device_health import DeviceHealth
from nodeagent.structs import read_in_threads

Json = dict[str, Any]
Key = tuple[str, str, str]  # as `Result.key`

_MOST_DEVICES: Final = 32  # the API server's own limit
READY: Final = "Ready"
LONGEST_MESSAGE: Final = 1024  # characters; the API allows 32 KiB


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """What is said of one device; `data` is what it is on the hardware."""

    key: Key
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str
    data: Json


@dataclass(frozen=True, slots=True)
class ShownClaim:
    """What the API server has: the claim's uid, the devices that it is allocated, and since when
    each condition is as it is.
    """

    uid: str
    allocated: frozenset[Key]
    devices: Mapping[Key, tuple[DeviceStatus, str]]


def device_statuses(
    record: ClaimRecord, health: Mapping[tuple[str, str], DeviceHealth]
) -> tuple[DeviceStatus, ...]:
    """Of a claim that is ready, or was; `health` by pool and device."""
    return tuple(
        _status(record, device, health.get((device.result.pool, device.result.device)))
        for device in record.devices
    )


def _status(
    record: ClaimRecord, device: ClaimedDevice, health: DeviceHealth | None
) -> DeviceStatus:
    key, data = device.result.key, _data(device)
    message = health.message[:LONGEST_MESSAGE] if health else ""
    if record.phase is Phase.RELEASING:
        return DeviceStatus(key, "False", "Releasing", "it is being released", data)
    if record.phase is not Phase.READY:
        return DeviceStatus(key, "False", "Preparing", "it is being made again", data)
    match health.health if health else "unknown":
        case "healthy":
            return DeviceStatus(key, "True", "Prepared", "", data)
        case "unhealthy":
            return DeviceStatus(key, "False", "Unhealthy", message, data)
        case "unknown":
            return DeviceStatus(key, "Unknown", "Unknown", message, data)


def _data(device: ClaimedDevice) -> Json:
    """What is not known is left out."""
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
    """As in the object. A condition that stays as it is keeps the time of its last change."""
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


# --- the object, as far as it matters -------------------------------------------------------------


class _Metadata(Struct):
    uid: str


class _Condition(Struct, rename="camel"):
    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""


class _Allocated(Struct):
    driver: str
    pool: str
    device: str
    share_id: str | None = field(name="shareID", default=None)

    @property
    def key(self) -> Key:
        return self.pool, self.device, self.share_id or ""


class _Device(_Allocated):
    conditions: tuple[_Condition, ...] = ()
    data: Any = None


class _Devices(Struct):
    results: Annotated[tuple[_Allocated, ...], Meta(max_length=_MOST_DEVICES)] = ()


class _Allocation(Struct):
    devices: _Devices = field(default_factory=_Devices)


class _Status(Struct, rename="camel"):
    allocation: _Allocation | None = None
    devices: Annotated[tuple[_Device, ...], Meta(max_length=_MOST_DEVICES)] = ()


@read_in_threads
class _Claim(Struct):
    metadata: _Metadata
    status: _Status = field(default_factory=_Status)


def read_shown(claim: object | None) -> ShownClaim | None:
    """None where there is none, or nothing that can be read."""
    try:
        found = convert(claim, _Claim)
    except (ValidationError, RecursionError):
        return None
    allocation = found.status.allocation or _Allocation()
    own = [one for one in found.status.devices if one.driver == DRIVER]
    return ShownClaim(
        found.metadata.uid,
        frozenset(one.key for one in allocation.devices.results if one.driver == DRIVER),
        {
            one.key: (
                DeviceStatus(
                    one.key,
                    ready.status,
                    ready.reason,
                    ready.message,
                    one.data if isinstance(one.data, dict) else {},
                ),
                ready.last_transition_time,
            )
            for one in own
            for ready in one.conditions
            if ready.type == READY
        },
    )
