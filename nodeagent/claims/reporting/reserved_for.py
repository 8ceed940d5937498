"""The pods that a ResourceClaim is reserved for, read from the API server's object. Pure.

The object is checked as if a tenant had written all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from msgspec import Meta, Struct, ValidationError, convert, field

from nodeagent.structs import read_in_threads

_MOST_PODS: Final = 256  # the API server's own limit


@dataclass(frozen=True, slots=True)
class ReservedFor:
    """The uid of the claim, and the pods that it is reserved for by name, with their uids."""

    uid: str
    pods: tuple[tuple[str, str], ...] = ()


class _Metadata(Struct):
    uid: str = ""


class _Consumer(Struct):
    resource: str = ""
    name: str = ""
    uid: str = ""


class _Status(Struct, rename="camel"):
    reserved_for: Annotated[tuple[_Consumer, ...], Meta(max_length=_MOST_PODS)] = ()


@read_in_threads
class _Claim(Struct):
    metadata: _Metadata = field(default_factory=_Metadata)
    status: _Status | None = None


def read_reserved_for(claim: object | None) -> ReservedFor | None:
    """None where there is no claim, or none that can be read: whether it is as it should be,
    others say.
    """
    try:
        found = convert(claim, _Claim)
    except (ValidationError, RecursionError):
        return None
    consumers = found.status.reserved_for if found.status else ()
    pods = tuple((one.name, one.uid) for one in consumers if one.resource == "pods" and one.name)
    return ReservedFor(found.metadata.uid, pods)
