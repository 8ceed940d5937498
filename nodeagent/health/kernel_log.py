"""XIDs out of the kernel log, as the second source beside NVML's events.

Forms that the driver writes (open-gpu-kernel-modules, kernel_rc.c):

    NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python, GPU has fallen off the bus.
    NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 94, pid=7194, Contained: ...
    NVRM: Xid (PCI:0000:3b:00 GPU-I:05 GPU-CI:01): 13, pid=9, name=python, ...
    NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x0 ...)
    NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (...)

A GPU that fell off the bus is also reported without a number, on one line or on several. Lines are
records of /dev/kmsg (`3,339,5140900,-;NVRM: ...`), or what follows in one.
"""

import re
from collections.abc import Iterable

from nodeagent.health.readings import XidEvent, XidSource
from nodeagent.health.xids import OFF_THE_BUS, RECOVERY_CHANGED
from nodeagent.structs import Struct

_RECORD = re.compile(
    r"\d+,(?P<sequence>\d{1,20}),(?P<micros>\d{1,20}),[^;]*;(?P<text>.*)", re.DOTALL
)
_HEX = "[0-9a-fA-F]"
_ADDRESS = rf"(?:PCI:)?(?P<pci>{_HEX}{{4,8}}:{_HEX}{{2}}:{_HEX}{{2}}(?:\.{_HEX})?)"
_XID = re.compile(
    rf"NVRM: Xid \({_ADDRESS}(?: GPU-I:(?P<instance>\d{{1,9}}))?"
    r"(?: GPU-CI:(?P<compute>\d{1,9}))?\): "
    r"(?P<xid>\d{1,9}),? ?(?P<rest>.*)",
    re.DOTALL,
)
_PID = re.compile(r"pid='?(?P<pid>\d{1,10}|<unknown>)'?(?:,\s*|$)")
_NAME = re.compile(r"name='?(?P<name>[^,']*)'?(?:,\s*|$)")
_RECOVERY = re.compile(r"recovery action changed from 0x[0-9a-fA-F]+ .*? to 0x([0-9a-fA-F]{1,8})")
_SEVERITY = re.compile(r"\b(?:Fatal|Nonfatal)\b", re.IGNORECASE)
_FIRST_WORD = re.compile(r"\(0x([0-9a-fA-F]{8})\b")
_OFF_THE_BUS = re.compile(rf"NVRM: (?:The NVIDIA )?GPU (?:at )?{_ADDRESS}")
_FALLEN = "fallen off the bus"
_NVLINK5 = range(144, 151)
_MESSAGE_SPAN = 1.0  # seconds that the lines of one message are apart at most


class Begun(Struct, frozen=True):
    """A message of several lines of which the GPU was named and the end not yet seen."""

    pci: str
    at: float


def read_lines(
    lines: Iterable[str], at: float, begun: Begun | None = None
) -> tuple[tuple[XidEvent, ...], Begun | None]:
    """The XIDs that the lines report, and what is left of a message whose end is still to come.

    `at` is the uptime in seconds for lines that bear no time of their own.
    """
    events = []
    for line in lines:
        text, when, sequence = _opened(line.rstrip("\n"), at)
        event = _xid(text, when, sequence)
        if event is None:
            event, begun = _fallen(text, when, sequence, begun)
        if event is not None:
            events.append(event)
    return tuple(events), begun


def _opened(line: str, at: float) -> tuple[str, float, int]:
    """Text, uptime in seconds and record number (-1: it has none) of a line."""
    record = _RECORD.match(line)
    if record is not None:
        return record["text"], int(record["micros"]) / 1e6, int(record["sequence"])
    return line, at, -1


def _xid(text: str, at: float, sequence: int) -> XidEvent | None:
    match = _XID.match(text)  # elsewhere it may be a name that a user gave and the kernel quotes
    if match is None:
        return None
    number, rest = int(match["xid"]), match["rest"]
    pid, name = 0, ""
    who = _PID.match(rest)
    if who is not None:
        pid = 0 if who["pid"] == "<unknown>" else int(who["pid"])
        rest = rest[who.end() :]
    named = _NAME.match(rest)
    if named is not None:
        name = "" if named["name"] == "<unknown>" else named["name"]
        rest = rest[named.end() :]
    fatal, detail = _nvlink(rest) if number in _NVLINK5 else (None, None)
    changed = _RECOVERY.search(rest) if number == RECOVERY_CHANGED else None
    return XidEvent(
        xid=number,
        at=at,
        source=XidSource.KERNEL_LOG,
        pci=match["pci"].lower(),
        instance=_number(match["instance"]),
        compute=_number(match["compute"]),
        pid=pid,
        process=name,
        message=rest.strip(),
        fatal=fatal,
        detail=detail,
        recovery=int(changed[1], 16) if changed else None,
        sequence=sequence,
    )


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def _nvlink(text: str) -> tuple[bool | None, int | None]:
    """Whether an NVLink 5 error is fatal, and its sub-code: bits 20 to 25 of the first word."""
    severity, word = _SEVERITY.search(text), _FIRST_WORD.search(text)
    return (
        None if severity is None else severity[0].lower() == "fatal",
        None if word is None else int(word[1], 16) >> 20 & 0x3F,
    )


def _fallen(
    text: str, at: float, sequence: int, begun: Begun | None
) -> tuple[XidEvent | None, Begun | None]:
    """A GPU that fell off the bus, reported without a number; and a message that goes on."""
    named = _OFF_THE_BUS.match(text)
    if named is not None:
        begun = Begun(named["pci"].lower(), at)
    elif begun is not None and (not text.startswith("NVRM:") or at - begun.at > _MESSAGE_SPAN):
        begun = None
    if begun is None or _FALLEN not in text:
        return None, begun
    event = XidEvent(
        xid=OFF_THE_BUS,
        at=at,
        source=XidSource.KERNEL_LOG,
        pci=begun.pci,
        message="GPU has fallen off the bus",
        sequence=sequence,
    )
    return event, None


def pci_address(text: str) -> tuple[int, int, int] | None:
    """Domain, bus and device of `00000000:1A:00.0` and `0000:1a:00` alike; None for other texts."""
    match = re.fullmatch(_ADDRESS, text)
    if match is None:
        return None
    domain, bus, device = match["pci"].split(".")[0].split(":")
    return (int(domain, 16), int(bus, 16), int(device, 16))
