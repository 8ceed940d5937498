"""Whether the driver answers, for a GPU and for the node, what it asks for, and missing GPUs."""

from collections.abc import Iterator

from nodeagent.health import limits
from nodeagent.health.checks.observation import GpuCheck, GpuView, Observation
from nodeagent.health.findings import Action, Location, Severity
from nodeagent.health.kernel_log import pci_address
from nodeagent.health.readings import Answer, NodeReading, Silence
from nodeagent.health.state import HealthState
from nodeagent.health.table import RECOVERIES, ROWS

_BY_SILENCE = {silence: row.cause for row in ROWS for silence in row.silences}


def access(view: GpuView) -> Iterator[Observation]:
    """One cause at a time: why the driver gives no answer."""
    answer = view.gpu.answer
    if answer is None:
        return
    present_cause = _BY_SILENCE[answer.silence] if answer.silence else None
    for cause in dict.fromkeys(_BY_SILENCE.values()):
        yield silent(cause, answer, view.uptime, cause == present_cause)


def silent(cause: str, answer: Answer, uptime: float, present: bool) -> Observation:
    """No answer; one that hangs for long needs a reboot."""
    age = None if answer.last is None else max(uptime - answer.last, 0.0)
    evidence = answer.reason or "the driver does not answer"
    if age is not None:
        evidence += f"; the last answer is {age:.0f} s old"
    if answer.silence is Silence.HANGS and age is not None and age >= limits.HANG_REBOOT:
        return Observation(
            cause, present, evidence, severity=Severity.UNHEALTHY, action=Action.REBOOT
        )
    return Observation(cause, present, evidence)


def recovery(view: GpuView) -> Iterator[Observation]:
    """Report what the driver itself asks for."""
    code = view.past.recovery[0] if view.past.recovery else None
    if code is None:
        yield Observation("recoveryAction", None)
        return
    if not code and view.gpu.silent:  # that it needs none was so before
        return
    words, severity, action = recovery_of(code)
    yield Observation(
        "recoveryAction",
        code != 0,
        f"the driver asks for {words} (action {code})",
        severity=severity,
        action=action,
    )


def recovery_of(code: int) -> tuple[str, Severity, Action]:
    """The name of a recovery action, how bad it is and what it asks for."""
    if known := RECOVERIES.get(code):
        return known
    return f"action {code}, which is not known here", Severity.DEGRADED, Action.NONE


def modes(view: GpuView) -> Iterator[Observation]:
    """Modes that the agent owns and another program changed."""
    if not view.gpu.modes:
        return
    drifted = [m for m in view.gpu.modes if m.found != m.wanted]
    evidence = "; ".join(f"{m.name} is {m.found}, wanted {m.wanted}" for m in drifted)
    yield Observation("modeDrift", bool(drifted), evidence)


def inforom(view: GpuView) -> Iterator[Observation]:
    """The card's own memory of its configuration."""
    yield Observation("inforomCorrupt", view.gpu.inforom_corrupt, "its checksum is wrong")


OF_SILENT: tuple[GpuCheck, ...] = (access, recovery)  # the kernel log has the driver's word, too
CHECKS: tuple[GpuCheck, ...] = (*OF_SILENT, modes, inforom)


# --- the node as a whole ---

_HANGS = "driverHangs"
_NODE_BY_SILENCE = {Silence.NO_LIBRARY: "driverMissing", Silence.NOT_LOADED: "driverNotLoaded"}


def node_observations(
    state: HealthState, reading: NodeReading
) -> Iterator[tuple[Location, Observation]]:
    """The observations of the node and of GPUs that are gone."""
    yield from _missing(state, reading)
    answer = reading.answer
    if answer is not None:
        present_cause = _NODE_BY_SILENCE.get(answer.silence, _HANGS) if answer.silence else None
        for cause in (_HANGS, *_NODE_BY_SILENCE.values()):
            yield Location(), silent(cause, answer, reading.at.uptime, cause == present_cause)
    if reading.listener is not None:
        yield Location(), _events_unheard(reading.listener, reading.at.uptime)


def _events_unheard(listener: Answer, uptime: float) -> Observation:
    """A wait that hangs counts at once; failures count after `listener_hold`."""
    passing = listener.silence is not None and listener.silence is not Silence.HANGS
    if passing and listener.last is not None and uptime - listener.last < limits.LISTENER_HOLD:
        return Observation("eventsUnheard", None)
    evidence = listener.reason or "the wait for events does not return"
    return Observation("eventsUnheard", listener.silence is not None, evidence)


def _missing(state: HealthState, reading: NodeReading) -> Iterator[tuple[Location, Observation]]:
    """GPUs that NVML listed in this boot and lists no more, and those it never listed."""
    if reading.known is not None:
        for uuid, past in state.gpus.items():
            where = f" at {past.pci_bus_id}" if past.pci_bus_id else ""
            evidence = f"GPU {past.index}{where} is not listed any more"
            yield Location(uuid), Observation("gpuMissing", uuid not in reading.known, evidence)
    if reading.pci_addresses is not None and reading.listed_addresses is not None:
        listed = {pci_address(text) for text in reading.listed_addresses}
        # A GPU that was listed once is reported by its UUID.
        listed |= {pci_address(past.pci_bus_id) for past in state.gpus.values()}
        missing = [text for text in reading.pci_addresses if pci_address(text) not in listed]
        evidence = f"on the PCI bus, but not listed by NVML: {', '.join(missing)}"
        yield Location(), Observation("gpuMissing", bool(missing), evidence)
