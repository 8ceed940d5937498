"""What a recorded claim is at the API server now."""

from __future__ import annotations

from msgspec import ValidationError, convert

from nodeagent.claims.model import ClaimRecord
from nodeagent.claims.names import DRIVER
from nodeagent.claims.serving.allocation import ClaimRefused, read_allocation
from nodeagent.claims.serving.claim_object import ClaimObject
from nodeagent.claims.upkeep.decisions import ClaimState


def read_state(claim: object | None, record: ClaimRecord) -> ClaimState:
    """What the record's claim is now, `claim` being what has its name, None where nothing has.

    One that cannot be read is UNKNOWN, so that nothing of it is released.
    """
    if claim is None:
        return ClaimState.GONE
    try:
        found = convert(claim, ClaimObject)
    except (ValidationError, RecursionError):
        return ClaimState.UNKNOWN
    if found.metadata.uid != record.uid:
        return ClaimState.GONE
    if found.status is None or found.status.allocation is None:
        return ClaimState.DEALLOCATED
    if all(one.driver != DRIVER for one in found.status.allocation.devices.results):
        return ClaimState.OTHER_RESULTS
    namespace, name = record.namespace, record.name
    try:
        allocation = read_allocation(claim, namespace=namespace, name=name, uid=record.uid)
    except ClaimRefused:
        return ClaimState.UNKNOWN
    return ClaimState.SAME if record.is_of(allocation) else ClaimState.OTHER_RESULTS
