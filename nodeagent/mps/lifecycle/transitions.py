"""The transitions of a daemon's life that several events lead to, and those of deadlines. Pure."""

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
    """The wait after so many quick failures in a row, shortened by up to a quarter, so that many
    daemons do not act in step.
    """
    backoff = Backoff(
        settings.first_delay, settings.longest_delay, spread=0.25, jitter=lambda: jitter
    )
    return backoff.after(failures)


def fresh(state: model.State, spec: DaemonSpec) -> model.State:
    """The state at the start of another process."""
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

    def wait(self, seconds: float) -> None:
        self.state = replace(self.state, deadline=self.now + seconds)
        self.actions.append(model.Schedule(seconds))

    def start(self, spec: DaemonSpec) -> None:
        """Sweep what a dead daemon left, and start another."""
        self.state = fresh(self.state, spec)
        self.actions += (model.SweepOrphans(spec), model.Spawn(self.state.run, spec))
        self.wait(self.settings.start_deadline)

    def limit(self, why: str, *, attempts: int = 0) -> None:
        before = self.state
        self.state = replace(
            before,
            phase=DaemonPhase.LIMITING,
            drain=model.Drain(),
            attempts=attempts,
            reading=before.reading + 1,
            why=why,
        )
        self.actions += (
            model.SetLimits(before.run, before.spec),
            model.ReadBack(before.run, before.spec, self.state.reading),
        )
        self.wait(self.settings.limit_deadline)

    def resume(self, why: str) -> None:
        """It is not to end after all: back on the way to Ready, from where it was, perhaps with
        other limits than before.
        """
        self.state = replace(self.state, running=self.state.wanted or self.state.running)
        if self.state.answered:
            self.limit(why)
        else:
            self.state = replace(
                self.state, phase=DaemonPhase.STARTING, drain=model.Drain(), why=why
            )
            self.wait(self.settings.start_deadline)

    def ready(self) -> None:
        """Ready, as far as its server is."""
        self.state = replace(
            self.state, phase=DaemonPhase.READY, attempts=0, was_ready=True, deadline=None, why=""
        )
        server = self.state.server
        if server and server.status is ServerStatus.FAULT:
            self.server_fault(server)
            return
        self.report(ReportSubject.READY, "the daemon answers and its limits were read back")
        if server and server.status is ServerStatus.INITIALIZING:
            self.wait(self.settings.initialize_deadline)

    def fault(self, subject: ReportSubject, why: str) -> None:
        """The daemon is well, but its server takes no client."""
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
        """Ask it to end; what becomes of that is known by its exit."""
        self.state = replace(self.state, ending=Ending.QUITTING)
        self.actions.append(model.Quit(self.state.run, self.settings.quit_deadline))
        self.wait(self.settings.quit_deadline)

    def kill(self, subject: ReportSubject, why: str) -> None:
        """It is killed; only its exit ends this, since there must never be two."""
        phase = (
            DaemonPhase.DRAINING if self.state.phase is DaemonPhase.DRAINING else DaemonPhase.FAULT
        )
        self.state = replace(self.state, phase=phase, ending=Ending.KILLING, why=why)
        self.report(subject, why)
        self.actions.append(model.Kill(self.state.run))
        self.wait(self.settings.kill_deadline)

    def ended(self, report: model.Report, *, quick: bool) -> None:
        """There is no process any more, unless this is the end that was wanted."""
        before = self.state
        if before.phase is DaemonPhase.DRAINING:
            self._drained(before, report)
            return
        sweep = model.SweepOrphans(before.spec)
        self.actions.append(report)
        self.state = replace(
            before,
            pid=None,
            failures=before.failures + 1 if quick else 0,
            ending=Ending.NO,
            drain=model.Drain(),
            server=None,
            deadline=None,
            why=report.message,
        )
        if not quick and before.wanted is not None:
            # It ran steadily, so the next one is expected to.
            self.actions.append(sweep)
            self.start_again(before.wanted)
        elif self.state.failures >= self.settings.most_failures:
            self._failed(report, sweep)
        else:
            self.state = replace(self.state, phase=DaemonPhase.BACKOFF)
            self.actions.append(sweep)
            self.wait(retry_delay(self.settings, self.state.failures, self.jitter))

    def not_started(self, event: model.StartFailed) -> None:
        """What the machine will have again was missing: that is no failure of the daemon's, and it
        is tried again soon. Anything else is a quick end.
        """
        before, deadline = self.state, self.settings.start_deadline
        report = model.Report(ReportSubject.START_FAILED, event.reason)
        if not event.short or before.phase is DaemonPhase.DRAINING:
            self.ended(report, quick=True)
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
        self.wait(min(retry_delay(self.settings, self.state.shortages, self.jitter), deadline))

    def start_again(self, spec: DaemonSpec) -> None:
        """Start without being asked to; counted as a restart where there was a process before."""
        restarts = self.state.restarts + (not self.state.shortages)
        self.state = replace(self.state, restarts=restarts)
        self.start(spec)

    def _failed(self, report: model.Report, sweep: model.SweepOrphans) -> None:
        """Reported once; retried at the longest delay, since its cause may pass."""
        longest = self.settings.longest_delay
        why = (
            f"failed {self.state.failures} times in a row and is tried every {longest:g} s only, "
            f"the last time: {report.message}"
        )
        self.state = replace(self.state, phase=DaemonPhase.FAILED, why=why)
        if self.state.failures == self.settings.most_failures:
            self.report(ReportSubject.FAILED, why, report.lines)
        self.actions.append(sweep)
        self.wait(longest * (1 - self.jitter / 4))

    def _drained(self, before: model.State, report: model.Report) -> None:
        if before.ending is not Ending.QUITTING:
            self.actions.append(report)
        again = before.wanted if before.drain.then_start else None
        why = "for the plan" if before.drain.by_plan else "on request"
        next_one = ", to be started again" if again is not None else ""
        self.report(ReportSubject.DRAINED, f"the daemon was drained {why} and has ended{next_one}")
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
    """A server of another user than the plan's keeps its clients from being served."""
    spec = life.state.spec
    if server.uid is None or spec.multi_user or server.uid == spec.uid:
        return
    life.report(
        ReportSubject.WRONG_SERVER_USER,
        f"server {server.pid} runs as user {server.uid}, the plan wants {spec.uid}, whose "
        "clients wait until it has gone",
    )


def foreign_user(state: model.State, event: model.ForeignUserWaiting) -> str:
    """Words about a client that waits: for whom, and what to do."""
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
    """What the deadline was for is known by the phase."""
    state = life.state
    if state.deadline is None:
        return
    if life.now < state.deadline:
        life.actions.append(model.Schedule(state.deadline - life.now))
    elif state.ending is not Ending.NO:
        _still_there(life)
    else:
        _by_phase(life)


def _by_phase(life: Transition) -> None:
    state, settings = life.state, life.settings
    match state.phase:
        case DaemonPhase.BACKOFF | DaemonPhase.FAILED if state.wanted is not None:
            life.start_again(state.wanted)
        case DaemonPhase.BACKOFF | DaemonPhase.FAILED:
            life.state = replace(state, phase=DaemonPhase.DOWN, deadline=None)
        case DaemonPhase.STARTING if state.excused:
            # It could not be asked, which is not its fault: it may even have clients.
            life.state = replace(state, excused=False)
            life.wait(settings.start_deadline)
        case DaemonPhase.STARTING:
            why = f"did not answer within {settings.start_deadline:g} s of its start"
            life.kill(ReportSubject.SILENT, why)
        case DaemonPhase.LIMITING if state.excused or state.was_ready:
            life.state = replace(state, excused=False)
            life.limit(state.why, attempts=state.attempts)
        case DaemonPhase.LIMITING:
            why = f"its limits were not in force within {settings.limit_deadline:g} s"
            life.kill(ReportSubject.LIMITS_DIFFER, why)
        case DaemonPhase.READY:
            pid = state.server.pid if state.server else 0
            seconds = settings.initialize_deadline
            why = f"server {pid} has been initializing for {seconds:g} s"
            life.fault(ReportSubject.SERVER_SLOW, why)
        case DaemonPhase.DRAINING:
            _drain_is_over(life)
        case DaemonPhase.DOWN | DaemonPhase.FAULT:
            life.state = replace(state, deadline=None)
        case _ as never:
            assert_never(never)


def _still_there(life: Transition) -> None:
    state = life.state
    if state.ending is Ending.QUITTING:
        why = f"did not end within {life.settings.quit_deadline:g} s of being asked to"
        life.kill(ReportSubject.SILENT, why)
    else:
        who = f"pid {state.pid}" if state.pid is not None else "the daemon"
        why = f"{who} was killed but does not end; it probably waits for the driver"
        life.kill(ReportSubject.CANNOT_BE_ENDED, why)


def _drain_is_over(life: Transition) -> None:
    drain = life.state.drain
    if drain.force:
        life.ask_to_end()
        return
    life.report(ReportSubject.STILL_IN_USE, "clients are left when the time to drain is over")
    life.state = replace(life.state, deadline=None)
    if not drain.by_plan:  # else the plan goes on waiting
        life.resume("not drained: it is in use")
