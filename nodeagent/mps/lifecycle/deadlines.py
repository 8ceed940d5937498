"""What follows when something did not happen in time. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from nodeagent.mps.lifecycle.model import (
    Drain,
    Ending,
    Phase,
    Policy,
    Report,
    Schedule,
    State,
    Subject,
)
from nodeagent.mps.lifecycle.transitions import Step, ask_to_end, kill, limit, resume, start


def deadline_passed(state: State, now: float, policy: Policy) -> Step:
    """What the deadline was for is known by the phase."""
    if state.deadline is None:
        return Step(state)
    if now < state.deadline:
        return Step(state, (Schedule(state.deadline - now),))
    if state.ending is not Ending.NO:
        return _still_there(state, now, policy)
    if state.excused and state.phase in {Phase.STARTING, Phase.LIMITING}:
        return _once_more(state, now, policy)
    return _by_phase(state, now, policy)


def _by_phase(state: State, now: float, policy: Policy) -> Step:
    match state.phase:
        case Phase.BACKOFF | Phase.FAILED:
            return _start_again(state, now, policy)
        case Phase.STARTING:
            why = f"did not answer within {policy.start_deadline:g} s of its start"
            return kill(state, now, policy, Report(Subject.SILENT, why))
        case Phase.LIMITING:
            return _limits_late(state, now, policy)
        case Phase.READY:
            return _server_slow(state, policy)
        case Phase.DRAINING:
            return _drain_is_over(state, now, policy)
        case Phase.DOWN | Phase.FAULT:
            return Step(replace(state, deadline=None))
    assert_never(state.phase)


def _start_again(state: State, now: float, policy: Policy) -> Step:
    if state.wanted is None:
        return Step(replace(state, phase=Phase.DOWN, deadline=None))
    return start(replace(state, restarts=state.restarts + 1), state.wanted, now, policy)


def _once_more(state: State, now: float, policy: Policy) -> Step:
    """It could not be asked, which is not its fault: it may even have clients."""
    starting = state.phase is Phase.STARTING
    seconds = policy.start_deadline if starting else policy.limit_deadline
    state = replace(state, deadline=now + seconds, excused=False)
    if starting:
        return Step(state, (Schedule(seconds),))
    return limit(state, now, policy, why=state.why)


def _limits_late(state: State, now: float, policy: Policy) -> Step:
    if state.was_ready:
        return limit(state, now, policy, why=state.why)
    why = f"its limits were not in force within {policy.limit_deadline:g} s"
    return kill(state, now, policy, Report(Subject.LIMITS_DIFFER, why))


def _still_there(state: State, now: float, policy: Policy) -> Step:
    if state.ending is Ending.QUITTING:
        why = f"did not end within {policy.quit_deadline:g} s of being asked to"
        return kill(state, now, policy, Report(Subject.SILENT, why))
    who = f"pid {state.pid}" if state.pid is not None else "the daemon"
    why = f"{who} was killed but does not end; it probably waits for the driver"
    return kill(state, now, policy, Report(Subject.CANNOT_BE_ENDED, why))


def _server_slow(state: State, policy: Policy) -> Step:
    pid = state.server.pid if state.server else 0
    why = f"server {pid} has been initializing for {policy.initialize_deadline:g} s"
    state = replace(state, phase=Phase.FAULT, deadline=None, why=why)
    return Step(state, (Report(Subject.SERVER_SLOW, why),))


def _drain_is_over(state: State, now: float, policy: Policy) -> Step:
    drain = state.drain or Drain()
    if drain.force:
        return ask_to_end(state, now, policy)
    report = Report(Subject.STILL_IN_USE, "clients are left when the time to drain is over")
    state = replace(state, deadline=None)
    if drain.by_plan:
        return Step(state, (report,))  # the plan goes on waiting
    resumed = resume(state, now, policy, why="not drained: it is in use")
    return Step(resumed.state, (report, *resumed.actions))
