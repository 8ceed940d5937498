"""Transitions of a daemon that several events share, and those at deadlines. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from nodeagent.mps.lifecycle import model
from nodeagent.mps.lifecycle.model import DaemonPhase, Ending, ReportSubject, ServerStatus
from nodeagent.mps.shares import DaemonSpec
from nodeagent.pacing import Backoff
from nodeagent.structs import Struct, field, replace

if TYPE_CHECKING:
    from nodeagent.settings import MpsSettings


def retry_delay(settings: MpsSettings, failures: int, jitter: float) -> float:
    """The delay after so many quick failures in a row, shortened by up to a quarter, so that many
    daemons do not act in step.
    """
    backoff = Backoff(
        settings.first_delay, settings.longest_delay, spread=0.25, jitter=lambda: jitter
    )
    return backoff.after(failures)


def starting(state: model.State, spec: DaemonSpec) -> model.State:
    """The state when another process is started as `spec`."""
    return model.State(
        phase=DaemonPhase.STARTING,
        wanted=state.wanted,
        running=spec,
        run=state.run + 1,
        restarts=state.restarts,
        failures=state.failures,
        shortages=state.shortages,
        why="has not answered yet",
    )


class Transition(Struct):
    """What one event at `now` leads to: the state, and the actions, which are done in order."""

    state: model.State
    now: float
    settings: MpsSettings
    jitter: float
    actions: list[model.Action] = field(default_factory=list)

    def report(self, subject: ReportSubject, message: str, lines: tuple[str, ...] = ()) -> None:
        self.actions.append(model.Report(subject, message, lines))

    def set_deadline(self, seconds: float) -> None:
        self.state = replace(self.state, deadline=self.now + seconds)
        self.actions.append(model.Schedule(seconds))

    def start(self, spec: DaemonSpec) -> None:
        """Sweep what a dead daemon left, and start another."""
        self.state = starting(self.state, spec)
        self.actions += (model.SweepOrphans(spec), model.Spawn(self.state.run, spec))
        self.set_deadline(self.settings.start_deadline)

    def set_limits(self, why: str, *, attempts: int = 0) -> None:
        """Have the daemon's limits set and read back; it is Ready only after that."""
        before = self.state
        self.state = replace(
            before,
            phase=DaemonPhase.LIMITING,
            drain=model.Drain(),
            attempts=attempts,
            limits_version=before.limits_version + 1,
            why=why,
        )
        self.actions.append(model.SetLimits(before.run, before.spec))
        self.set_deadline(self.settings.limit_deadline)

    def resume(self, why: str) -> None:
        """Give up a drain: the daemon is on its way to Ready again, perhaps with other limits."""
        self.state = replace(self.state, running=self.state.wanted)
        if self.state.answered:
            self.set_limits(why)
        else:
            self.state = replace(
                self.state, phase=DaemonPhase.STARTING, drain=model.Drain(), why=why
            )
            self.set_deadline(self.settings.start_deadline)

    def ready(self) -> None:
        """Make the daemon Ready, or Fault if its server is faulted."""
        phase = DaemonPhase.READY
        self.state = replace(self.state, phase=phase, was_ready=True, deadline=None, why="")
        server = self.state.server
        if server and server.status is ServerStatus.FAULT:
            self.server_fault(server)
            return
        self.report(ReportSubject.READY, "the daemon answers and its limits were read back")
        if server and server.status is ServerStatus.INITIALIZING:
            self.set_deadline(self.settings.initialize_deadline)

    def fault(self, subject: ReportSubject, why: str) -> None:
        """Note that the daemon is well, but its server takes no client."""
        self.state = replace(self.state, phase=DaemonPhase.FAULT, deadline=None, why=why)
        self.report(subject, why)

    def server_fault(self, server: model.Server) -> None:
        by = f" of client {server.culprit}" if server.culprit is not None else ""
        self.fault(
            ReportSubject.SERVER_FAULT,
            f"server {server.pid} had a fatal fault{by} and takes no client until all that it has "
            "are gone",
        )

    def ask_to_end(self) -> None:
        """Ask the daemon to end; that it has ended is another event."""
        self.state = replace(self.state, ending=Ending.QUITTING)
        self.actions.append(model.Quit(self.state.run, self.settings.quit_deadline))
        self.set_deadline(self.settings.quit_deadline)

    def kill(self, subject: ReportSubject, why: str) -> None:
        """Kill the daemon. No other is started before it has exited: there must never be two."""
        phase = (
            DaemonPhase.DRAINING if self.state.phase is DaemonPhase.DRAINING else DaemonPhase.FAULT
        )
        self.state = replace(self.state, phase=phase, ending=Ending.KILLING, why=why)
        self.report(subject, why)
        self.actions.append(model.Kill(self.state.run))
        self.set_deadline(self.settings.kill_deadline)

    def process_ended(self, report: model.Report, *, quick: bool) -> None:
        """Finish a drain, or have an unwanted end followed by another start, now or later."""
        before = self.state
        if before.phase is DaemonPhase.DRAINING:
            self._finish_drain(before, report)
            return
        sweep = model.SweepOrphans(before.spec)
        self.actions.append(report)
        self.state = replace(
            before,
            pid=None,
            failures=before.failures + 1 if quick else 0,
            ending=Ending.NO,
            server=None,
            why=report.message,
        )
        if not quick:
            # It ran steadily, so the next one is expected to.
            self.actions.append(sweep)
            self.start_again()
        elif self.state.failures >= self.settings.most_failures:
            self._failed(report, sweep)
        else:
            self.state = replace(self.state, phase=DaemonPhase.BACKOFF)
            self.actions.append(sweep)
            self.set_deadline(retry_delay(self.settings, self.state.failures, self.jitter))

    def not_started(self, event: model.StartFailed) -> None:
        """Try again soon where the machine lacked something, which is no failure of the daemon's.
        Any other reason counts as a quick end.
        """
        before = self.state
        report = model.Report(ReportSubject.START_FAILED, event.reason)
        if not event.is_shortage or before.phase is DaemonPhase.DRAINING:
            self.process_ended(report, quick=True)
            return
        self.actions.append(report)
        shortages = before.shortages + 1
        self.state = replace(
            before,
            phase=DaemonPhase.BACKOFF,
            ending=Ending.NO,
            shortages=shortages,
            why=event.reason,
        )
        self.actions.append(model.SweepOrphans(before.spec))
        delay = retry_delay(self.settings, shortages, self.jitter)
        self.set_deadline(min(delay, self.settings.start_deadline))

    def start_again(self) -> None:
        """Start without being asked to; a restart, unless the last start made no process."""
        if not self.state.shortages:
            self.state = replace(self.state, restarts=self.state.restarts + 1)
        if self.state.wanted is not None:  # else it is Down or Draining
            self.start(self.state.wanted)

    def _failed(self, report: model.Report, sweep: model.SweepOrphans) -> None:
        """Report that once, and retry at the longest delay, since the cause may pass."""
        longest = self.settings.longest_delay
        why = (
            f"failed {self.state.failures} times in a row and is tried every {longest:g} s only, "
            f"the last time: {report.message}"
        )
        self.state = replace(self.state, phase=DaemonPhase.FAILED, why=why)
        if self.state.failures == self.settings.most_failures:
            self.report(ReportSubject.FAILED, why, report.lines)
        self.actions.append(sweep)
        self.set_deadline(longest * (1 - self.jitter / 4))

    def _finish_drain(self, before: model.State, report: model.Report) -> None:
        if before.ending is not Ending.QUITTING:
            self.actions.append(report)
        again = before.wanted if before.drain.then_start else None
        why = "for the plan" if before.drain.by_plan else "on request"
        restart = ", to be started again" if again is not None else ""
        self.report(ReportSubject.DRAINED, f"the daemon was drained {why} and has ended{restart}")
        self.actions.append(model.SweepOrphans(before.spec))
        self.state = model.State(
            wanted=before.wanted,
            run=before.run,
            restarts=before.restarts,
            why="drained on request" if before.wanted is not None else "",
        )
        if again is not None:
            self.start(again)


def report_wrong_user(life: Transition, server: model.Server) -> None:
    """Report a server of another user than the plan's, whose clients have to wait for its end."""
    spec = life.state.spec
    if server.uid is None or spec.multi_user or server.uid == spec.uid:
        return
    life.report(
        ReportSubject.WRONG_SERVER_USER,
        f"server {server.pid} runs as user {server.uid}, the plan wants {spec.uid}, whose "
        "clients wait until it has gone",
    )


def foreign_user_message(state: model.State, event: model.ForeignUserWaiting) -> str:
    """Say for whom a client of another user waits, and what to do."""
    who = f"pid {event.pid} ({event.command})" if event.command else f"pid {event.pid}"
    server = state.server
    if server is None:
        holder = f"the plan wants user {state.spec.uid}"
    else:
        user = "" if server.uid is None else f" of user {server.uid}"
        holder = f"server {server.pid}{user} holds the device"
    return (
        f"{who} of user {event.uid} waits and will not be served: {holder}; run it as user "
        f"{state.spec.uid}, or change the plan's user"
    )


def deadline_passed(life: Transition) -> None:
    """Do what is due at the deadline that was set in this phase, or wait for the rest of it."""
    state = life.state
    if state.deadline is None:
        return
    if life.now < state.deadline:
        life.actions.append(model.Schedule(state.deadline - life.now))
    elif state.ending is not Ending.NO:
        _kill_survivor(life)
    else:
        _act_by_phase(life)


def _act_by_phase(life: Transition) -> None:
    state, settings = life.state, life.settings
    match state.phase:
        case DaemonPhase.BACKOFF | DaemonPhase.FAILED:
            life.start_again()
        case DaemonPhase.STARTING if state.was_unreachable:
            # The daemon could not be asked, and may have clients: it gets the time once more.
            life.state = replace(state, was_unreachable=False)
            life.set_deadline(settings.start_deadline)
        case DaemonPhase.STARTING:
            why = f"did not answer within {settings.start_deadline:g} s of its start"
            life.kill(ReportSubject.SILENT, why)
        case DaemonPhase.LIMITING if state.was_unreachable or state.was_ready:
            life.state = replace(state, was_unreachable=False)
            life.set_limits(state.why, attempts=state.attempts)
        case DaemonPhase.LIMITING:
            why = f"its limits were not in force within {settings.limit_deadline:g} s"
            life.kill(ReportSubject.LIMITS_DIFFER, why)
        case DaemonPhase.READY if state.server is not None:
            seconds = settings.initialize_deadline
            why = f"server {state.server.pid} has been initializing for {seconds:g} s"
            life.fault(ReportSubject.SERVER_SLOW, why)
        case DaemonPhase.DRAINING:
            _drain_deadline_passed(life)
        case DaemonPhase.DOWN | DaemonPhase.READY | DaemonPhase.FAULT:
            pass  # these have none
        case _ as never:
            assert_never(never)


def _kill_survivor(life: Transition) -> None:
    state = life.state
    if state.ending is Ending.QUITTING:
        why = f"did not end within {life.settings.quit_deadline:g} s of being asked to"
        life.kill(ReportSubject.SILENT, why)
    else:
        who = f"pid {state.pid}" if state.pid is not None else "the daemon"
        why = f"{who} was killed but does not end; it probably waits for the driver"
        life.kill(ReportSubject.CANNOT_BE_ENDED, why)


def _drain_deadline_passed(life: Transition) -> None:
    drain = life.state.drain
    if drain.force:
        life.ask_to_end()
        return
    life.report(ReportSubject.STILL_IN_USE, "clients are left when the time to drain is over")
    life.state = replace(life.state, deadline=None)
    if not drain.by_plan:  # else the plan goes on waiting
        life.resume("not drained: it is in use")
