"""Whether the driver answers for a GPU, what it asks for, and what the agent owns of it."""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.health.findings import Action, Severity
from nodeagent.health.observations import Look, Sign, known
from nodeagent.health.readings import Answer, Silence

_BY_SILENCE = {
    Silence.LOST: "gpuLost",
    Silence.RESET_REQUIRED: "gpuResetRequired",
    Silence.HANGS: "gpuHangs",
    Silence.FAILS: "gpuUnknown",
    Silence.NO_LIBRARY: "gpuUnknown",
    Silence.NOT_LOADED: "gpuUnknown",
    Silence.UNBOUND: "gpuUnbound",
}

# The driver's own word, field value 230: what it is called, how bad that is, what it asks for.
_RECOVERIES = {
    1: ("a GPU reset", Severity.UNHEALTHY, Action.RESET_GPU),
    2: ("a node reboot", Severity.UNHEALTHY, Action.REBOOT),
    3: ("draining peer-to-peer traffic", Severity.DEGRADED, Action.RESTART_APPLICATION),
    4: ("draining and a GPU reset", Severity.UNHEALTHY, Action.RESET_GPU),
    5: ("recovery of the IMEX domain", Severity.DEGRADED, Action.NONE),
    6: ("a bus reset", Severity.UNHEALTHY, Action.RESET_GPU),
    7: ("a system reboot", Severity.UNHEALTHY, Action.REBOOT),
}


def access(look: Look) -> Iterator[Sign]:
    """One cause at a time: why the driver gives no answer."""
    answer = look.gpu.answer
    if answer is None:
        return
    there = _BY_SILENCE[answer.silence] if answer.silence else None
    for cause in dict.fromkeys(_BY_SILENCE.values()):
        yield silent(cause, answer, look.uptime, look.limits.hang_reboot, cause == there)


def silent(cause: str, answer: Answer, uptime: float, patience: float, present: bool) -> Sign:
    """No answer; one that hangs for longer than `patience` seconds needs a reboot."""
    age = None if answer.last is None else max(uptime - answer.last, 0.0)
    evidence = answer.reason or "the driver does not answer"
    if age is not None:
        evidence += f"; the last answer is {age:.0f} s old"
    if answer.silence is Silence.HANGS and age is not None and age >= patience:
        return Sign(cause, present, evidence, severity=Severity.UNHEALTHY, action=Action.REBOOT)
    return Sign(cause, present, evidence)


def recovery(look: Look) -> Iterator[Sign]:
    """What the driver itself asks for."""
    code = look.past.recovery[0] if look.past.recovery else None
    if code is None:
        yield Sign("recoveryAction", None)
        return
    words, severity, action = recovery_of(code)
    yield Sign(
        "recoveryAction",
        code != 0,
        f"the driver asks for {words} (action {code})",
        severity=severity,
        action=action,
    )


def recovery_of(code: int) -> tuple[str, Severity, Action]:
    """What a recovery action is called, how bad it is and what it asks for."""
    unknown = (f"action {code}, which is not known here", Severity.DEGRADED, Action.NONE)
    return _RECOVERIES.get(code, unknown)


def modes(look: Look) -> Iterator[Sign]:
    """Modes that the agent owns and somebody else changed."""
    if not look.gpu.modes:
        return
    drifted = [m for m in look.gpu.modes if m.found != m.wanted]
    evidence = "; ".join(f"{m.name} is {m.found}, wanted {m.wanted}" for m in drifted)
    yield Sign("modeDrift", bool(drifted), evidence)


def inforom(look: Look) -> Iterator[Sign]:
    """The card's own memory of its configuration."""
    yield known(look.gpu.inforom_corrupt, "inforomCorrupt", "its checksum is wrong")
