"""XIDs and NVML's other events as findings, which last until they are repaired."""

from collections.abc import Iterable
from typing import TypeVar

from nodeagent.health import limits
from nodeagent.health.checks.device import recovery_of
from nodeagent.health.findings import Action, Finding, Location, Moment, Severity, rank
from nodeagent.health.kernel_log import pci_address
from nodeagent.health.readings import GpuEvent, XidEvent
from nodeagent.health.state import GpuHistory, XidRepair
from nodeagent.health.table import BY_CAUSE, ROWS, new_finding
from nodeagent.health.xids import OFF_THE_BUS, XidRow
from nodeagent.structs import replace

_MAX_MESSAGE = 160  # letters of the kernel's message that are shown

_NO_RECOVERY = "; the driver asks for no recovery"

# Classes without a cause are only counted.
_BY_CLASS = {row.xids: row.cause for row in ROWS if row.xids}
_BY_EVENT = {row.event: row.cause for row in ROWS if row.event}


def moment(at: float, now: Moment) -> Moment:
    """The moment of an uptime `at`, which is not taken to be later than now or before 1970."""
    at = min(at, now.uptime)
    return Moment(at, max(now.wall - (now.uptime - at), 0.0))


def cause_of_xid(row: XidRow) -> str | None:
    """The row of the check table that an XID raises; None for those that are only counted."""
    cause = _BY_CLASS.get(row.kind)
    return "fallenOffBus" if row.xid == OFF_THE_BUS and cause == "xidReboot" else cause


def xid_finding(event: XidEvent, row: XidRow, past: GpuHistory, now: Moment) -> Finding | None:
    """The finding that an XID raises; None for those that are only counted."""
    cause = cause_of_xid(row)
    if cause is None:
        return None
    place = _place(event, past) if BY_CAUSE[cause].of_slice else Location(event.gpu)
    at = moment(event.at, now)
    finding = new_finding(cause, place, xid_evidence(event, row), at, code=event.xid, pid=event.pid)
    if cause == "xidNvlink" and event.fatal:
        return replace(finding, severity=Severity.UNHEALTHY, action=Action.RESET_GPU)
    return finding


def xid_evidence(event: XidEvent, row: XidRow) -> str:
    """The XID in one line: number, name, process and what the kernel wrote."""
    text = str(row)
    if event.fatal is not None:
        text += ", fatal" if event.fatal else ", not fatal"
    if event.detail is not None:
        text += f", sub-code {event.detail}"
    if event.pid:
        text += f", pid {event.pid}"
    if event.process:
        text += f" ({event.process})"
    if not event.gpu and event.pci:
        text += f", PCI {event.pci}"
    if event.message:
        letters = event.message[:_MAX_MESSAGE]
        text += ": " + "".join(letter if letter.isprintable() else "?" for letter in letters)
    return text


def event_finding(event: GpuEvent, past: GpuHistory, now: Moment) -> Finding:
    """The finding that an event of NVML other than an XID raises."""
    at = moment(event.at, now)
    return new_finding(cause_of(event), _place(event, past), event.kind.value, at)


def cause_of(event: GpuEvent) -> str:
    """The row of the check table that an event raises."""
    return _BY_EVENT[event.kind]


_Event = TypeVar("_Event", XidEvent, GpuEvent)


def without_false_instance(event: _Event, past: GpuHistory) -> _Event:
    """Drop instance 0 if the GPU is not in MIG mode: some drivers report it then. Another number is
    of an instance that was made since the GPU was last observed.
    """
    is_false = event.instance == 0 and past.mig is False
    return replace(event, instance=None, compute=None) if is_false else event


def _place(event: XidEvent | GpuEvent, past: GpuHistory) -> Location:
    if event.instance is None:
        return Location(event.gpu)
    return Location(event.gpu, event.instance, event.compute, past.placements.get(event.instance))


def merge(existing: Finding, new: Finding) -> Finding:
    """Merge a finding with its repetition: as bad as the worse of the two."""
    worse = new if rank(new.severity) >= rank(existing.severity) else existing
    action = worse.action
    inspected = Action.INSPECT_HARDWARE in (existing.action, new.action)
    if inspected or BY_CAUSE[new.cause].inspect_repeated:
        action = Action.INSPECT_HARDWARE
    return replace(
        new,
        severity=worse.severity,
        action=action,
        place=replace(new.place, placement=new.place.placement or existing.place.placement),
        since=min(existing.since, new.since),
        last=max(existing.last, new.last),
        count=existing.count + 1,
        pods=existing.pods,
    )


def escalate(finding: Finding, repairs: tuple[XidRepair, ...]) -> Finding:
    """Ask for an inspection of the hardware when an error came back after several repairs."""
    mine = [r for r in repairs if (r.gpu, r.xid) == (finding.place.gpu, finding.code)]
    if finding.severity is not Severity.UNHEALTHY or len(mine) < limits.REPAIRS_BEFORE_INSPECTION:
        return finding
    evidence = f"{finding.evidence}; it came back after {len(mine)} resets or reboots"
    return replace(finding, action=Action.INSPECT_HARDWARE, evidence=evidence)


def with_driver_action(finding: Finding, past: GpuHistory) -> Finding:
    """Replace severity and action by the driver's, if it was asked after the event."""
    if past.recovery is None or not BY_CAUSE[finding.cause].driver_knows:
        return finding
    code, at = past.recovery
    if at < finding.last.uptime + limits.RECOVERY_SETTLE:
        return finding
    evidence = finding.evidence.removesuffix(_NO_RECOVERY)
    if code == 0:
        return replace(
            finding,
            severity=Severity.HEALTHY,
            action=Action.RESTART_APPLICATION,
            evidence=evidence + _NO_RECOVERY,
        )
    _, severity, action = recovery_of(code)
    if finding.action is Action.INSPECT_HARDWARE:
        action = finding.action
    return replace(finding, severity=severity, action=action, evidence=evidence)


# --- each XID once, though NVML and the kernel log both report it ---

_MAX_RECENT = 1000  # that are remembered; a storm of XIDs must not fill the state
_KEPT = 600.0  # seconds; a driver that hangs reports late, and so may the kernel log be read


def with_uuid(event: XidEvent, gpus: Iterable[tuple[str, GpuHistory]]) -> XidEvent:
    """The event with the UUID of its GPU; without one if no GPU has this address."""
    if event.gpu:
        return event
    address = pci_address(event.pci)
    if address is None:
        return event
    found = (uuid for uuid, past in gpus if pci_address(past.pci_bus_id) == address)
    return replace(event, gpu=next(found, ""))


def deduplicated(
    reported: tuple[XidEvent, ...], event: XidEvent
) -> tuple[tuple[XidEvent, ...], bool]:
    """The XIDs to remember, and whether the event is news.

    An event is no news when the other source reported it at about the same time. A report of one
    source cancels just one of the other, so that three errors are counted as three. A GPU falls
    off the bus once, however many lines say so.
    """
    recent = reported[-_MAX_RECENT:]
    if recent and recent[0].at < event.at - _KEPT:
        recent = tuple(h for h in recent if h.at >= event.at - _KEPT)
    for index, other in enumerate(recent):
        same_source = other.source is event.source and event.xid != OFF_THE_BUS
        if same_source or not _same(other, event):
            continue
        if event.xid == OFF_THE_BUS:
            return recent, False
        return (*recent[:index], *recent[index + 1 :]), False
    return (*recent, replace(event, process="", message="")), True  # not compared, so not kept


def _same(other: XidEvent, event: XidEvent) -> bool:
    """Whether number, GPU and time agree, and the places do not contradict each other."""
    return (
        (other.gpu, other.xid) == (event.gpu, event.xid)
        and _begin(other) <= event.at + limits.SAME_EVENT
        and _begin(event) <= other.at + limits.SAME_EVENT
        and (None in (other.instance, event.instance) or other.instance == event.instance)
        and (None in (other.compute, event.compute) or other.compute == event.compute)
    )


def _begin(event: XidEvent) -> float:
    return event.at if event.since is None else event.since
