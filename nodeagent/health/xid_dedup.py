"""Each XID once, though two sources tell of it: NVML's events and the kernel log."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from nodeagent.health.readings import XidEvent
from nodeagent.health.state import GpuPast, Heard
from nodeagent.health.xids import OFF_THE_BUS

_MOST = 1000  # that are remembered; a storm of XIDs must not fill the state
_HEX = "[0-9a-fA-F]"
_ADDRESS = re.compile(rf"(?:PCI:)?({_HEX}{{4,8}}):({_HEX}{{2}}):({_HEX}{{2}})(?:\.{_HEX})?")


def pci_address(text: str) -> tuple[int, int, int] | None:
    """Domain, bus and device of `00000000:1A:00.0` and `0000:1a:00` alike; None for other texts."""
    match = _ADDRESS.fullmatch(text)
    if match is None:
        return None
    domain, bus, device = (int(part, 16) for part in match.groups())
    return (domain, bus, device)


def named(event: XidEvent, gpus: Iterable[tuple[str, GpuPast]]) -> XidEvent:
    """The event with the UUID of its GPU; without one if no GPU has this address."""
    if event.gpu:
        return event
    address = pci_address(event.pci)
    if address is None:
        return event
    found = (uuid for uuid, past in gpus if pci_address(past.pci_bus_id) == address)
    return replace(event, gpu=next(found, ""))


def hear(
    heard: tuple[Heard, ...], event: XidEvent, window: float
) -> tuple[tuple[Heard, ...], bool]:
    """What was heard afterwards, and whether the event is news.

    It is none when the other source told of it within `window` seconds: each word of the one takes
    away one word of the other, so that three errors stay three. A GPU falls off the bus once,
    however many lines say so.
    """
    recent = heard[-_MOST:]
    if recent and recent[0].at < event.at - window:
        recent = tuple(h for h in recent if h.at >= event.at - window)
    for index, other in enumerate(recent):
        told_twice = other.source is event.source and event.xid != OFF_THE_BUS
        if told_twice or not _same(other, event, window):
            continue
        if event.xid == OFF_THE_BUS:
            return recent, False
        return (*recent[:index], *recent[index + 1 :]), False
    entry = Heard(event.gpu, event.xid, event.source, event.at, event.instance, event.compute)
    return (*recent, entry), True


def _same(other: Heard, event: XidEvent, window: float) -> bool:
    """The same number on the same GPU at about the same time, and no contradiction in the place."""
    return (
        (other.gpu, other.xid) == (event.gpu, event.xid)
        and abs(other.at - event.at) <= window
        and (None in (other.instance, event.instance) or other.instance == event.instance)
        and (None in (other.compute, event.compute) or other.compute == event.compute)
    )
