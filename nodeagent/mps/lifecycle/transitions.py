"""Transitions between phases, those that several events lead to and those of deadlines. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, assert_never

from nodeagent.backoff import Backoff
from nodeagent.mps.lifecycle.model import (
    Action,
    Drain,
    Ending,
    Kill,
    Phase,
    Quit,
    ReadBack,
    Report,
    Schedule,
    Server,
    ServerStatus,
    SetLimits,
    Spawn,
    State,
    Subject,
    SweepOrphans,
)
from nodeagent.mps.shares import DaemonSpec

if TYPE_CHECKING:
    from nodeagent.settings import MpsSettings


def retry_delay(settings: MpsSettings, failures: int, jitter: float) -> float:
    """The wait after so many quick failures in a row, shortened by up to a quarter, so that many
    daemons do not act in step.
    """
    backoff = Backoff(
        settings.first_delay, settings.longest_delay, spread=0.25, jitter=lambda: jitter
    )
    return backoff.after(failures)


class Step(NamedTuple):
    """What an event leads to; the actions are to be done in order."""

    state: State
    actions: tuple[Action, ...] = ()


def fresh(state: State, spec: DaemonSpec) -> State:
    """The state at the start of another process."""
    return State(
        phase=Phase.STARTING,
        wanted=state.wanted,
        running=spec,
        run=state.run + 1,
        restarts=state.restarts,
        failures=state.failures,
    )


def start(state: State, spec: DaemonSpec, now: float, settings: MpsSettings) -> Step:
    """Sweep what a dead daemon left, and start another."""
    started = replace(
        fresh(state, spec), deadline=now + settings.start_deadline, why="has not answered yet"
    )
    return Step(
        started,
        (SweepOrphans(spec), Spawn(started.run, spec), Schedule(settings.start_deadline)),
    )


def limit(state: State, now: float, settings: MpsSettings, *, why: str) -> Step:
    """Set the limits and read them back."""
    limiting = replace(
        state,
        phase=Phase.LIMITING,
        drain=None,
        reading=state.reading + 1,
        deadline=now + settings.limit_deadline,
        why=why,
    )
    return Step(
        limiting,
        (
            SetLimits(state.run, state.spec),
            ReadBack(state.run, state.spec, limiting.reading),
            Schedule(settings.limit_deadline),
        ),
    )


def resume(state: State, now: float, settings: MpsSettings, *, why: str) -> Step:
    """It is not to end after all: back on the way to Ready, from where it was, perhaps with other
    limits than before.
    """
    state = replace(state, running=state.wanted or state.running)
    if state.answered:
        return limit(replace(state, attempts=0), now, settings, why=why)
    seconds = settings.start_deadline
    return Step(
        replace(state, phase=Phase.STARTING, drain=None, deadline=now + seconds, why=why),
        (Schedule(seconds),),
    )


def ready(state: State, now: float, settings: MpsSettings) -> Step:
    """Ready, as far as its server is."""
    server = state.server
    state = replace(
        state,
        phase=Phase.READY,
        attempts=0,
        was_ready=True,
        deadline=None,
        why="",
    )
    report = Report(Subject.READY, "the daemon answers and its limits were read back")
    if server and server.status is ServerStatus.FAULT:
        return server_fault(state, server)
    if server and server.status is ServerStatus.INITIALIZING:
        waiting = initializing(state, now, settings)
        return Step(waiting.state, (report, *waiting.actions))
    return Step(state, (report,))


def initializing(state: State, now: float, settings: MpsSettings) -> Step:
    """Give a server its time to become active."""
    seconds = settings.initialize_deadline
    return Step(replace(state, deadline=now + seconds), (Schedule(seconds),))


def server_fault(state: State, server: Server) -> Step:
    """The daemon is well, but its server takes no client."""
    by = f" of client {server.culprit}" if server.culprit is not None else ""
    why = (
        f"server {server.pid} had a fatal fault{by} and takes no client until all that it has are "
        "gone"
    )
    state = replace(state, phase=Phase.FAULT, deadline=None, why=why)
    return Step(state, (Report(Subject.SERVER_FAULT, why),))


def ask_to_end(state: State, now: float, settings: MpsSettings) -> Step:
    """Ask it to end; what becomes of that is known by its exit."""
    seconds = settings.quit_deadline
    return Step(
        replace(state, ending=Ending.QUITTING, deadline=now + seconds),
        (Quit(state.run, seconds), Schedule(seconds)),
    )


def kill(state: State, now: float, settings: MpsSettings, report: Report) -> Step:
    """It is killed; only its exit ends this, since there must never be two."""
    phase = state.phase if state.phase is Phase.DRAINING else Phase.FAULT
    killed = replace(
        state,
        phase=phase,
        ending=Ending.KILLING,
        deadline=now + settings.kill_deadline,
        why=report.message,
    )
    return Step(killed, (report, Kill(state.run), Schedule(settings.kill_deadline)))


def ended_by_itself(
    state: State, report: Report, now: float, settings: MpsSettings, jitter: float, *, quick: bool
) -> Step:
    """There is no process any more, unless this is the end that was wanted."""
    sweep = SweepOrphans(state.spec)
    if state.phase is Phase.DRAINING:
        return _drained(state, report, now, settings)
    failures = state.failures + 1 if quick else 0
    ended = replace(
        state,
        pid=None,
        failures=failures,
        ending=Ending.NO,
        drain=None,
        server=None,
        deadline=None,
        why=report.message,
    )
    if not failures and ended.wanted is not None:
        # It ran steadily, so the next one is expected to.
        again = start(replace(ended, restarts=state.restarts + 1), ended.wanted, now, settings)
        return Step(again.state, (report, sweep, *again.actions))
    if failures >= settings.most_failures:
        return _failed(ended, report, now, settings, jitter)
    delay = retry_delay(settings, failures, jitter)
    backoff = replace(ended, phase=Phase.BACKOFF, deadline=now + delay)
    return Step(backoff, (report, sweep, Schedule(delay)))


def _failed(state: State, report: Report, now: float, settings: MpsSettings, jitter: float) -> Step:
    """Reported once; retried at the longest delay, since its cause may pass."""
    delay = settings.longest_delay * (1 - jitter / 4)
    words = (
        f"failed {state.failures} times in a row and is tried every {settings.longest_delay:g} s "
        f"only, the last time: {report.message}"
    )
    failed = replace(state, phase=Phase.FAILED, deadline=now + delay, why=words)
    first = state.failures == settings.most_failures
    reports = (report, Report(Subject.FAILED, words, report.lines)) if first else (report,)
    return Step(failed, (*reports, SweepOrphans(state.spec), Schedule(delay)))


def _drained(state: State, report: Report, now: float, settings: MpsSettings) -> Step:
    reports = () if state.ending is Ending.QUITTING else (report,)
    said = Report(Subject.DRAINED, "the daemon is drained and has ended")
    down = State(
        wanted=state.wanted, run=state.run, restarts=state.restarts, why="drained on request"
    )
    if state.drain and state.drain.then_start and state.wanted is not None:
        started = start(down, state.wanted, now, settings)
        sweeps = (SweepOrphans(state.spec),)
        return Step(started.state, (*reports, said, *sweeps, *started.actions))
    if state.wanted is None:
        down = replace(down, why="")
    return Step(down, (*reports, said, SweepOrphans(state.spec)))


def deadline_passed(state: State, now: float, settings: MpsSettings) -> Step:
    """What the deadline was for is known by the phase."""
    if state.deadline is None:
        return Step(state)
    if now < state.deadline:
        return Step(state, (Schedule(state.deadline - now),))
    if state.ending is not Ending.NO:
        return _still_there(state, now, settings)
    if state.excused and state.phase in {Phase.STARTING, Phase.LIMITING}:
        return _once_more(state, now, settings)
    return _by_phase(state, now, settings)


def _by_phase(state: State, now: float, settings: MpsSettings) -> Step:
    match state.phase:
        case Phase.BACKOFF | Phase.FAILED:
            return _start_again(state, now, settings)
        case Phase.STARTING:
            why = f"did not answer within {settings.start_deadline:g} s of its start"
            return kill(state, now, settings, Report(Subject.SILENT, why))
        case Phase.LIMITING:
            return _limits_late(state, now, settings)
        case Phase.READY:
            return _server_slow(state, settings)
        case Phase.DRAINING:
            return _drain_is_over(state, now, settings)
        case Phase.DOWN | Phase.FAULT:
            return Step(replace(state, deadline=None))
    assert_never(state.phase)


def _start_again(state: State, now: float, settings: MpsSettings) -> Step:
    if state.wanted is None:
        return Step(replace(state, phase=Phase.DOWN, deadline=None))
    return start(replace(state, restarts=state.restarts + 1), state.wanted, now, settings)


def _once_more(state: State, now: float, settings: MpsSettings) -> Step:
    """It could not be asked, which is not its fault: it may even have clients."""
    starting = state.phase is Phase.STARTING
    seconds = settings.start_deadline if starting else settings.limit_deadline
    state = replace(state, deadline=now + seconds, excused=False)
    if starting:
        return Step(state, (Schedule(seconds),))
    return limit(state, now, settings, why=state.why)


def _limits_late(state: State, now: float, settings: MpsSettings) -> Step:
    if state.was_ready:
        return limit(state, now, settings, why=state.why)
    why = f"its limits were not in force within {settings.limit_deadline:g} s"
    return kill(state, now, settings, Report(Subject.LIMITS_DIFFER, why))


def _still_there(state: State, now: float, settings: MpsSettings) -> Step:
    if state.ending is Ending.QUITTING:
        why = f"did not end within {settings.quit_deadline:g} s of being asked to"
        return kill(state, now, settings, Report(Subject.SILENT, why))
    who = f"pid {state.pid}" if state.pid is not None else "the daemon"
    why = f"{who} was killed but does not end; it probably waits for the driver"
    return kill(state, now, settings, Report(Subject.CANNOT_BE_ENDED, why))


def _server_slow(state: State, settings: MpsSettings) -> Step:
    pid = state.server.pid if state.server else 0
    why = f"server {pid} has been initializing for {settings.initialize_deadline:g} s"
    state = replace(state, phase=Phase.FAULT, deadline=None, why=why)
    return Step(state, (Report(Subject.SERVER_SLOW, why),))


def _drain_is_over(state: State, now: float, settings: MpsSettings) -> Step:
    drain = state.drain or Drain()
    if drain.force:
        return ask_to_end(state, now, settings)
    report = Report(Subject.STILL_IN_USE, "clients are left when the time to drain is over")
    state = replace(state, deadline=None)
    if drain.by_plan:
        return Step(state, (report,))  # the plan goes on waiting
    resumed = resume(state, now, settings, why="not drained: it is in use")
    return Step(resumed.state, (report, *resumed.actions))
