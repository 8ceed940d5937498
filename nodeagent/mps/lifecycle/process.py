"""What follows from what a daemon's process does and says. Pure."""

from __future__ import annotations

from dataclasses import replace

from nodeagent.mps.lifecycle.model import (
    Ending,
    Exited,
    KeptOut,
    LimitsReadBack,
    Phase,
    Policy,
    Replaced,
    Report,
    Schedule,
    Silent,
    State,
    Subject,
)
from nodeagent.mps.lifecycle.transitions import Step, ended_by_itself, kill, limit, ready


def answered(state: State, now: float, policy: Policy) -> Step:
    """It is alive; the first time, its limits are next."""
    state = replace(state, silences=0, answered=True, kept_out="", excused=False)
    if state.phase is Phase.STARTING:
        return limit(state, now, policy, why="limits are not proven yet")
    return Step(state)


def kept_out(state: State, event: KeptOut) -> Step:
    """Told once for each reason; it is no reason to end anything."""
    state = replace(state, excused=True)
    if event.reason == state.kept_out:
        return Step(state)
    state = replace(state, kept_out=event.reason)
    if state.phase in {Phase.STARTING, Phase.LIMITING}:
        state = replace(state, why=event.reason)
    return Step(state, (Report(Subject.SILENT, event.reason),))


def silent(state: State, event: Silent, now: float, policy: Policy) -> Step:
    """A question unanswered; so many in a row, and it hangs."""
    if state.phase is Phase.STARTING or state.ending is not Ending.NO:
        return Step(state)  # these have a deadline
    state = replace(state, silences=state.silences + 1)
    if state.silences < policy.most_silences:
        return Step(state)
    more = f" ({event.reason})" if event.reason else ""
    why = f"answered none of {state.silences} questions in a row{more}"
    if state.phase is Phase.DRAINING and not (state.drain and state.drain.force):
        # Clients that work without it may go on: nobody needs its answers any more.
        reports = (Report(Subject.SILENT, why),) if state.silences == policy.most_silences else ()
        return Step(state, reports)
    return kill(state, now, policy, Report(Subject.SILENT, f"{why}; it is replaced"))


def replaced(state: State, event: Replaced, now: float, policy: Policy) -> Step:
    """Another process answers at its sockets, so no answer counts."""
    if state.ending is not Ending.NO:
        return Step(state)  # it ends anyway, with a deadline of its own
    why = f"{event.reason}; a fresh daemon takes its place"
    return kill(state, now, policy, Report(Subject.REPLACED, why))


def exited(state: State, event: Exited, now: float, policy: Policy, chance: float) -> Step:
    """Its end, wanted or not."""
    if state.ending is Ending.KILLING and state.phase is not Phase.DRAINING:
        words = f"the daemon was killed after {event.ran_for:.1f} s: {state.why}"
    else:
        words = f"the daemon ended after {event.ran_for:.1f} s: {event.status}"
    report = Report(Subject.EXITED, words, event.last_lines)
    quick = not state.was_ready or event.ran_for < policy.steady
    return ended_by_itself(state, report, now, policy, chance, quick=quick)


def read_back(
    state: State, event: LimitsReadBack, now: float, policy: Policy, chance: float
) -> Step:
    """What is in force was read; only that makes it Ready."""
    if event.reading != state.reading:
        return Step(state)  # they were set once more meanwhile
    if state.phase is Phase.READY and event.differences:
        report = _differ(event)
        limiting = limit(replace(state, attempts=0), now, policy, why=report.message)
        return Step(limiting.state, (report, *limiting.actions))
    if state.phase is not Phase.LIMITING:
        return Step(state)
    if not event.differences:
        return ready(state, now, policy)
    return _not_in_force(replace(state, attempts=state.attempts + 1), event, now, policy, chance)


def _not_in_force(
    state: State, event: LimitsReadBack, now: float, policy: Policy, chance: float
) -> Step:
    report = _differ(event)
    if not state.was_ready and state.attempts >= policy.most_attempts:
        return kill(state, now, policy, report)
    if not state.was_ready:
        return limit(state, now, policy, why=report.message)
    # It may have clients, so it is not ended; only tried less and less often.
    delay = policy.delay(state.attempts, chance)
    state = replace(state, deadline=now + delay, why=report.message)
    return Step(state, (report, Schedule(delay)))


def _differ(event: LimitsReadBack) -> Report:
    return Report(Subject.LIMITS_DIFFER, "not as wanted: " + "; ".join(event.differences))
