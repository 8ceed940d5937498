"""A ResourceClaim as the API server has it, as far as it matters here.

Fields that are not known are passed over, since every release of Kubernetes adds some.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from nodeagent.structs import read_in_threads

_MOST_RESULTS, _MOST_CONFIGURATIONS = 32, 64  # the API server's own limits


class Source(StrEnum):
    """Who wrote a configuration: as the allocation has it."""

    CLASS = "FromClass"
    CLAIM = "FromClaim"


_Names = Annotated[tuple[str, ...], Meta(max_length=64)]


class _Metadata(Struct):
    uid: str


class AllocatedDevice(Struct, rename="camel"):
    """One device that the claim was allocated, of whichever driver."""

    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None
    share_id: str | None = field(name="shareID", default=None)
    consumed_capacity: Annotated[dict[str, str], Meta(max_length=32)] | None = None


class _Opaque(Struct):
    driver: str
    parameters: Any = None


class WrittenConfiguration(Struct):
    """Opaque parameters of a class or of the claim, of whichever driver; no `requests`: for all."""

    source: Source
    requests: _Names | None = None
    opaque: _Opaque | None = None

    def names(self, result: AllocatedDevice) -> bool:
        """Whether it is for the result's request by name."""
        return result.request in (self.requests or ())

    def concerns(self, result: AllocatedDevice) -> bool:
        """A main request's name stands for all of its subrequests."""
        main = result.request.partition("/")[0]
        return not self.requests or self.names(result) or main in self.requests


class AllocatedDevices(Struct):
    """The allocation, with the configurations for it."""

    results: Annotated[tuple[AllocatedDevice, ...], Meta(max_length=_MOST_RESULTS)] = ()
    config: (
        Annotated[tuple[WrittenConfiguration, ...], Meta(max_length=_MOST_CONFIGURATIONS)] | None
    ) = None


class _Allocation(Struct):
    devices: AllocatedDevices


class _Status(Struct):
    allocation: _Allocation | None = None


@read_in_threads
class ClaimObject(Struct):
    """The claim."""

    metadata: _Metadata
    status: _Status | None = None
