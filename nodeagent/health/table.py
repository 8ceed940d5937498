"""The check table: every cause there is, how bad it is, what would help and what ends it.

`docs/health.md` shows the same rows; a test compares the two.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType

from nodeagent.health.findings import Action, End, Finding, Location, Moment, Severity
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
_GONE_OR_RESET = _GONE | {End.RESET}
_REPAIRED = frozenset({End.RESET, End.REBOOT, End.CLEARED})
_LAPSES = _REPAIRED | {End.LAPSED}
_APPLICATION = _LAPSES | {End.INSTANCE_GONE}


class Row(Struct, frozen=True):
    """One cause.

    `words` follow their subject in a sentence (`GPU 0 fell off the bus`). `when`: what raises it.
    `advice`: what to do, in sentences; `{reboot}`, `{reset}` and `{restart}` stand for the
    sentences about these. `subject` is that of a finding of no single GPU.
    """

    cause: str
    check: Check
    severity: Severity
    action: Action
    ends: frozenset[End]
    words: str
    when: str
    advice: str
    subject: str = "a GPU of this node"

    @property
    def reason(self) -> str:
        """The cause in CamelCase, for programs."""
        return self.cause[0].upper() + self.cause[1:]


_D, _U, _H, _X = Severity.DEGRADED, Severity.UNHEALTHY, Severity.HEALTHY, Severity.UNKNOWN
_NONE, _APP, _RESET = Action.NONE, Action.RESTART_APPLICATION, Action.RESET_GPU
_REBOOT, _INSPECT = Action.REBOOT, Action.INSPECT_HARDWARE

_RESET_ADVICE = "{reset}"
_RMA = "Run the vendor's field diagnostic. If it confirms the fault, have the card replaced."
_COOLING = "Check fans, airflow, dust and the heat of neighbours."
_SUPPLY = "Check the power supply, its cables and the power limit."

# fmt: off
ROWS: tuple[Row, ...] = (
    Row("xidApplication", Check.XID, _H, _APP, _APPLICATION, "reported an error of an application",
        "an XID of the class application", "{restart} The GPU is healthy."),
    Row("xidReset", Check.XID, _U, _RESET, _REPAIRED, "reported an error that needs a GPU reset",
        "an XID of the class gpuReset", _RESET_ADVICE),
    Row("xidReboot", Check.XID, _U, _REBOOT, _REPAIRED, "reported an error that needs a reboot",
        "an XID of the class nodeReboot", "{reboot}"),
    Row("fallenOffBus", Check.XID, _U, _REBOOT, _REPAIRED, "fell off the bus",
        "XID 79, or the kernel log says so",
        "{reboot} If it recurs, check seating and power."),
    Row("xidHardware", Check.XID, _D, _INSPECT, _REPAIRED, "reported a fault of cabling or power",
        "an XID of the class hardware", _SUPPLY),
    Row("xidSoftware", Check.XID, _D, _NONE, _REPAIRED, "reported a fault of driver or firmware",
        "an XID of the class software", "Install another version of the driver or firmware."),
    Row("xidSupport", Check.XID, _D, _NONE, _LAPSES, "reported an error without a defined action",
        "an XID of the class support; seen again: inspect hardware",
        "If it recurs, contact NVIDIA's support."),
    Row("xidUnclassified", Check.XID, _D, _NONE, _LAPSES, "reported an error of an unknown kind",
        "an XID of the class unclassified; seen again: inspect hardware",
        "If you know this XID, give it a class in a table of your own (health.xids)."),
    Row("xidNvlink", Check.XID, _D, _NONE, _LAPSES, "reported an NVLink error",
        "an XID of the class nvlink5; fatal by the kernel log: unhealthy, reset GPU",
        "Check the NVLink fabric. `dmesg | grep -i xid` has the sub-code."),
    Row("recoveryAction", Check.RECOVERY_ACTION, _U, _RESET, _GONE_OR_RESET,
        "needs a recovery, says the driver", "the driver's recovery action is not none",
        "{reset}"),
    Row("gpuLost", Check.GPU_ACCESS, _U, _REBOOT, _GONE_OR_RESET, "is lost",
        "a call answers GPU_IS_LOST", "{reboot}"),
    Row("gpuResetRequired", Check.GPU_ACCESS, _U, _RESET, _GONE_OR_RESET, "needs a reset",
        "a call answers RESET_REQUIRED", _RESET_ADVICE),
    Row("gpuUnavailable", Check.GPU_ACCESS, _U, _REBOOT, _REPAIRED, "became unavailable",
        "event 0x4000", "{reboot}"),
    Row("gpuUnknown", Check.GPU_ACCESS, _X, _NONE, _GONE_OR_RESET, "does not answer",
        "a call fails otherwise", "Wait. If it stays so: {reboot}"),
    Row("gpuHangs", Check.GPU_ACCESS, _X, _NONE, _GONE_OR_RESET,
        "does not answer: a driver call hangs",
        "a call is past its deadline; for 600 s: unhealthy, reboot",
        "Wait. If it stays so: {reboot}"),
    Row("gpuUnbound", Check.GPU_ACCESS, _X, _NONE, _GONE_OR_RESET, "is not bound to the driver",
        "the event of the driver's unbinding, until that of its binding",
        "Bind the NVIDIA driver to it again. It is not sampled until then."),
    Row("eccUncorrected", Check.ECC, _U, _RESET, _GONE_OR_RESET, "has uncorrected memory errors",
        "volatile uncorrected errors > 0; degraded where the driver asks for no recovery",
        _RESET_ADVICE),
    Row("eccDoubleBit", Check.ECC, _U, _RESET, _REPAIRED, "has a double-bit error",
        "event 0x2; healthy where the driver asks for no recovery", _RESET_ADVICE),
    Row("eccStorm", Check.ECC, _D, _INSPECT, _LAPSES, "has a storm of corrected errors",
        "event 0x200", _RMA),
    Row("eccModePending", Check.ECC, _D, _RESET, _GONE_OR_RESET,
        "changes its ECC mode at the next reset",
        "pending ECC mode differs from the current one", _RESET_ADVICE),
    Row("eccUnlike", Check.ECC, _D, _NONE, _GONE,
        "has another ECC mode than GPUs like it",
        "it differs from that of most like GPUs for 60 s",
        "If it is not meant so, set it with `nvidia-smi -e`, which takes a reset."),
    Row("sramThreshold", Check.ECC, _U, _INSPECT, _GONE, "has too many SRAM errors",
        "the driver's SRAM threshold flag", _RMA),
    Row("rowRemapPending", Check.ROW_REMAP, _D, _RESET, _GONE_OR_RESET,
        "has a row of memory that waits to be replaced", "remapping pending", _RESET_ADVICE),
    Row("rowRemapFailed", Check.ROW_REMAP, _U, _INSPECT, _GONE,
        "has a row of memory that could not be replaced", "remapping failed", _RMA),
    Row("rowRemapMany", Check.ROW_REMAP, _U, _INSPECT, _GONE,
        "has too many replaced rows of memory", "remapped for uncorrectable errors >= 512", _RMA),
    Row("rowRemapSpent", Check.ROW_REMAP, _D, _INSPECT, _GONE,
        "has a memory bank without a spare row", "histogram: banks with none > 0", _RMA),
    Row("retirementFailed", Check.ROW_REMAP, _U, _INSPECT, _REPAIRED,
        "has memory that could not be taken out of use", "event 0x800", _RMA),
    Row("bankRemapPending", Check.MEMORY_REPAIR, _D, _RESET, _GONE_OR_RESET,
        "has a memory bank that waits to be replaced", "bank remapping pending", _RESET_ADVICE),
    Row("memoryUnrepairable", Check.MEMORY_REPAIR, _U, _INSPECT, _GONE,
        "has memory that cannot be repaired", "the driver's flag", _RMA),
    Row("repairPending", Check.MEMORY_REPAIR, _D, _RESET, _GONE_OR_RESET,
        "has a repair that waits for a reset", "channel or TPC repair pending", _RESET_ADVICE),
    Row("retiredPagesMany", Check.RETIRED_PAGES, _U, _INSPECT, _GONE,
        "has too many memory pages out of use", "retired pages >= 63", _RMA),
    Row("retiredPagesDoubleBit", Check.RETIRED_PAGES, _D, _INSPECT, _GONE,
        "has many memory pages out of use", "retired by double-bit errors >= 15", _RMA),
    Row("retiredPagesPending", Check.RETIRED_PAGES, _D, _RESET, _GONE_OR_RESET,
        "has a memory page that waits to be taken out of use", "retirement pending", _RESET_ADVICE),
    Row("poison", Check.POISON, _H, _APP, _APPLICATION, "gave poisoned data to an application",
        "event 0x1000", "{restart} The GPU is healthy."),
    Row("poisonFatal", Check.POISON, _U, _RESET, _REPAIRED, "has poisoned data",
        "event 0x2000; healthy where the driver asks for no recovery", _RESET_ADVICE),
    Row("throttledByHeat", Check.THERMAL, _D, _INSPECT, _GONE, "is slowed down by heat",
        "violation counter or software slowdown: >= 10 % of 300 s", _COOLING),
    Row("throttledByPower", Check.POWER, _H, _NONE, _GONE, "is held at its power limit",
        "violation counter: >= 50 % of 300 s",
        "This is usual under load. Else raise the power limit."),
    Row("powerLimitUnlike", Check.POWER, _D, _NONE, _GONE,
        "has another power limit than GPUs like it",
        "it differs from that of most like GPUs for 60 s",
        "If it is not meant so, set it with `nvidia-smi -pl`, and see who changes it."),
    Row("tooHot", Check.TEMPERATURE, _D, _INSPECT, _GONE, "is too hot",
        "margin <= 0 °C, or at the slowdown threshold where the driver reports no margin, for 30 s",
        _COOLING),
    Row("memoryTooHot", Check.TEMPERATURE, _D, _INSPECT, _GONE, "has memory that is too hot",
        "memory at its maximum for 30 s", _COOLING),
    Row("hwSlowdown", Check.CLOCKS, _D, _INSPECT, _GONE, "is slowed down by the hardware",
        "clock reason 0x8: >= 10 % of 300 s", "Check cooling and power."),
    Row("hwThermalSlowdown", Check.CLOCKS, _D, _INSPECT, _GONE,
        "is slowed down by the hardware because of heat",
        "clock reason 0x40 or its counter: >= 10 % of 300 s", _COOLING),
    Row("hwPowerBrake", Check.CLOCKS, _D, _INSPECT, _GONE, "is slowed down by the power brake",
        "clock reason 0x80 or its counter: >= 10 % of 300 s", _SUPPLY),
    Row("pcieReplays", Check.PCIE, _D, _INSPECT, _GONE_OR_RESET, "has many PCIe replays",
        "a minute and lane in 600 s: >= 0.15, 0.3, 0.48, 0.96, 1.92, 3.84 for generation 1 to 6",
        "Reseat the card. Check risers and cables."),
    Row("pcieLink", Check.PCIE, _D, _INSPECT, _GONE_OR_RESET, "has a slow PCIe link",
        "generation or width below the maximum under load for 60 s",
        "Reseat the card. Check risers and cables."),
    Row("pcieUnlike", Check.PCIE, _D, _INSPECT, _GONE_OR_RESET,
        "has a slower PCIe slot than GPUs like it",
        "its possible generation or width is below that of most like GPUs for 60 s",
        "Check the slot, riser and bifurcation; reseat the card."),
    Row("pcieIdleUnlike", Check.PCIE, _D, _INSPECT, _GONE_OR_RESET,
        "has fewer PCIe lanes than GPUs like it",
        "while idle, fewer than most like GPUs have while idle for 60 s",
        "Reseat the card. Check risers and cables."),
    Row("nvlinkDown", Check.NVLINK, _D, _RESET, _GONE_OR_RESET, "has NVLinks that are down",
        "down after it was up in this boot; not judged in MIG mode", _RESET_ADVICE),
    Row("nvlinkMissing", Check.NVLINK, _D, _RESET, _GONE_OR_RESET,
        "has NVLinks that never came up",
        "never up in this boot for 60 s, though they are on a like GPU or the fabric says so",
        "Check the fabric manager, seating and bridges. {reset} A reset trains the links."),
    Row("nvlinkErrors", Check.NVLINK, _D, _RESET, _GONE_OR_RESET,
        "has NVLink replays or recoveries",
        ">= 1 in 600 s", "Check the link. {reset} A reset trains it again."),
    Row("nvlinkCrc", Check.NVLINK, _D, _RESET, _GONE_OR_RESET, "has NVLink CRC errors",
        ">= 100 a second over 60 s", "Check the link. {reset} A reset trains it again."),
    Row("fabricNotReady", Check.FABRIC, _D, _NONE, _GONE_OR_RESET, "is not in the NVLink fabric",
        "fabric state 1 or 2 for 300 s",
        "Restart the fabric manager: `systemctl restart nvidia-fabricmanager`."),
    Row("fabricFailed", Check.FABRIC, _D, _NONE, _GONE_OR_RESET, "was refused by the NVLink fabric",
        "fabric state 3 with an error status",
        "Restart the fabric manager: `systemctl restart nvidia-fabricmanager`."),
    Row("fabricDegraded", Check.FABRIC, _D, _NONE, _GONE_OR_RESET, "has a degraded NVLink fabric",
        "a bit of the health mask, or a summary other than healthy",
        "Restart the fabric manager: `systemctl restart nvidia-fabricmanager`."),
    Row("modeDrift", Check.MODES, _D, _NONE, _GONE, "has a mode that is not as wanted",
        "persistence, ECC, compute or MIG mode differs for 30 s",
        "The agent sets it as soon as the GPU is idle."),
    Row("inforomCorrupt", Check.INFOROM, _D, _INSPECT, _GONE, "has a corrupt InfoROM",
        "its validation answers CORRUPTED_INFOROM", _RMA),
    Row("gpuMissing", Check.GPU_COUNT, _U, _REBOOT, _GONE, "is missing",
        "on the PCI bus for 30 s and not listed by NVML",
        "Look at `dmesg | grep NVRM`. {reboot}"),
    Row("driverHangs", Check.DRIVER, _X, _NONE, _GONE, "does not answer",
        "a call about the node is past its deadline or fails; for 600 s: unhealthy, reboot",
        "Wait. If it stays so: {reboot}", "the driver"),
    Row("driverMissing", Check.DRIVER, _X, _NONE, _GONE, "is not installed",
        "libnvidia-ml.so.1 is not found",
        "Install it and check it with `nvidia-smi`. In a container have its libraries mounted "
        "(runtimeClassName: nvidia).", "the driver"),
    Row("driverNotLoaded", Check.DRIVER, _X, _NONE, _GONE, "is not loaded",
        "the kernel module is not loaded",
        "Load it: `modprobe nvidia`. If that fails, look at `dmesg | grep NVRM`.", "the driver"),
    Row("eventsUnheard", Check.EVENTS, _X, _NONE, _GONE,
        "do not arrive, so XIDs may be missed",
        "the wait for NVML's events is past its deadline, or fails or lacks a GPU for 10 s",
        "Look at `dmesg | grep NVRM`. If it stays so: {reboot}", "NVML's events"),
    Row("migChanged", Check.MIG, _H, _NONE, _LAPSES,
        "had its MIG layout changed by another program",
        "event 0x100 that the agent did not cause",
        "Look with `nodeagent check` for another program that manages these GPUs."),
)
# fmt: on

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
    Action.RESET_GPU: _RESET_ADVICE,
    Action.REBOOT: "{reboot}",
    Action.INSPECT_HARDWARE: _RMA,
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
    return text.format(reboot=reboot, reset=reset, restart=restart)
