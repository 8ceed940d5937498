"""The life of one MPS daemon as a function: state, event and time in, state and actions out.

Pure, and defined for every event in every state: one that means nothing there changes nothing.
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

from typing import TYPE_CHECKING, assert_never

from nodeagent.mps.lifecycle import model
from nodeagent.mps.lifecycle.model import (
    WITH_PROCESS,
    DaemonPhase,
    Ending,
    ReportSubject,
    ServerStatus,
)
from nodeagent.mps.lifecycle.transitions import (
    Transition,
    deadline_passed,
    foreign_user_message,
    report_wrong_user,
    retry_delay,
    starting,
)
from nodeagent.mps.shares import DaemonSpec
from nodeagent.structs import replace

if TYPE_CHECKING:
    from nodeagent.settings import MpsSettings


def step(
    state: model.State, event: model.Event, now: float, *, settings: MpsSettings, jitter: float
) -> tuple[model.State, tuple[model.Action, ...]]:
    """The next state, and the actions, to be done in order. `now` is the event loop's time,
    `jitter` a number from 0 up to 1.
    """
    life = Transition(state, now, settings, jitter)
    match event:
        case model.ProcessEvent():
            if event.run == state.run and state.phase in WITH_PROCESS:
                _process_event(life, event)  # else from a process that is no more
        case model.NewPlan():
            _new_plan(life, event.spec)
        case model.DrainRequested():
            _drain_requested(life, event)
        case model.DrainGivenUp():
            _drain_given_up(life)
        case model.RetryRequested():
            if state.phase not in WITH_PROCESS and state.wanted is not None:
                life.state = replace(state, failures=0)
                life.start(state.wanted)
        case model.Adopted():
            _adopted(life, event)
        case model.DeadlinePassed():
            deadline_passed(life)
        case _ as never:
            assert_never(never)
    return life.state, tuple(life.actions)


def _process_event(life: Transition, event: model.RunEvent) -> None:
    state = life.state
    match event:
        case model.Started(pid=pid, found=found):
            was_ready = state.was_ready or found
            life.state = replace(state, pid=pid, was_ready=was_ready, shortages=0)
            how = "that runs already is taken over" if found else "was started"
            life.report(ReportSubject.STARTED, f"the daemon {how} as pid {pid}")
        case model.StartFailed():
            life.not_started(event)
        case model.Exited():
            _exited(life, event)
        case model.Answered():
            life.state = replace(
                state, timeouts=0, answered=True, unreachable="", was_unreachable=False
            )
            if state.phase is DaemonPhase.STARTING:
                life.set_limits("limits are not proven yet")
        case model.Timeout():
            _timed_out(life, event)
        case model.Unreachable():
            _unreachable(life, event.reason)
        case model.ImpostorFound():
            if state.ending is Ending.NO:  # else it ends anyway, with a deadline of its own
                why = f"{event.reason}; a fresh daemon takes its place"
                life.kill(ReportSubject.REPLACED, why)
        case _:
            _answer_event(life, event)


def _answer_event(life: Transition, event: model.AnswerEvent) -> None:
    match event:
        case model.LimitsReadBack():
            _read_back(life, event)
        case model.ServerSeen():
            _server_seen(life, event.server)
        case model.ServerGone():
            _server_gone(life, event)
        case model.ForeignUserWaiting():
            life.report(ReportSubject.FOREIGN_USER_WAITING, foreign_user_message(life.state, event))
        case model.ClientsGone():
            if life.state.phase is DaemonPhase.DRAINING and life.state.ending is Ending.NO:
                life.ask_to_end()
        case _ as never:
            assert_never(never)


# --- answers --------------------------------------------------------------------------------------


def _unreachable(life: Transition, reason: str) -> None:
    """Report each reason once. A daemon that could not be asked is not ended for it."""
    before = life.state
    life.state = replace(before, was_unreachable=True, unreachable=reason)
    if reason != before.unreachable:
        if before.phase in {DaemonPhase.STARTING, DaemonPhase.LIMITING}:
            life.state = replace(life.state, why=reason)
        life.report(ReportSubject.SILENT, reason)


def _timed_out(life: Transition, event: model.Timeout) -> None:
    """Count questions without an answer in a row; from some number on the daemon hangs."""
    state, most = life.state, life.settings.most_silences
    if state.phase is DaemonPhase.STARTING or state.ending is not Ending.NO:
        return  # these have a deadline
    timeouts = state.timeouts + 1
    life.state = replace(state, timeouts=timeouts)
    more = f" ({event.reason})" if event.reason else ""
    why = f"answered none of {timeouts} questions in a row{more}"
    if state.phase is DaemonPhase.DRAINING and not state.drain.force:
        # Clients work on without the daemon, whose answers are not needed any more.
        if timeouts == most:
            life.report(ReportSubject.SILENT, why)
    elif timeouts >= most:
        life.kill(ReportSubject.SILENT, f"{why}; it is replaced")


def _read_back(life: Transition, event: model.LimitsReadBack) -> None:
    """Compare the limits in force with those wanted; only equal ones make the daemon Ready."""
    state = life.state
    if event.limits_version != state.limits_version:
        return  # the limits were set again meanwhile
    differ = "not as wanted: " + "; ".join(event.differences)
    if state.phase is DaemonPhase.READY and event.differences:
        life.report(ReportSubject.LIMITS_DIFFER, differ)
        life.set_limits(differ)
    elif state.phase is DaemonPhase.LIMITING and event.differences:
        _not_in_force(life, differ)
    elif state.phase is DaemonPhase.LIMITING:
        life.ready()


def _not_in_force(life: Transition, differ: str) -> None:
    attempts = life.state.attempts + 1
    life.state = replace(life.state, attempts=attempts, why=differ)
    if life.state.was_ready:
        # The daemon may have clients: it is not ended, and is tried less and less often.
        life.report(ReportSubject.LIMITS_DIFFER, differ)
        life.set_deadline(retry_delay(life.settings, attempts, life.jitter))
    elif attempts >= life.settings.most_attempts:
        life.kill(ReportSubject.LIMITS_DIFFER, differ)
    else:
        life.set_limits(differ, attempts=attempts)


# --- servers and clients --------------------------------------------------------------------------


def _server_seen(life: Transition, server: model.Server) -> None:
    state, before = life.state, life.state.server
    new = before is None or before.pid != server.pid
    life.state = replace(state, server=server)
    if new:
        report_wrong_user(life, server)
    if state.ending is not Ending.NO or (before and replace(before, uid=server.uid) == server):
        return
    match state.phase, server.status:
        case DaemonPhase.READY | DaemonPhase.LIMITING | DaemonPhase.FAULT, ServerStatus.FAULT:
            life.server_fault(server)
        case DaemonPhase.FAULT, ServerStatus.ACTIVE:
            life.set_limits("its server was faulted")
        case DaemonPhase.READY, status:
            # A server has the limits that were the daemon's when the server started.
            if new:
                life.actions.append(model.ReadBack(state.run))
            if status is ServerStatus.INITIALIZING:
                life.set_deadline(life.settings.initialize_deadline)
            else:
                life.state = replace(life.state, deadline=None)


def _server_gone(life: Transition, event: model.ServerGone) -> None:
    """Forget the server, and its fault with it."""
    state = life.state
    if event.status:
        words = f"server {event.pid} ended: {event.status}"
        life.report(ReportSubject.SERVER_EXITED, words, event.last_lines)
    if state.server is None or state.server.pid != event.pid:
        return
    life.state = replace(state, server=None)
    if state.phase is DaemonPhase.READY:
        life.state = replace(life.state, deadline=None)
    if state.phase is DaemonPhase.FAULT and state.ending is Ending.NO:
        life.set_limits("its server was faulted")


# --- its end --------------------------------------------------------------------------------------


def _exited(life: Transition, event: model.Exited) -> None:
    state = life.state
    if state.ending is Ending.KILLING and state.phase is not DaemonPhase.DRAINING:
        words = f"the daemon was killed after {event.ran_for:.1f} s: {state.why}"
    else:
        words = f"the daemon ended after {event.ran_for:.1f} s: {event.status}"
    quick = not state.was_ready or event.ran_for < life.settings.steady
    life.process_ended(model.Report(ReportSubject.EXITED, words, event.last_lines), quick=quick)


# --- what plans and people want -------------------------------------------------------------------


def _new_plan(life: Transition, spec: DaemonSpec | None) -> None:
    """Note what is wanted now, and change only what does not fit it."""
    before = life.state
    life.state = replace(before, wanted=spec)
    if before.phase in WITH_PROCESS:
        _new_plan_for_process(life, spec)
    elif spec is None:
        life.state = replace(life.state, phase=DaemonPhase.DOWN, deadline=None, failures=0, why="")
    elif before.phase is not DaemonPhase.BACKOFF or spec != before.wanted:
        # In Backoff the same plan changes nothing, so it waits on.
        life.state = replace(life.state, failures=0)
        life.start(spec)


def _new_plan_for_process(life: Transition, spec: DaemonSpec | None) -> None:
    state = life.state
    must_end = spec is None or state.spec.needs_restart_for(spec)
    if state.phase is DaemonPhase.DRAINING or state.ending is not Ending.NO:
        _new_plan_while_ending(life, spec, must_end=must_end)
    elif spec is None or must_end:
        drain = model.Drain(by_plan=True, then_start=spec is not None)
        other_shm = spec is not None and spec.private_shm != state.spec.private_shm
        why = "it has another /dev/shm than mps.shm says" if other_shm else "a new plan"
        life.state = replace(state, phase=DaemonPhase.DRAINING, drain=drain, deadline=None, why=why)
    elif spec != state.running:
        life.state = replace(state, running=spec, attempts=0)
        other_limits = spec.limits != state.spec.limits
        if other_limits and state.phase in {DaemonPhase.LIMITING, DaemonPhase.READY}:
            life.set_limits("a new plan has other limits")
        # In any other phase the new limits are set on the way to Ready anyway.


def _new_plan_while_ending(life: Transition, spec: DaemonSpec | None, *, must_end: bool) -> None:
    state = life.state
    drain = state.drain
    if must_end:
        drain = replace(drain, by_plan=True, then_start=spec is not None)
        life.state = replace(state, phase=DaemonPhase.DRAINING, drain=drain)
    elif state.phase is not DaemonPhase.DRAINING or not drain.by_plan:
        return  # a daemon that hangs is started again anyway; a person's drain goes on
    elif state.ending is Ending.NO:
        life.resume("wanted again")
    else:
        life.state = replace(state, drain=replace(drain, then_start=True))


def _drain_requested(life: Transition, event: model.DrainRequested) -> None:
    """Drain the daemon for a person; what a plan's drain has planned for afterwards stays."""
    state = life.state
    if state.phase in {DaemonPhase.BACKOFF, DaemonPhase.FAILED} and not event.then_start:
        life.state = replace(
            state, phase=DaemonPhase.DOWN, deadline=None, failures=0, why="drained on request"
        )
    if state.phase not in WITH_PROCESS:
        return
    before = state.drain
    then_start = before.then_start if before.by_plan else event.then_start
    drain = model.Drain(force=event.force, then_start=then_start, by_plan=before.by_plan)
    life.state = replace(state, phase=DaemonPhase.DRAINING, drain=drain, why="drained on request")
    if state.ending is not Ending.NO:
        return  # the process is ending anyway, with a deadline of its own
    if event.seconds is None:
        life.state = replace(life.state, deadline=None)
    else:
        life.set_deadline(event.seconds)


def _drain_given_up(life: Transition) -> None:
    """End the drain that a person has withdrawn, unless a plan wants it, too."""
    state, drain = life.state, life.state.drain
    if state.phase is DaemonPhase.DRAINING and state.ending is Ending.NO and not drain.by_plan:
        life.resume("not drained: the request was withdrawn")


def _adopted(life: Transition, event: model.Adopted) -> None:
    """Take over what an earlier agent left running; its limits are proven again."""
    if life.state.phase is not DaemonPhase.DOWN:
        return
    life.state = replace(
        starting(life.state, event.spec),
        wanted=event.spec,
        pid=event.pid,
        was_ready=True,  # so it may have clients
        why="an earlier agent's; has not answered yet",
    )
    life.set_deadline(life.settings.start_deadline)
