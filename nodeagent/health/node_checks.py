"""What concerns the node as a whole: GPUs that are not there, and a driver that does not answer."""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.health.device_checks import silent
from nodeagent.health.findings import Place
from nodeagent.health.limits import Limits
from nodeagent.health.observations import Sign
from nodeagent.health.readings import Answer, NodeReading, Silence
from nodeagent.health.state import HealthState
from nodeagent.health.xid_dedup import pci_address

_HANGS = "driverHangs"
_BY_SILENCE = {Silence.NO_LIBRARY: "driverMissing", Silence.NOT_LOADED: "driverNotLoaded"}


def node_signs(
    state: HealthState, reading: NodeReading, limits: Limits
) -> Iterator[tuple[Place, Sign]]:
    """The signs of the node and of GPUs that are gone."""
    yield from _missing(state, reading)
    answer = reading.answer
    if answer is not None:
        there = _BY_SILENCE.get(answer.silence, _HANGS) if answer.silence else None
        for cause in (_HANGS, *_BY_SILENCE.values()):
            sign = silent(cause, answer, reading.at.uptime, limits.hang_reboot, cause == there)
            yield Place(), sign
    if reading.listener is not None:
        yield Place(), _deafness(reading.listener, reading.at.uptime, limits)


def _deafness(listener: Answer, uptime: float, limits: Limits) -> Sign:
    """A wait that hangs counts at once; failures count after `listener_hold`."""
    passing = listener.silence is not None and listener.silence is not Silence.HANGS
    if passing and listener.last is not None and uptime - listener.last < limits.listener_hold:
        return Sign("eventsUnheard", None)
    evidence = listener.reason or "the wait for events does not return"
    return Sign("eventsUnheard", listener.silence is not None, evidence)


def _missing(state: HealthState, reading: NodeReading) -> Iterator[tuple[Place, Sign]]:
    """GPUs that NVML listed in this boot and lists no more, and those it never listed."""
    if reading.known is not None:
        for uuid, past in state.gpus.items():
            where = f" at {past.pci_bus_id}" if past.pci_bus_id else ""
            evidence = f"GPU {past.index}{where} is not listed any more"
            yield Place(uuid), Sign("gpuMissing", uuid not in reading.known, evidence)
    if reading.pci_addresses is not None and reading.listed_addresses is not None:
        listed = {pci_address(text) for text in reading.listed_addresses}
        # A GPU that was listed once is told of by its UUID.
        listed |= {pci_address(past.pci_bus_id) for past in state.gpus.values()}
        missing = [text for text in reading.pci_addresses if pci_address(text) not in listed]
        evidence = f"on the PCI bus, but not listed by NVML: {', '.join(missing)}"
        yield Place(), Sign("gpuMissing", bool(missing), evidence)
