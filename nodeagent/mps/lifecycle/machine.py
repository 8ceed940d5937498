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
from typing import TYPE_CHECKING, assert_never

from nodeagent.mps.lifecycle.model import (
    WITH_PROCESS,
    Action,
    Adopted,
    Answered,
    ClientsGone,
    DeadlinePassed,
    Drain,
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
    ReadBack,
    Replaced,
    Report,
    RetryRequested,
    Schedule,
    Server,
    ServerGone,
    ServerSeen,
    ServerStatus,
    Silent,
    Started,
    StartFailed,
    State,
    Subject,
)
from nodeagent.mps.lifecycle.transitions import (
    Step,
    ask_to_end,
    deadline_passed,
    ended_by_itself,
    fresh,
    initializing,
    kill,
    limit,
    ready,
    resume,
    retry_delay,
    server_fault,
    start,
)
from nodeagent.mps.shares import DaemonSpec

if TYPE_CHECKING:
    from nodeagent.settings import MpsSettings


def step(state: State, event: Event, now: float, *, settings: MpsSettings, jitter: float) -> Step:
    """What follows. `now` is the event loop's time, `jitter` a number from 0 up to 1."""
    if isinstance(event, OfRun):
        if event.run != state.run or state.phase not in WITH_PROCESS:
            return Step(state)  # from a process that is no more
        return _of_run(state, event, now, settings, jitter)
    match event:
        case NewPlan():
            return new_plan(state, event.spec, now, settings)
        case DrainRequested():
            return drain_requested(state, event, now)
        case DrainGivenUp():
            return drain_given_up(state, now, settings)
        case RetryRequested():
            if state.phase in WITH_PROCESS or state.wanted is None:
                return Step(state)
            return start(replace(state, failures=0), state.wanted, now, settings)
        case Adopted():
            return adopt(state, event, now, settings)
        case DeadlinePassed():
            return deadline_passed(state, now, settings)
    assert_never(event)


def _of_run(state: State, event: OfRun, now: float, settings: MpsSettings, jitter: float) -> Step:
    """An event from the process there is."""
    match event:
        case Started():
            report = Report(Subject.STARTED, f"the daemon was started as pid {event.pid}")
            return Step(replace(state, pid=event.pid), (report,))
        case StartFailed():
            report = Report(Subject.START_FAILED, event.reason)
            return ended_by_itself(state, report, now, settings, jitter, quick=True)
        case Exited():
            return exited(state, event, now, settings, jitter)
        case Answered():
            return answered(state, now, settings)
        case Silent():
            return silent(state, event, now, settings)
        case KeptOut():
            return kept_out(state, event)
        case Replaced():
            return replaced(state, event, now, settings)
        case LimitsReadBack():
            return read_back(state, event, now, settings, jitter)
        case _:
            return _of_server(state, event, now, settings)


def _of_server(state: State, event: OfRun, now: float, settings: MpsSettings) -> Step:
    """An event from the server or the clients of the process there is."""
    match event:
        case ServerSeen():
            return server_seen(state, event.server, now, settings)
        case ServerGone():
            return server_gone(state, event, now, settings)
        case ForeignUserWaiting():
            return Step(state, (foreign_user(state, event),))
        case ClientsGone() if state.phase is Phase.DRAINING and state.ending is Ending.NO:
            return ask_to_end(state, now, settings)
        case _:
            return Step(state)


def new_plan(state: State, spec: DaemonSpec | None, now: float, settings: MpsSettings) -> Step:
    """What is wanted now; what fits it is left alone."""
    same = spec == state.wanted
    state = replace(state, wanted=spec)
    if state.phase in WITH_PROCESS:
        return _new_plan_for_process(state, spec, now, settings)
    if spec is None:
        return Step(replace(state, phase=Phase.DOWN, deadline=None, failures=0, why=""))
    if state.phase is Phase.BACKOFF and same:
        return Step(state)  # nothing is different for it, so it waits on
    return start(replace(state, failures=0), spec, now, settings)


def _new_plan_for_process(
    state: State, spec: DaemonSpec | None, now: float, settings: MpsSettings
) -> Step:
    must_end = spec is None or state.spec.needs_restart_for(spec)
    if state.phase is Phase.DRAINING or state.ending is not Ending.NO:
        return _new_plan_while_ending(state, spec, now, settings, must_end=must_end)
    if spec is None or must_end:
        drain = Drain(by_plan=True, then_start=spec is not None)
        return Step(
            replace(state, phase=Phase.DRAINING, drain=drain, deadline=None, why="a new plan")
        )
    if spec == state.running:
        return Step(state)
    state = replace(state, running=spec, attempts=0)
    if state.phase in {Phase.LIMITING, Phase.READY}:
        return limit(state, now, settings, why="a new plan has other limits")
    return Step(state)  # its way to Ready leads through the new limits anyway


def _new_plan_while_ending(
    state: State, spec: DaemonSpec | None, now: float, settings: MpsSettings, *, must_end: bool
) -> Step:
    drain = state.drain or Drain()
    if must_end:
        drain = replace(drain, by_plan=True, then_start=spec is not None)
        return Step(replace(state, phase=Phase.DRAINING, drain=drain))
    if state.phase is not Phase.DRAINING or not drain.by_plan:
        return Step(state)  # it hangs and comes back by itself, or a person drains it
    if state.ending is Ending.NO:
        return resume(state, now, settings, why="wanted again")
    return Step(replace(state, drain=replace(drain, then_start=True)))


def drain_requested(state: State, event: DrainRequested, now: float) -> Step:
    """Someone wants it drained, or its end is already near."""
    if state.phase in {Phase.BACKOFF, Phase.FAILED} and not event.then_start:
        down = replace(state, phase=Phase.DOWN, deadline=None, failures=0)
        return Step(replace(down, why="drained on request"))
    if state.phase not in WITH_PROCESS:
        return Step(state)
    by_plan = state.drain is not None and state.drain.by_plan
    then_start = state.drain.then_start if by_plan and state.drain else event.then_start
    drain = Drain(force=event.force, then_start=then_start, by_plan=by_plan)
    state = replace(state, phase=Phase.DRAINING, drain=drain, why="drained on request")
    if state.ending is not Ending.NO:
        return Step(state)  # its end is near anyway, with a deadline of its own
    if event.seconds is None:
        return Step(replace(state, deadline=None))
    return Step(replace(state, deadline=now + event.seconds), (Schedule(event.seconds),))


def drain_given_up(state: State, now: float, settings: MpsSettings) -> Step:
    """A drain that a person requested and withdrew; what a plan wants stays wanted."""
    by_person = state.drain is not None and not state.drain.by_plan
    if state.phase is not Phase.DRAINING or state.ending is not Ending.NO or not by_person:
        return Step(state)
    return resume(state, now, settings, why="not drained: the request was withdrawn")


def adopt(state: State, event: Adopted, now: float, settings: MpsSettings) -> Step:
    """Take over what an earlier agent left running; its limits are proven again."""
    if state.phase is not Phase.DOWN:
        return Step(state)
    adopted = replace(
        fresh(state, event.spec),
        wanted=event.spec,
        pid=event.pid,
        was_ready=True,  # so it may have clients
        deadline=now + settings.start_deadline,
        why="an earlier agent's; has not answered yet",
    )
    return Step(adopted, (Schedule(settings.start_deadline),))


def answered(state: State, now: float, settings: MpsSettings) -> Step:
    """It is alive; the first time, its limits are next."""
    state = replace(state, silences=0, answered=True, kept_out="", excused=False)
    if state.phase is Phase.STARTING:
        return limit(state, now, settings, why="limits are not proven yet")
    return Step(state)


def kept_out(state: State, event: KeptOut) -> Step:
    """Reported once for each reason; it is no reason to end anything."""
    state = replace(state, excused=True)
    if event.reason == state.kept_out:
        return Step(state)
    state = replace(state, kept_out=event.reason)
    if state.phase in {Phase.STARTING, Phase.LIMITING}:
        state = replace(state, why=event.reason)
    return Step(state, (Report(Subject.SILENT, event.reason),))


def silent(state: State, event: Silent, now: float, settings: MpsSettings) -> Step:
    """A question unanswered; so many in a row, and it hangs."""
    if state.phase is Phase.STARTING or state.ending is not Ending.NO:
        return Step(state)  # these have a deadline
    state = replace(state, silences=state.silences + 1)
    if state.silences < settings.most_silences:
        return Step(state)
    more = f" ({event.reason})" if event.reason else ""
    why = f"answered none of {state.silences} questions in a row{more}"
    if state.phase is Phase.DRAINING and not (state.drain and state.drain.force):
        # Clients that work without it may go on: its answers are not needed any more.
        reports = (Report(Subject.SILENT, why),) if state.silences == settings.most_silences else ()
        return Step(state, reports)
    return kill(state, now, settings, Report(Subject.SILENT, f"{why}; it is replaced"))


def replaced(state: State, event: Replaced, now: float, settings: MpsSettings) -> Step:
    """Another process answers at its sockets, so no answer counts."""
    if state.ending is not Ending.NO:
        return Step(state)  # it ends anyway, with a deadline of its own
    why = f"{event.reason}; a fresh daemon takes its place"
    return kill(state, now, settings, Report(Subject.REPLACED, why))


def exited(state: State, event: Exited, now: float, settings: MpsSettings, jitter: float) -> Step:
    """Its end, wanted or not."""
    if state.ending is Ending.KILLING and state.phase is not Phase.DRAINING:
        words = f"the daemon was killed after {event.ran_for:.1f} s: {state.why}"
    else:
        words = f"the daemon ended after {event.ran_for:.1f} s: {event.status}"
    report = Report(Subject.EXITED, words, event.last_lines)
    quick = not state.was_ready or event.ran_for < settings.steady
    return ended_by_itself(state, report, now, settings, jitter, quick=quick)


def read_back(
    state: State, event: LimitsReadBack, now: float, settings: MpsSettings, jitter: float
) -> Step:
    """What is in force was read; only that makes it Ready."""
    if event.reading != state.reading:
        return Step(state)  # they were set once more meanwhile
    if state.phase is Phase.READY and event.differences:
        report = _differ(event)
        limiting = limit(replace(state, attempts=0), now, settings, why=report.message)
        return Step(limiting.state, (report, *limiting.actions))
    if state.phase is not Phase.LIMITING:
        return Step(state)
    if not event.differences:
        return ready(state, now, settings)
    return _not_in_force(replace(state, attempts=state.attempts + 1), event, now, settings, jitter)


def _not_in_force(
    state: State, event: LimitsReadBack, now: float, settings: MpsSettings, jitter: float
) -> Step:
    report = _differ(event)
    if not state.was_ready and state.attempts >= settings.most_attempts:
        return kill(state, now, settings, report)
    if not state.was_ready:
        return limit(state, now, settings, why=report.message)
    # It may have clients, so it is not ended; only tried less and less often.
    delay = retry_delay(settings, state.attempts, jitter)
    state = replace(state, deadline=now + delay, why=report.message)
    return Step(state, (report, Schedule(delay)))


def _differ(event: LimitsReadBack) -> Report:
    return Report(Subject.LIMITS_DIFFER, "not as wanted: " + "; ".join(event.differences))


def server_seen(state: State, server: Server, now: float, settings: MpsSettings) -> Step:
    """The daemon says of its server what it did not say before."""
    if server == state.server:
        return Step(state)
    before = state.server
    new = before is None or before.pid != server.pid
    named = server.culprit is not None and (before is None or before.culprit != server.culprit)
    reports = _wrong_user(state, server) if new else ()
    state = replace(state, server=server)
    if named and state.phase is Phase.FAULT and state.ending is Ending.NO:
        fault = server_fault(state, server)
        return Step(fault.state, (*reports, *fault.actions))
    after = _server_changed(state, server, now, settings, new=new)
    return Step(after.state, (*reports, *after.actions))


def _server_changed(
    state: State, server: Server, now: float, settings: MpsSettings, *, new: bool
) -> Step:
    if state.ending is not Ending.NO:
        return Step(state)
    match state.phase, server.status:
        case Phase.READY | Phase.LIMITING, ServerStatus.FAULT:
            return server_fault(state, server)
        case Phase.FAULT, ServerStatus.ACTIVE:
            return limit(replace(state, attempts=0), now, settings, why="its server was faulted")
        case Phase.READY, status:
            # What a server has are the defaults of the moment it started.
            read = (ReadBack(state.run, state.spec, state.reading),) if new else ()
            if status is ServerStatus.INITIALIZING:
                waiting = initializing(state, now, settings)
                return Step(waiting.state, (*read, *waiting.actions))
            return Step(replace(state, deadline=None), read)
        case _:
            return Step(state)


def server_gone(state: State, event: ServerGone, now: float, settings: MpsSettings) -> Step:
    """A server that is gone takes its fault with it."""
    reports: tuple[Action, ...] = ()
    if event.status:
        words = f"server {event.pid} ended: {event.status}"
        reports = (Report(Subject.SERVER_EXITED, words, event.last_lines),)
    if state.server is None or state.server.pid != event.pid:
        return Step(state, reports)
    state = replace(state, server=None)
    if state.phase is Phase.READY:
        state = replace(state, deadline=None)
    if state.phase is Phase.FAULT and state.ending is Ending.NO:
        limiting = limit(replace(state, attempts=0), now, settings, why="its server was faulted")
        return Step(limiting.state, (*reports, *limiting.actions))
    return Step(state, reports)


def _wrong_user(state: State, server: Server) -> tuple[Report, ...]:
    spec = state.spec
    if server.uid is None or spec.multi_user or server.uid == spec.uid:
        return ()
    words = (
        f"server {server.pid} runs as user {server.uid}, the plan wants {spec.uid}, whose "
        "clients wait until it has gone"
    )
    return (Report(Subject.WRONG_SERVER_USER, words),)


def foreign_user(state: State, event: ForeignUserWaiting) -> Report:
    """Say who waits, for whom, and what to do."""
    who = f"pid {event.pid} ({event.command})" if event.command else f"pid {event.pid}"
    server = state.server
    if server is None:
        holder = f"the plan wants user {state.spec.uid}"
    else:
        user = "" if server.uid is None else f" of user {server.uid}"
        holder = f"server {server.pid}{user} holds the device"
    return Report(
        Subject.FOREIGN_USER_WAITING,
        f"{who} of user {event.uid} waits and will not be served: {holder}; run it as user "
        f"{state.spec.uid}, or change the plan's user",
    )
