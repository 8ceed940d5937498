"""Supervises one device's daemon: holds the state of its life, passes it events, and carries out
the actions that follow.

What follows is decided by `lifecycle` alone. Here are the clock, the process, the places on disk
and the record for the next agent. Everything happens in one event loop.
"""

from __future__ import annotations

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


# What the machine may lack for a while.
_SHORT = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO),
        *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN),
    }
)


class Supervisor:
    """Supervises one device's daemon, of which `record` says what is known. Raises PathRefused
    where the device can have no directories.
    """

    def __init__(self, context: MpsContext, record: Record) -> None:
        pipes = pipe_directory(context.run_dir, record.device)
        self.device = record.device
        self.state = model.State(restarts=record.restarts)
        self.since = datetime.now(UTC)
        self.wanted: WantedMps | None = None
        self.was_ready = record.was_ready  # as it is wanted now, in this process or an earlier one
        self.unrecorded = record.unrecorded  # adopted: what it should be is not known
        self.cordoned = ""  # why no new client is let in although it is wanted; "" when they are
        self.left_over = ""  # of a dead daemon: why no other may be started
        self._left = record.left  # what may be left, and may exit without a name
        self.monitor: DaemonMonitor | None = None  # of its process, while there is one
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
        self._ends = False  # the agent, so nothing more is started
        self._written: Record | None = None
        self._retry: asyncio.TimerHandle | None = None  # while the record cannot be written

    @property
    def seen(self) -> Seen | None:
        return self.monitor.seen if self.monitor else None

    @property
    def _leaves(self) -> tuple[MpsProcess, ...]:
        """What is left when its process ends: the servers that it has, or those of the last one."""
        servers = self.monitor.events.servers if self.monitor else None
        return self._left if servers is None else servers

    @property
    def clients(self) -> tuple[tuple[int, int], ...]:
        """(server pid, client pid) of those that are known."""
        return self.seen.clients if self.seen else ()

    def spec_of(self, wanted: WantedMps) -> DaemonSpec:
        """The daemon that makes it so, here."""
        return DaemonSpec(self.device, wanted, self.pipe_directory, self.context.private_shm)

    def want(self, wanted: WantedMps | None) -> None:
        """From now on it is to be so; None: there is to be no daemon."""
        if wanted is None:
            self.handle(model.NewPlan(None))
            return
        self.unrecorded = False
        self.was_ready = self.was_ready and self.wanted in {None, wanted}
        self.wanted = wanted
        self.handle(model.NewPlan(self.spec_of(wanted)))

    def stay_down(self, wanted: WantedMps) -> None:
        """An earlier agent was asked to drain it, and it was not requested since."""
        self.wanted = wanted
        spec = self.spec_of(wanted)
        self.state = model.State(
            wanted=spec, restarts=self.state.restarts, why="drained on request"
        )
        self._keep_record()

    def adopt(self, process: DaemonProcess, runs: WantedMps, wanted: WantedMps) -> None:
        self.wanted = runs
        spec = self.spec_of(runs)
        # Clients get the /dev/shm of the setting, and share memory with it there.
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
            self._hide_sockets()
            self.polled(changed=True)

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
            self.monitor = DaemonMonitor(process, self, adopted=adopted)
            self._waiter = asyncio.create_task(self._wait(self.monitor), name="mps end")
        for action in actions:
            self._do(action)
        self._hide_sockets()
        self._keep_record()
        if self.state != before:
            self.polled(changed=True)

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
        self._notify()

    async def until(self, so: Callable[[], bool]) -> None:
        """Wait until `so()` holds; re-evaluated after every change. Raises CancelledError when
        supervising stops before.
        """
        while not so():
            if self._ends:
                raise asyncio.CancelledError
            await self._changed.after(self._changed.version)

    def polled(self, *, changed: bool) -> None:
        """The monitor has asked the daemon, perhaps with another answer than before."""
        if changed:
            self.context.changed()
        self._notify()

    def _notify(self) -> None:
        self._changed.publish(None)

    def _hide_sockets(self) -> None:
        if self.monitor is not None:
            self.monitor.hide_sockets()

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
        if self._ends:
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
            self._notify()

    async def sweep(self, spec: DaemonSpec) -> None:
        """End what a dead daemon left; `left_over` says what could not be."""
        left_over = ""
        try:
            await end_orphans(spec, grace=self.context.settings.grace, known=self._left)
            await asyncio.to_thread(self.sockets.clear)
            self._left = ()
        except OrphansLeft as error:
            left_over, self._left = str(error), error.processes
        except OSError as error:
            left_over = f"{error.filename} cannot be removed: {error.strerror}"
        except Exception as error:  # noqa: BLE001  # not knowing what is left, none may be started
            left_over = error_sentence(error)
        self.left_over = left_over
        self._keep_record()

    async def _start(self, action: model.Spawn) -> None:
        context, spec = self.context, action.spec
        if self.left_over:
            # It may be this daemon: systemd also starts it when who asked for that was killed.
            found = await proven_process(spec, self.sockets)
            if found is not None and self.state.ending is Ending.NO:
                self.left_over = ""
                self.handle(model.Started(action.run, found.pid, found=True), found)
                return
            if found is not None:
                found.close()
            self.handle(model.StartFailed(action.run, self.left_over))
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
        self._left = self._leaves
        self.monitor = self._waiter = None
        self.last_lines = exited.last_lines
        self.handle(exited)

    async def _end_starts(self) -> None:
        """A process that is just being started is waited for, so that its record is there; else the
        next agent could adopt what is about to be taken back.
        """
        self._ends = True
        self._starting.clear()
        if self._starts is not None:
            starts = self._starts
            await asyncio.wait([starts], timeout=_START_TIMEOUT)
            starts.cancel()
            await asyncio.gather(starts, return_exceptions=True)

    def _record_now(self, runs: DaemonSpec | None) -> Record:
        """The record of this moment; its process runs as `runs`."""
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
            left=self._leaves,
        )

    def _keep_record(self) -> None:
        """Write it where it differs from what was written last. One that cannot be written is tried
        again until it can, and reported once.
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
    return isinstance(cause, OSError) and cause.errno in _SHORT
