"""Whether a claim may have its devices beside the other claims of a GPU. Pure.

The scheduler says what a claim gets. That is not taken at its word: schedulers race, and a
force-deleted pod frees a device before its containers have stopped.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from nodeagent.claims.allocation import ClaimRefused
from nodeagent.claims.model import ClaimRecord
from nodeagent.errors import NodeagentError
from nodeagent.plan.observed import Gpu

if TYPE_CHECKING:
    from nodeagent.claims.records import UnreadableRecord


def require_admission(
    record: ClaimRecord,
    gpu: Gpu,
    others: Iterable[ClaimRecord],
    unreadable: Iterable[UnreadableRecord],
) -> None:
    """Raise NodeagentError, with the claim or record that is in the way, unless it may."""
    for one in unreadable:
        if one.gpus is None or gpu.uuid in one.gpus:
            raise NodeagentError(one.message, remedy=one.remedy)
    for other in others:
        if device := _common(record, other):
            raise ClaimRefused(
                f"{record.title} was allocated what is held already: {device} of {other.title}",
                remedy="wait until that one's pods have ended, or delete this one's pods so that "
                "they are scheduled anew",
            )


def _common(record: ClaimRecord, other: ClaimRecord) -> str:
    """A device of the other's of which this one has a part; "" if there is none."""
    for theirs in other.devices:
        if any(own.overlaps(theirs) for own in record.devices):
            return theirs.result.device
    return ""
