"""What is read of all claims at one moment, and what can be decided for each. Values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from nodeagent.claims.model import ClaimRecord, FileState
from nodeagent.plan.observed import GpuInstance, ObservedNode, Placement

if TYPE_CHECKING:
    from nodeagent.claims.files.records import UnreadableRecord

# --- what was read --------------------------------------------------------------------------------


class ClaimState(StrEnum):
    """What the claim with a record's uid is at the API server."""

    SAME = "same"  # allocated as the record has it
    OTHER_RESULTS = "other results"
    DEALLOCATED = "deallocated"
    GONE = "gone"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Allocated:
    """A device that the kubelet gave to a container for a claim, from its pod-resources."""

    namespace: str
    claim: str
    pod: str
    key: tuple[str, str, str]  # as `Result.key`
    container: str = ""

    def __str__(self) -> str:
        return f"pod {self.namespace}/{self.pod}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`claims` and `files` are by uid; a claim that is not in them is unknown, a file missing.
    `allocations` None: the kubelet did not answer. `planned` are GPU and placement of the instances
    that belong to a plan.
    """

    boot_id: str
    node: ObservedNode
    records: tuple[ClaimRecord, ...] = ()
    unreadable: tuple[UnreadableRecord, ...] = ()
    claims: Mapping[str, ClaimState] = field(default_factory=dict)
    files: Mapping[str, FileState] = field(default_factory=dict)
    allocations: tuple[Allocated, ...] | None = None
    planned: frozenset[tuple[str, Placement]] = frozenset()


# --- what is to be done ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Keep:
    """Nothing for now; `why`, where it is not as it should be."""

    uid: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Repair:
    """Make again what is gone of a claim that is ready, or was before, verify the rest, and write
    anew what differs.
    """

    uid: str


@dataclass(frozen=True, slots=True)
class Adopt:
    """Write down the ids of what was made before they could be."""

    uid: str


@dataclass(frozen=True, slots=True)
class FinishRelease:
    """Take down what the claim has: what was made for it, its CDI file, its record."""

    uid: str


@dataclass(frozen=True, slots=True)
class HoldBack:
    """Leave the claim as it is: it is not known what it has."""

    uid: str
    why: str


@dataclass(frozen=True, slots=True)
class ReportForeign:
    """An instance that neither a record nor a plan has: it is left alone."""

    gpu: str
    instance: GpuInstance


Decision = Keep | Repair | Adopt | FinishRelease | HoldBack | ReportForeign
