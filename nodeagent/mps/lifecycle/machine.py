"""The life of one MPS daemon as a function: state, event and time in, state and actions out.

Pure, and defined for every event in every state: what can mean nothing there changes nothing.
What holds whatever happens:

- Ready is said only when this very process has answered and its limits, as they were set last,
  were read back.
- A process is started only when there is none, and right after a sweep for orphaned servers.
- After it ended by itself, it is started at once where it was steady, else not before the backoff
  is over, unless a person or a plan asks for that. It is never given up.
- A daemon that was Ready, and so may have clients, is killed only when it answers nothing any
  more, when another process listens in its place, or when a drain by force is over.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from nodeagent.mps.lifecycle.deadlines import deadline_passed
from nodeagent.mps.lifecycle.model import (
    WITH_PROCESS,
    Adopted,
    Answered,
    ClientsGone,
    DeadlinePassed,
    DrainGivenUp,
    DrainRequested,
    Ending,
    Event,
    Exited,
    ForeignUserWaiting,
    KeptOut,
    LimitsReadBack,
    NewPlan,
    OfRun,
    Phase,
    Policy,
    Replaced,
    Report,
    RetryRequested,
    ServerGone,
    ServerSeen,
    Silent,
    Started,
    StartFailed,
    State,
    Subject,
)
from nodeagent.mps.lifecycle.process import answered, exited, kept_out, read_back, replaced, silent
from nodeagent.mps.lifecycle.server import foreign_user, server_gone, server_seen
from nodeagent.mps.lifecycle.transitions import Step, ask_to_end, ended_by_itself, start
from nodeagent.mps.lifecycle.wishes import adopt, drain_given_up, drain_requested, new_plan


def step(state: State, event: Event, now: float, *, policy: Policy, chance: float) -> Step:
    """What follows. `now` is the event loop's time, `chance` a number from 0 up to 1."""
    if isinstance(event, OfRun):
        if event.run != state.run or state.phase not in WITH_PROCESS:
            return Step(state)  # from a process that is no more
        return _of_run(state, event, now, policy, chance)
    match event:
        case NewPlan():
            return new_plan(state, event.spec, now, policy)
        case DrainRequested():
            return drain_requested(state, event, now)
        case DrainGivenUp():
            return drain_given_up(state, now, policy)
        case RetryRequested():
            if state.phase in WITH_PROCESS or state.wanted is None:
                return Step(state)
            return start(replace(state, failures=0), state.wanted, now, policy)
        case Adopted():
            return adopt(state, event, now, policy)
        case DeadlinePassed():
            return deadline_passed(state, now, policy)
    assert_never(event)


def _of_run(state: State, event: OfRun, now: float, policy: Policy, chance: float) -> Step:
    """An event from the process there is."""
    match event:
        case Started():
            report = Report(Subject.STARTED, f"the daemon was started as pid {event.pid}")
            return Step(replace(state, pid=event.pid), (report,))
        case StartFailed():
            report = Report(Subject.START_FAILED, event.reason)
            return ended_by_itself(state, report, now, policy, chance, quick=True)
        case Exited():
            return exited(state, event, now, policy, chance)
        case Answered():
            return answered(state, now, policy)
        case Silent():
            return silent(state, event, now, policy)
        case KeptOut():
            return kept_out(state, event)
        case Replaced():
            return replaced(state, event, now, policy)
        case LimitsReadBack():
            return read_back(state, event, now, policy, chance)
        case _:
            return _of_server(state, event, now, policy)


def _of_server(state: State, event: OfRun, now: float, policy: Policy) -> Step:
    """An event from the server or the clients of the process there is."""
    match event:
        case ServerSeen():
            return server_seen(state, event.server, now, policy)
        case ServerGone():
            return server_gone(state, event, now, policy)
        case ForeignUserWaiting():
            return Step(state, (foreign_user(state, event),))
        case ClientsGone() if state.phase is Phase.DRAINING and state.ending is Ending.NO:
            return ask_to_end(state, now, policy)
        case _:
            return Step(state)
