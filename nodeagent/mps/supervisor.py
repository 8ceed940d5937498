"""Supervises one device's daemon: holds the state of its life, passes it events, and carries out
the actions that follow.

What follows is decided by `lifecycle` alone. Here are the clock, the process, the places on disk
and the record for the next agent. Everything happens in one event loop.
"""

import asyncio
import errno
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import assert_never

from nodeagent.errors import NodeagentError, error_sentence
from nodeagent.mps.adoption import proven_process
from nodeagent.mps.context import MpsContext
from nodeagent.mps.control import Seen
from nodeagent.mps.files.directories import pipe_directory, remake_directories
from nodeagent.mps.files.records import Record, write_record
from nodeagent.mps.files.sockets import DaemonSockets
from nodeagent.mps.launch.launcher import DaemonProcess, has_private_shm
from nodeagent.mps.launch.orphans import OrphansLeft, end_orphans
from nodeagent.mps.lifecycle import model
from nodeagent.mps.lifecycle.machine import step
from nodeagent.mps.lifecycle.model import DaemonPhase, Ending, ReportSubject
from nodeagent.mps.monitor import DaemonMonitor
from nodeagent.mps.processes import MpsProcess
from nodeagent.mps.shares import DaemonSpec
from nodeagent.plan.shares import WantedMps
from nodeagent.signals import Signal
from nodeagent.structs import replace

_START_TIMEOUT = 3.0  # seconds for a start that is under way when the agent ends
_RETRY_INTERVAL = 1.0  # seconds until a record that could not be written is tried again


# Errors of a machine that lacks something for a while.
_SHORTAGES = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO),
        *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN),
    }
)


class Supervisor:
    """Supervises one device's daemon; `record` is what is known of it. Raises PathRefused where the
    device can have no directories.
    """

    def __init__(self, context: MpsContext, record: Record) -> None:
        pipes = pipe_directory(context.run_dir, record.device)
        self.device = record.device
        self.state = model.State(restarts=record.restarts)
        self.since = datetime.now(UTC)
        self.wanted: WantedMps | None = None
        self.was_ready = record.was_ready  # with what is wanted now, in this process or before
        self.unrecorded = record.unrecorded  # found without a record: `wanted` is only what it is
        self.cordoned = ""  # why new clients are kept out, "" when they are not
        self.sweep_failure = ""  # why a dead daemon's orphans are left, so no other may start
        self._orphans = record.left  # possible ones, which while they exit have no name
        self.monitor: DaemonMonitor | None = None  # of the process, while there is one
        self.last_lines: tuple[str, ...] = ()  # of the process that ended last
        self.pipe_directory = pipes
        self.log_directory = str(Path(pipes).with_name("log"))
        self._changed: Signal[None] = Signal(None)
        self.context = context
        self._loop = asyncio.get_running_loop()
        self.sockets = DaemonSockets(pipes)
        self.control = context.control_client(self.sockets.directory, self.log_directory)
        self._timer: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Task[None] | None = None
        self._starting: deque[model.SweepOrphans | model.Spawn] = deque()
        self._starts: asyncio.Task[None] | None = None
        self._is_closing = False  # as the agent ends, so nothing more is started
        self._written: Record | None = None
        self._retry: asyncio.TimerHandle | None = None  # while the record cannot be written

    @property
    def seen(self) -> Seen | None:
        return self.monitor.seen if self.monitor else None

    @property
    def devices(self) -> tuple[str, ...]:
        """All that the daemon serves, or those that its process still does."""
        runs = self.state.running if self.monitor else None
        wanted = runs.wanted if runs else self.wanted
        return wanted.devices_on(self.device) if wanted else (self.device,)

    @property
    def _possible_orphans(self) -> tuple[MpsProcess, ...]:
        """The servers of the process, or of the last one, which its end may leave behind."""
        servers = self.monitor.events.servers if self.monitor else None
        return self._orphans if servers is None else servers

    @property
    def clients(self) -> tuple[tuple[int, int], ...]:
        """(server pid, client pid) of those that are known."""
        return self.seen.clients if self.seen else ()

    def spec_of(self, wanted: WantedMps) -> DaemonSpec:
        """The specification of the daemon that is wanted, at this device's places."""
        return DaemonSpec(self.device, wanted, self.pipe_directory, self.context.private_shm)

    def want(self, wanted: WantedMps | None) -> None:
        """Have the daemon be as the plan wants from now on; None: there is to be none."""
        if wanted is None:
            self.handle(model.NewPlan(None))
            return
        self.unrecorded = False
        self.was_ready = self.was_ready and self.wanted in {None, wanted}
        self.wanted = wanted
        self.handle(model.NewPlan(self.spec_of(wanted)))

    def stay_down(self, wanted: WantedMps) -> None:
        """Keep the daemon down that an earlier agent drained on request, until it is started."""
        self.wanted = wanted
        spec = self.spec_of(wanted)
        self.state = model.State(
            wanted=spec, restarts=self.state.restarts, why="drained on request"
        )
        self._keep_record()

    def adopt(self, process: DaemonProcess, runs: WantedMps, wanted: WantedMps) -> None:
        """Take over a process that was started as `runs`; then have it be as `wanted`."""
        self.wanted = runs
        spec = self.spec_of(runs)
        # A process with another /dev/shm than the setting's, which clients get, is replaced.
        private = has_private_shm(process.pid, spec)
        has = spec if private is None else replace(spec, private_shm=private)
        self.handle(model.Adopted(has, process.pid), process)
        if wanted != runs or (has != spec and not self.unrecorded):
            self.want(wanted)

    def cordon(self, why: str) -> None:
        """Admit no new clients, for this reason; "" admits them again. Connected clients and the
        daemon keep running.
        """
        if why != self.cordoned:
            self.cordoned = why
            self._update_sockets()
            self.notify(changed=True)

    def handle(self, event: model.Event, process: DaemonProcess | None = None) -> None:
        """Handle an event: do or begin what follows. `process` is the one that there is from this
        event on.
        """
        before = self.state
        settings, jitter = self.context.settings, self.context.jitter()
        now = self._loop.time()
        self.state, actions = step(before, event, now, settings=settings, jitter=jitter)
        if self.state.phase is not before.phase:
            self.since = datetime.now(UTC)
        if self.state.phase is DaemonPhase.READY:
            self.was_ready = True
        if process is not None:
            adopted = isinstance(event, model.Adopted) or (
                isinstance(event, model.Started) and event.found
            )
            if adopted:
                process.find_end = self.context.launcher.end_of(self.state.spec)
            self.monitor = DaemonMonitor(process, self, adopted=adopted)
            self._waiter = asyncio.create_task(self._wait(self.monitor), name="mps end")
        for action in actions:
            self._do(action)
        self._update_sockets()
        self._keep_record()
        if self.state != before:
            self.notify(changed=True)

    async def aclose(self) -> None:
        """Stop supervising. The daemon and its clients live on."""
        await self._end_starts()
        for timer in (self._timer, self._retry):
            if timer is not None:
                timer.cancel()
        if self._waiter is not None:
            self._waiter.cancel()
            await asyncio.gather(self._waiter, return_exceptions=True)
        if self.monitor is not None:
            await self.monitor.aclose()
        self.notify(changed=False)

    async def until(self, so: Callable[[], bool]) -> None:
        """Wait until `so()` holds; re-evaluated after every change. Raises CancelledError when
        supervising stops before.
        """
        while not so():
            if self._is_closing:
                raise asyncio.CancelledError
            await self._changed.after(self._changed.version)

    def notify(self, *, changed: bool) -> None:
        """Wake those that wait in `until`, and if what is shown `changed`, the context as well."""
        if changed:
            self.context.changed()
        self._changed.publish(None)

    def _update_sockets(self) -> None:
        if self.monitor is not None:
            self.monitor.update_sockets()

    def _do(self, action: model.Action) -> None:
        match action:
            case model.Report():
                self.context.report(self.device, action)
            case model.Schedule():
                if self._timer is not None:
                    self._timer.cancel()
                self._timer = self._loop.call_later(
                    action.seconds, self.handle, model.DeadlinePassed()
                )
            case model.SweepOrphans() | model.Spawn():
                self._start_in_turn(action)
            case model.Kill():  # without a process yet, it is killed as soon as it is there
                if self.monitor is not None:
                    self.monitor.process.kill()
            case model.SetLimits() | model.ReadBack() | model.Quit():
                if self.monitor is not None:
                    self.monitor.do(action)
            case _ as never:
                assert_never(never)

    @property
    def is_idle(self) -> bool:
        """Whether no process is being started and no orphan being ended."""
        return self._starts is None

    def _start_in_turn(self, action: model.SweepOrphans | model.Spawn) -> None:
        if self._is_closing:
            return
        self._starting.append(action)
        if self._starts is None:
            self._starts = asyncio.create_task(self._work_on_starts(), name="mps processes")

    async def _work_on_starts(self) -> None:
        try:
            while self._starting:
                action = self._starting.popleft()
                if isinstance(action, model.SweepOrphans):
                    await self.sweep(action.spec)
                elif self.state.run == action.run and self.monitor is None:
                    await self._start(action)
        finally:
            self._starts = None
            self.notify(changed=False)

    async def sweep(self, spec: DaemonSpec) -> None:
        """End what a dead daemon left; `sweep_failure` says what could not be ended."""
        failure = ""
        try:
            await end_orphans(spec, grace=self.context.settings.grace, known=self._orphans)
            await asyncio.to_thread(self.sockets.clear)
            self._orphans = ()
        except OrphansLeft as error:
            failure, self._orphans = str(error), error.processes
        except OSError as error:
            failure = f"{error.filename} cannot be removed: {error.strerror}"
        except Exception as error:  # noqa: BLE001  # not knowing what is left, none may be started
            failure = error_sentence(error)
        self.sweep_failure = failure
        self._keep_record()

    async def _start(self, action: model.Spawn) -> None:
        context, spec = self.context, action.spec
        if self.sweep_failure:
            # What is left may be this daemon: systemd starts it even if its client was killed.
            found = await proven_process(spec, self.sockets)
            if found is not None and self.state.ending is Ending.NO:
                self.sweep_failure = ""
                self.handle(model.Started(action.run, found.pid, found=True), found)
                return
            if found is not None:
                found.close()
            self.handle(model.StartFailed(action.run, self.sweep_failure))
            return
        try:
            await asyncio.to_thread(remake_directories, context.run_dir, spec)
            # Recorded first, so that the process is never there without a record.
            write_record(context.run_dir, self._record_now(spec))
            process = await context.launcher.launch(spec)
        except (NodeagentError, OSError) as error:
            self.handle(model.StartFailed(action.run, str(error), is_shortage=_is_shortage(error)))
            return
        except Exception as error:  # noqa: BLE001  # else its life would wait for this for ever
            self.handle(model.StartFailed(action.run, error_sentence(error)))
            return
        self.handle(model.Started(action.run, process.pid), process)
        if self.state.ending is Ending.KILLING:
            process.kill()

    async def _wait(self, monitor: DaemonMonitor) -> None:
        exited = await monitor.until_ended()
        self._orphans = self._possible_orphans
        self.monitor = self._waiter = None
        self.last_lines = exited.last_lines
        self.handle(exited)

    async def _end_starts(self) -> None:
        """Wait for a process that is just being started, so that its record is there; else the next
        agent could adopt one that is about to be killed.
        """
        self._is_closing = True
        self._starting.clear()
        if self._starts is not None:
            starts = self._starts
            await asyncio.wait([starts], timeout=_START_TIMEOUT)
            starts.cancel()
            await asyncio.gather(starts, return_exceptions=True)

    def _record_now(self, runs: DaemonSpec | None) -> Record:
        """The record as it is now, with a process that runs as `runs`."""
        if self.wanted is None:
            raise ValueError(f"nothing is planned for {self.device}")
        return Record(
            device=self.device,
            wanted=self.wanted,
            runs=runs.wanted if runs else None,
            process=self.monitor.process.identity if self.monitor else None,
            drained=self.state.phase is DaemonPhase.DOWN and self.state.wanted is not None,
            was_ready=self.was_ready,
            restarts=self.state.restarts,
            unrecorded=self.unrecorded,
            left=self._possible_orphans,
        )

    def _keep_record(self) -> None:
        """Write the record if it differs from what was written last; try again where that fails,
        which is reported once.
        """
        failed, self._retry = self._retry, None
        if failed is not None:
            failed.cancel()
        if self.wanted is None or (self.state.wanted is None and self.monitor is None):
            return  # nothing is written of a daemon that is to be no more
        record = self._record_now(self.state.running if self.monitor else None)
        if record == self._written:
            return
        try:
            write_record(self.context.run_dir, record)
        except FileNotFoundError:
            return  # the directory is made when the daemon is started, and it is written then
        except OSError as error:
            self._written = None  # what is there now is not known
            self._retry = self._loop.call_later(_RETRY_INTERVAL, self._keep_record)
            if failed is None:
                reason = f"{error.filename}: {error.strerror}" if error.filename else error
                why = f"its record for the next agent cannot be written: {reason}"
                self.context.report(self.device, model.Report(ReportSubject.START_FAILED, why))
        else:
            self._written = record


def _is_shortage(error: Exception) -> bool:
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, OSError) and cause.errno in _SHORTAGES
