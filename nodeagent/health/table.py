"""The check table: every cause there is, how bad it is, what would help and what ends it.

`docs/health.md` shows the same rows; a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from nodeagent.health.findings import Action, End, Severity


class Check(StrEnum):
    """What is looked at; the label of the metric."""

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
    MIG = "mig"


_GONE = frozenset({End.GONE, End.REBOOT, End.CLEARED})
_GONE_OR_RESET = _GONE | {End.RESET}
_REPAIRED = frozenset({End.RESET, End.REBOOT, End.CLEARED})
_LAPSES = _REPAIRED | {End.LAPSED}
_APPLICATION = _LAPSES | {End.INSTANCE_GONE}


@dataclass(frozen=True, slots=True)
class Row:
    """One cause: `when` it is raised, `words` for it in a sentence, and `advice` what to do."""

    cause: str
    check: Check
    severity: Severity
    action: Action
    ends: frozenset[End]
    words: str
    when: str
    advice: str


_D, _U, _H, _X = Severity.DEGRADED, Severity.UNHEALTHY, Severity.HEALTHY, Severity.UNKNOWN
_NONE, _APP, _RESET = Action.NONE, Action.RESTART_APPLICATION, Action.RESET_GPU
_REBOOT, _INSPECT = Action.REBOOT, Action.INSPECT_HARDWARE

_RESET_ADVICE = "let its users end, then reset the GPU"
_RMA = "run the vendor's field diagnostic; have the card replaced if it confirms the fault"
_COOLING = "look at fans, airflow and dust, and at the neighbours' heat"
_SUPPLY = "look at the power supply, its cables and the power limit"

# fmt: off
ROWS: tuple[Row, ...] = (
    Row("xidApplication", Check.XID, _H, _APP, _APPLICATION, "an error of an application",
        "an XID of the class application", "restart the application; the GPU is well"),
    Row("xidReset", Check.XID, _U, _RESET, _REPAIRED, "an error that needs a GPU reset",
        "an XID of the class gpuReset", _RESET_ADVICE),
    Row("xidReboot", Check.XID, _U, _REBOOT, _REPAIRED, "an error that needs a reboot",
        "an XID of the class nodeReboot", "drain the node and reboot it"),
    Row("fallenOffBus", Check.XID, _U, _REBOOT, _REPAIRED, "it has fallen off the bus",
        "XID 79, or the kernel log says so",
        "drain the node and reboot it; look at seat and power if it comes back"),
    Row("xidHardware", Check.XID, _D, _INSPECT, _REPAIRED, "a fault of cabling or power",
        "an XID of the class hardware", _SUPPLY),
    Row("xidSoftware", Check.XID, _D, _NONE, _REPAIRED, "a fault of driver or firmware",
        "an XID of the class software", "install another version of the driver or firmware"),
    Row("xidSupport", Check.XID, _D, _NONE, _LAPSES, "an error without a defined action",
        "an XID of the class support; seen again: inspect hardware",
        "ask NVIDIA's support if it comes back"),
    Row("xidUnclassified", Check.XID, _D, _NONE, _LAPSES, "an error of an unknown kind",
        "an XID of the class unclassified; seen again: inspect hardware",
        "give it a class in your own table if you know it"),
    Row("xidNvlink", Check.XID, _D, _NONE, _LAPSES, "an NVLink error",
        "an XID of the class nvlink5; fatal by the kernel log: unhealthy, reset GPU",
        "look at the NVLink fabric; the kernel log has the sub-code"),
    Row("recoveryAction", Check.RECOVERY_ACTION, _U, _RESET, _GONE_OR_RESET,
        "the driver asks for a recovery", "the driver's recovery action is not none",
        "do what the driver asks for"),
    Row("gpuLost", Check.GPU_ACCESS, _U, _REBOOT, _GONE_OR_RESET, "it is lost",
        "a call answers GPU_IS_LOST", "reset the GPU or reboot the node"),
    Row("gpuResetRequired", Check.GPU_ACCESS, _U, _RESET, _GONE_OR_RESET, "it needs a reset",
        "a call answers RESET_REQUIRED", _RESET_ADVICE),
    Row("gpuUnavailable", Check.GPU_ACCESS, _U, _REBOOT, _REPAIRED, "it became unavailable",
        "event 0x4000", "reset the GPU or reboot the node"),
    Row("gpuUnknown", Check.GPU_ACCESS, _X, _NONE, _GONE_OR_RESET, "its state is unknown",
        "a call fails otherwise", "wait; reboot if it stays so"),
    Row("gpuHangs", Check.GPU_ACCESS, _X, _NONE, _GONE_OR_RESET, "the driver does not return",
        "a call is past its deadline; for 600 s: unhealthy, reboot", "wait; reboot if it stays so"),
    Row("gpuUnbound", Check.GPU_ACCESS, _X, _NONE, _GONE_OR_RESET, "the driver was taken off it",
        "the event of the driver's unbinding, until that of its binding",
        "nothing is asked of it until the driver is bound again"),
    Row("eccUncorrected", Check.ECC, _U, _RESET, _GONE_OR_RESET, "uncorrected memory errors",
        "volatile uncorrected errors > 0; degraded where the driver asks for no recovery",
        _RESET_ADVICE),
    Row("eccDoubleBit", Check.ECC, _U, _RESET, _REPAIRED, "a double-bit error",
        "event 0x2; healthy where the driver asks for no recovery", _RESET_ADVICE),
    Row("eccStorm", Check.ECC, _D, _INSPECT, _LAPSES, "a storm of corrected errors",
        "event 0x200", _RMA),
    Row("eccModePending", Check.ECC, _D, _RESET, _GONE_OR_RESET, "ECC changes at the next reset",
        "pending ECC mode differs from the current one", _RESET_ADVICE),
    Row("sramThreshold", Check.ECC, _U, _INSPECT, _GONE, "too many SRAM errors",
        "the driver's SRAM threshold flag", _RMA),
    Row("rowRemapPending", Check.ROW_REMAP, _D, _RESET, _GONE_OR_RESET,
        "a row of memory waits to be replaced", "remapping pending", _RESET_ADVICE),
    Row("rowRemapFailed", Check.ROW_REMAP, _U, _INSPECT, _GONE,
        "a row of memory could not be replaced", "remapping failed", _RMA),
    Row("rowRemapMany", Check.ROW_REMAP, _U, _INSPECT, _GONE,
        "too many rows of memory were replaced", "remapped for uncorrectable errors >= 512", _RMA),
    Row("rowRemapSpent", Check.ROW_REMAP, _D, _INSPECT, _GONE,
        "a memory bank has no spare row left", "histogram: banks with none > 0", _RMA),
    Row("retirementFailed", Check.ROW_REMAP, _U, _INSPECT, _REPAIRED,
        "memory could not be taken out of use", "event 0x800", _RMA),
    Row("bankRemapPending", Check.MEMORY_REPAIR, _D, _RESET, _GONE_OR_RESET,
        "a memory bank waits to be replaced", "bank remapping pending", _RESET_ADVICE),
    Row("memoryUnrepairable", Check.MEMORY_REPAIR, _U, _INSPECT, _GONE,
        "memory that cannot be repaired", "the driver's flag", _RMA),
    Row("repairPending", Check.MEMORY_REPAIR, _D, _RESET, _GONE_OR_RESET,
        "a repair waits for a reset", "channel or TPC repair pending", _RESET_ADVICE),
    Row("retiredPagesMany", Check.RETIRED_PAGES, _U, _INSPECT, _GONE,
        "too many memory pages are out of use", "retired pages >= 63", _RMA),
    Row("retiredPagesDoubleBit", Check.RETIRED_PAGES, _D, _INSPECT, _GONE,
        "many memory pages are out of use", "retired by double-bit errors >= 15", _RMA),
    Row("retiredPagesPending", Check.RETIRED_PAGES, _D, _RESET, _GONE_OR_RESET,
        "a memory page waits to be taken out of use", "retirement pending", _RESET_ADVICE),
    Row("poison", Check.POISON, _H, _APP, _APPLICATION, "poisoned data met an application",
        "event 0x1000", "restart the application; the GPU is well"),
    Row("poisonFatal", Check.POISON, _U, _RESET, _REPAIRED, "poisoned data",
        "event 0x2000; healthy where the driver asks for no recovery", _RESET_ADVICE),
    Row("throttledByHeat", Check.THERMAL, _D, _INSPECT, _GONE, "slowed down by heat",
        "violation counter or software slowdown: >= 10 % of 300 s", _COOLING),
    Row("throttledByPower", Check.POWER, _H, _NONE, _GONE, "held at its power limit",
        "violation counter: >= 50 % of 300 s", "usual under load; raise the power limit if not"),
    Row("tooHot", Check.TEMPERATURE, _D, _INSPECT, _GONE, "too hot",
        "margin <= 0 °C, or at the slowdown threshold where no margin is told, for 30 s", _COOLING),
    Row("memoryTooHot", Check.TEMPERATURE, _D, _INSPECT, _GONE, "memory too hot",
        "memory at its maximum for 30 s", _COOLING),
    Row("hwSlowdown", Check.CLOCKS, _D, _INSPECT, _GONE, "slowed down by the hardware",
        "clock reason 0x8: >= 10 % of 300 s", "look at cooling and power"),
    Row("hwThermalSlowdown", Check.CLOCKS, _D, _INSPECT, _GONE, "slowed down by the hardware: heat",
        "clock reason 0x40 or its counter: >= 10 % of 300 s", _COOLING),
    Row("hwPowerBrake", Check.CLOCKS, _D, _INSPECT, _GONE, "slowed down by the power brake",
        "clock reason 0x80 or its counter: >= 10 % of 300 s", _SUPPLY),
    Row("pcieReplays", Check.PCIE, _D, _INSPECT, _GONE_OR_RESET, "many PCIe replays",
        "a minute and lane in 600 s: >= 0.15, 0.3, 0.48, 0.96, 1.92, 3.84 for generation 1 to 6",
        "reseat the card; look at risers and cables"),
    Row("pcieLink", Check.PCIE, _D, _INSPECT, _GONE_OR_RESET, "a slow PCIe link",
        "generation or width below the maximum under load for 60 s",
        "reseat the card; look at risers and cables"),
    Row("nvlinkDown", Check.NVLINK, _D, _RESET, _GONE_OR_RESET, "an NVLink is down",
        "down after it was up in this boot; not judged in MIG mode", _RESET_ADVICE),
    Row("nvlinkErrors", Check.NVLINK, _D, _RESET, _GONE_OR_RESET, "NVLink replays or recoveries",
        ">= 1 in 600 s", "look at the link; a reset trains it again"),
    Row("nvlinkCrc", Check.NVLINK, _D, _RESET, _GONE_OR_RESET, "NVLink CRC errors",
        ">= 100 a second over 60 s", "look at the link; a reset trains it again"),
    Row("fabricNotReady", Check.FABRIC, _D, _NONE, _GONE_OR_RESET, "not in the NVLink fabric",
        "fabric state 1 or 2 for 300 s", "restart the fabric manager"),
    Row("fabricFailed", Check.FABRIC, _D, _NONE, _GONE_OR_RESET, "the NVLink fabric refused it",
        "fabric state 3 with an error status", "restart the fabric manager"),
    Row("fabricDegraded", Check.FABRIC, _D, _NONE, _GONE_OR_RESET, "the NVLink fabric is degraded",
        "a bit of the health mask, or a summary other than healthy", "restart the fabric manager"),
    Row("modeDrift", Check.MODES, _D, _NONE, _GONE, "a mode is not as wanted",
        "persistence, ECC, compute or MIG mode differs for 30 s", "the agent sets it when it may"),
    Row("inforomCorrupt", Check.INFOROM, _D, _INSPECT, _GONE, "the InfoROM is corrupt",
        "its validation answers CORRUPTED_INFOROM", _RMA),
    Row("gpuMissing", Check.GPU_COUNT, _U, _REBOOT, _GONE, "a GPU is missing",
        "on the PCI bus for 30 s and not listed by NVML", "reboot; look at dmesg"),
    Row("driverHangs", Check.DRIVER, _X, _NONE, _GONE, "the driver does not answer",
        "a call about the node is past its deadline or fails; for 600 s: unhealthy, reboot",
        "wait; reboot if it stays so"),
    Row("migChanged", Check.MIG, _H, _NONE, _LAPSES, "somebody else changed the MIG layout",
        "event 0x100 that the agent did not cause", "find out who else manages these GPUs"),
)
# fmt: on

BY_CAUSE = MappingProxyType({row.cause: row for row in ROWS})

_OTHERWISE = {
    Action.NONE: "",
    Action.RESTART_APPLICATION: "restart the application; the GPU goes on",
    Action.RESET_GPU: _RESET_ADVICE,
    Action.REBOOT: "drain the node and reboot it",
    Action.INSPECT_HARDWARE: _RMA,
}


def advice(cause: str, action: Action) -> str:
    """What to do about a cause. Where something else than usual would help, such as after the
    driver's own word or the second time, what that is.
    """
    row = BY_CAUSE[cause]
    return row.advice if action is row.action else _OTHERWISE[action]
