"""What is wrong with which part of a GPU, since when, and what would help, as values."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, NamedTuple

from msgspec import Meta

from nodeagent.plan.observed import Placement
from nodeagent.plan.users import Pod
from nodeagent.structs import Struct

# Since 1970 or since boot, up to the last that a calendar's year 9999 has.
Seconds = Annotated[float, Meta(ge=0, le=253402300799)]


class Severity(StrEnum):
    """The severity of a finding. One that is `healthy` is reported, but the device is well."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"  # works, but not as it should
    UNKNOWN = "unknown"  # the driver does not say
    UNHEALTHY = "unhealthy"  # nothing new belongs there


_RANK = {severity: rank for rank, severity in enumerate(Severity)}


class Action(StrEnum):
    """Remedies, from the least disturbing to the most."""

    NONE = "none"
    RESTART_APPLICATION = "restart application"
    RESET_GPU = "reset GPU"
    REBOOT = "reboot"
    INSPECT_HARDWARE = "inspect hardware"


class End(StrEnum):
    """Reasons that end a finding."""

    GONE = "its cause is gone"  # a reading says so
    RESET = "the GPU was reset"
    REBOOT = "the node rebooted"
    REPLACED = "another GPU is in its place"
    LAPSED = "it did not come back"  # for as long as `limits` says
    INSTANCE_GONE = "its GPU instance is gone"
    CLEARED = "it was cleared by hand"


class Moment(NamedTuple):
    """`uptime`: seconds since boot, which never jump; `wall`: seconds since 1970, for people."""

    uptime: Seconds
    wall: Seconds


class Location(Struct, frozen=True, order=True):
    """The part that is hit: a GPU by UUID ("" for the node), or a GPU or compute instance of it.

    `placement` is where the GPU instance lies, as soon as that is known: ids are used again,
    memory slices are not.
    """

    gpu: str = ""
    instance: int | None = None
    compute: int | None = None
    placement: Placement | None = None

    @property
    def ids(self) -> tuple[str, int, int]:
        """Distinguishes places and sorts them; -1 stands for the whole."""
        none = -1
        return (
            self.gpu,
            none if self.instance is None else self.instance,
            none if self.compute is None else self.compute,
        )


Key = tuple[str, int, str, int, int]  # cause, code and the ids of the place


class Finding(Struct, frozen=True):
    """One thing that is wrong. `cause` names a row of the check table.

    `code` distinguishes findings of one cause: the XID; -1 where there is but one. `parts` are the
    numbers of what is concerned of several, such as links. `since` is when it was found first,
    `last` when last, `count` how often. `pid` is 0 where no process is known. `pods` are joined
    later and never forgotten while it lasts.
    """

    check: str
    cause: str
    severity: Severity
    action: Action
    evidence: str
    place: Location
    since: Moment
    last: Moment
    code: int = -1
    count: int = 1
    pid: int = 0
    pods: tuple[Pod, ...] = ()
    parts: tuple[int, ...] = ()

    @property
    def key(self) -> Key:
        return (self.cause, self.code, *self.place.ids)


def worst(severities: Iterable[Severity]) -> Severity:
    """The status that several findings make together: healthy when there are none."""
    return max(severities, key=_RANK.__getitem__, default=Severity.HEALTHY)


def rank(severity: Severity) -> int:
    """0 for healthy, rising to 3 for unhealthy."""
    return _RANK[severity]


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sorted by GPU, the worst first, in an order that is always the same."""
    return tuple(sorted(findings, key=lambda f: (f.place.gpu, -rank(f.severity), f.key)))
