"""Why work on a claim fails, in a few words: codes of refusals, and labels of a metric."""

from __future__ import annotations

from typing import Final

from nodeagent.claims.files.cdi_files import NoToolkitEdits
from nodeagent.claims.files.records import RecordNotKept
from nodeagent.claims.serving.allocation import ClaimRefused
from nodeagent.claims.serving.outcomes import NotAdmitted
from nodeagent.errors import DriverError, NodeagentError, StillInUse, UnknownDevice
from nodeagent.files.open_directory import PathRefused
from nodeagent.plan.problems import Code


class ClaimUnread(NodeagentError):
    """The API server does not say what the claim is."""


REFUSED: Final = "ClaimRefused"  # the claim itself is wrong, or another one is in its way
CDI: Final = "Cdi"
OTHER: Final = "Other"
INTERNAL: Final = "Internal"  # a fault of the agent's
REPORT_FAULT: Final = (
    "the kubelet asks again; report it with the agent's log (`journalctl -u nodeagent`, in a "
    "cluster `kubectl logs` of its pod) and what `nodeagent bundle nodeagent.tar.gz` writes"
)

_REASONS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (StillInUse, Code.IN_USE.value),
    (UnknownDevice, Code.UNKNOWN_DEVICE.value),
    (DriverError, Code.DRIVER.value),
    (ClaimUnread, Code.CLUSTER.value),
    (RecordNotKept, Code.STATE_FILE.value),
    (NoToolkitEdits, CDI),
    (PathRefused, CDI),
    (ClaimRefused, REFUSED),
    (NodeagentError, OTHER),
)


def reason_of(error: Exception) -> str:
    """One word of a few."""
    if isinstance(error, NotAdmitted):
        return error.code.value
    return next((word for kind, word in _REASONS if isinstance(error, kind)), INTERNAL)
