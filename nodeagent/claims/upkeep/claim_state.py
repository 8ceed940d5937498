"""What a recorded claim is at the API server now."""

from __future__ import annotations

from msgspec import ValidationError, convert

from nodeagent.claims.model import ClaimRecord, ClaimRefused
from nodeagent.claims.names import DRIVER
from nodeagent.claims.serving.allocation import read_allocation
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
    # A record has its configuration as the settings had it read: either way it is the same claim.
    state = ClaimState.OTHER_RESULTS
    for nvidia in (False, True):
        try:
            allocation = read_allocation(
                claim, namespace=record.namespace, name=record.name, uid=record.uid, nvidia=nvidia
            )
        except ClaimRefused:
            state = ClaimState.UNKNOWN
            continue
        if record.is_of(allocation):
            return ClaimState.SAME
    return state
