"""The check table: every cause there is, how bad it is, what would help and what ends it.

The rows are data (`check_table.json`); `docs/runbook.md` is made of them.
"""

import pkgutil
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from msgspec import json

from nodeagent.health.findings import Action, End, Finding, Location, Moment, Severity
from nodeagent.health.readings import GpuEventKind, Silence
from nodeagent.health.xids import XidClass
from nodeagent.structs import Struct


class Check(StrEnum):
    """Checks, by the label of the metric."""

    XID = "xid"
    RECOVERY_ACTION = "recoveryAction"
    GPU_ACCESS = "gpuAccess"
    ECC = "ecc"
    ROW_REMAP = "rowRemap"
    MEMORY_REPAIR = "memoryRepair"
    RETIRED_PAGES = "retiredPages"
    POISON = "poison"
    POWER = "power"
    THERMAL = "thermal"
    TEMPERATURE = "temperature"
    CLOCKS = "clocks"
    PCIE = "pcie"
    NVLINK = "nvlink"
    FABRIC = "fabric"
    MODES = "modes"
    INFOROM = "inforom"
    GPU_COUNT = "gpuCount"
    DRIVER = "driver"
    EVENTS = "events"
    MIG = "mig"


_GONE = frozenset({End.GONE, End.REBOOT, End.CLEARED})
_REPAIRED = frozenset({End.RESET, End.REBOOT, End.CLEARED})
_LAPSES = _REPAIRED | {End.LAPSED}
_ENDS = {
    "gone": _GONE,
    "goneOrReset": _GONE | {End.RESET},
    "repaired": _REPAIRED,
    "lapses": _LAPSES,
    "application": _LAPSES | {End.INSTANCE_GONE},
}


class Row(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """One cause. `until` names what ends it. `holds`: the seconds for which a reading must show it
    until it is raised, and not show it until it ends; own choices, as most of `limits`.

    `words` follow their subject in a sentence (`GPU 0 fell off the bus`). `when`: what raises it.
    `advice`: what to do, in sentences; `{reboot}`, `{reset}` and `{restart}` stand for the
    sentences about these, other names in braces for advice of several causes. `subject` is that of
    a finding of no single GPU.

    `xids`, `event`, `silences`: the class of XIDs, the event of NVML, or the silences of the driver
    for a GPU that raise it. `of_slice`: an XID hits no more than the GPU instance that it names.
    `driver_knows`: the recovery action that the driver reports replaces the row's.
    `inspect_repeated`: seen twice, the hardware is to be inspected.
    """

    cause: str
    check: Check
    severity: Severity
    action: Action
    until: str
    words: str
    when: str
    advice: str
    subject: str = "a GPU of this node"
    holds: tuple[float, float] = (0.0, 0.0)
    xids: XidClass | None = None
    event: GpuEventKind | None = None
    silences: tuple[Silence, ...] = ()
    of_slice: bool = False
    driver_knows: bool = False
    inspect_repeated: bool = False

    @property
    def ends(self) -> frozenset[End]:
        return _ENDS[self.until]

    @property
    def reason(self) -> str:
        """The cause in CamelCase, for programs."""
        return self.cause[0].upper() + self.cause[1:]


class _Table(Struct, frozen=True):
    """The rows; advice of several of them by its name; what shows the figures of a check.

    `recoveries`: the driver's own word by its number (field value 230): what it is called, how bad
    that is, what it asks for.
    """

    advice: Mapping[str, str]
    figures: Mapping[Check, str]
    recoveries: Mapping[int, tuple[str, Severity, Action]]
    rows: tuple[Row, ...]


_TABLE = json.decode(pkgutil.get_data("nodeagent.health", "check_table.json") or b"", type=_Table)
ROWS, FIGURES, RECOVERIES = _TABLE.rows, _TABLE.figures, _TABLE.recoveries
BY_CAUSE = MappingProxyType({row.cause: row for row in ROWS})
# What takes a GPU away from all its users, the most certain first.
GONE = ("fallenOffBus", "gpuMissing", "gpuLost", "gpuUnavailable")


def new_finding(
    cause: str, place: Location, evidence: str, at: Moment, *, code: int = -1, pid: int = 0
) -> Finding:
    """A finding as its cause's row has it."""
    row = BY_CAUSE[cause]
    check = row.check.value
    return Finding(check, cause, row.severity, row.action, evidence, place, at, at, code, pid=pid)


_XID_NEEDS = {
    Action.RESET_GPU: " that needs a GPU reset",
    Action.REBOOT: " that needs a reboot",
    Action.INSPECT_HARDWARE: " that repairs do not mend",
}


def words_of(finding: Finding) -> str:
    """Words for a finding's cause. What an XID needs, the driver may know better than the table."""
    if finding.cause not in ("xidReset", "xidReboot"):
        return BY_CAUSE[finding.cause].words
    if finding.severity is Severity.HEALTHY:
        return "reported an error that needs no recovery"
    return f"reported an error{_XID_NEEDS.get(finding.action, '')}"


_OTHERWISE = {
    Action.NONE: "",
    Action.RESTART_APPLICATION: "{restart} The GPU goes on.",
    Action.RESET_GPU: "{reset}",
    Action.REBOOT: "{reboot}",
    Action.INSPECT_HARDWARE: "{diagnostic}",
}


REBOOT_NODE = "Drain and reboot the node."
RESET_GPU = "Drain the GPU, then reset it."
RESTART = "Restart the application."


def advice(
    cause: str,
    action: Action,
    *,
    reboot: str = REBOOT_NODE,
    reset: str = RESET_GPU,
    restart: str = RESTART,
) -> str:
    """What to do about a cause, in sentences; `reboot`, `reset` and `restart` say how that is done.

    Where another action than the usual one is suggested, such as after the driver's own recovery
    action or the second time, the advice for that action.
    """
    row = BY_CAUSE[cause]
    text = row.advice if action is row.action else _OTHERWISE[action]
    return text.format(reboot=reboot, reset=reset, restart=restart, **_TABLE.advice)
