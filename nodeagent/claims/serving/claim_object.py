"""A ResourceClaim as the API server has it, as far as it matters here.

What the API server accepted is taken at its word; of what tenants wrote, only `parameters` is left
for `configuration` to check. Fields that are not known are passed over, since every release of
Kubernetes adds some.
"""

from enum import StrEnum
from typing import Any, Literal

from msgspec import Struct, field, json

from nodeagent.claims.names import is_own

Key = tuple[str, str, str]  # pool, device and share id, as `Result.key`


class Source(StrEnum):
    """Who wrote a configuration: as the allocation has it."""

    CLASS = "FromClass"
    CLAIM = "FromClaim"


class _Metadata(Struct):
    uid: str


class _Device(Struct, rename="camel", kw_only=True):
    driver: str
    pool: str
    device: str
    share_id: str | None = field(name="shareID", default=None)

    @property
    def key(self) -> Key:
        return self.pool, self.device, self.share_id or ""

    @property
    def is_own(self) -> bool:
        """Return whether it is one of this agent's devices."""
        return is_own(self.driver, self.pool)


class AllocatedDevice(_Device, rename="camel", kw_only=True):
    """A device that the claim was allocated, of whichever driver."""

    request: str
    admin_access: bool | None = None
    consumed_capacity: dict[str, str] | None = None


class _Opaque(Struct):
    driver: str
    parameters: Any = None


class WrittenConfiguration(Struct):
    """Opaque parameters of a class or of the claim, of whichever driver; no `requests`: for all."""

    source: Source
    requests: tuple[str, ...] | None = None
    opaque: _Opaque | None = None

    def names(self, result: AllocatedDevice) -> bool:
        """Return whether it is for the result's request by name."""
        return result.request in (self.requests or ())

    def concerns(self, result: AllocatedDevice) -> bool:
        """A main request's name stands for all of its subrequests."""
        main = result.request.partition("/")[0]
        return not self.requests or self.names(result) or main in self.requests


class AllocatedDevices(Struct):
    """The allocation, with the configurations for it."""

    results: tuple[AllocatedDevice, ...] = ()
    config: tuple[WrittenConfiguration, ...] = ()


class _Allocation(Struct):
    devices: AllocatedDevices = field(default_factory=AllocatedDevices)


class ClaimCondition(Struct, rename="camel"):
    """A condition of a device, as its driver writes it."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""


class ShownDevice(_Device, kw_only=True, omit_defaults=True):
    """What a driver writes of a device of its own; the API server has null for no conditions.
    `data` is what it is on the hardware.
    """

    conditions: tuple[ClaimCondition, ...] | None = None
    data: Any = None


class _Consumer(Struct):
    resource: str = ""
    name: str = ""
    uid: str = ""


class _Status(Struct, rename="camel"):
    allocation: _Allocation | None = None
    reserved_for: tuple[_Consumer, ...] = ()
    devices: tuple[ShownDevice, ...] = ()


class ClaimObject(Struct):
    """The claim."""

    metadata: _Metadata
    status: _Status = field(default_factory=_Status)

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def allocated(self) -> AllocatedDevices | None:
        """None while it is not allocated."""
        return self.status.allocation.devices if self.status.allocation else None

    @property
    def pods(self) -> tuple[tuple[str, str], ...]:
        """The pods that it is reserved for by name, with their uids."""
        consumers = self.status.reserved_for
        pods = ((one.name, one.uid) for one in consumers if one.resource == "pods" and one.name)
        return tuple(pods)


# Made in the thread that imports this: several that are the first to use a class crash (0.22).
_DECODER = json.Decoder(ClaimObject)


def read_claim(text: bytes) -> ClaimObject:
    """Raises ValueError or RecursionError."""
    return _DECODER.decode(text)
