"""Keeps one device's daemon as it is wanted: holds the state of its life, feeds it what happens,
and does what follows.

What follows is decided by `lifecycle` alone. Here are the clock, the process, the places on disk
and the record for the next agent. Everything happens in one event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import UTC, datetime
from typing import assert_never

from nodeagent.mps.condition import Condition
from nodeagent.mps.control.query import Seen
from nodeagent.mps.files.records import Record, RecordKeeper, write_record
from nodeagent.mps.files.sockets import SocketGate
from nodeagent.mps.launch.process import DaemonProcess, StartError
from nodeagent.mps.launch.starter import DaemonStarter
from nodeagent.mps.lifecycle.machine import step
from nodeagent.mps.lifecycle.model import (
    Action,
    Adopted,
    DeadlinePassed,
    Event,
    Exited,
    Kill,
    NewPlan,
    Phase,
    Quit,
    ReadBack,
    Report,
    Schedule,
    SetLimits,
    Spawn,
    Started,
    StartFailed,
    State,
    Subject,
    SweepOrphans,
)
from nodeagent.mps.monitor import DaemonMonitor
from nodeagent.mps.processes import age_of
from nodeagent.mps.shares import DaemonSpec, spec_for
from nodeagent.mps.supervisor_context import SupervisorContext
from nodeagent.plan.shares import WantedMps

_PATIENCE = 3.0  # seconds for a start that is under way when the agent ends


class Supervisor:
    """Of one device's daemon. `pipe_directory` and `log_directory` are where it has its own."""

    def __init__(
        self,
        device: str,
        context: SupervisorContext,
        *,
        pipe_directory: str,
        log_directory: str,
        restarts: int = 0,
        was_ready: bool = False,
    ) -> None:
        self.device = device
        self.state = State(restarts=restarts)
        self.since = datetime.now(UTC)
        self.wanted: WantedMps | None = None
        self.was_ready = was_ready  # as it is wanted now, in this process or an earlier one
        self.unrecorded = False  # adopted without a record: what it should be is not known
        self.closed = ""  # why no new client is let in although it is wanted; "" when they are
        self.monitor: DaemonMonitor | None = None
        self.last_lines: tuple[str, ...] = ()  # of the process that ended last
        self.pipe_directory, self.log_directory = pipe_directory, log_directory
        self.condition = Condition()
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._gate = SocketGate(pipe_directory)
        self._gate_fault = ""  # why sockets could not be moved, as reported
        self.control = context.control_client(self._gate.directory, log_directory)
        self._by_spec: dict[DaemonSpec, WantedMps] = {}
        self._process: DaemonProcess | None = None
        self._to_kill = 0  # the run that is to be killed as soon as it has a process
        self._timer: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Task[None] | None = None
        self.starter = DaemonStarter(
            device,
            self._gate,
            run_dir=context.run_dir,
            launcher=context.launcher,
            grace=context.timing.grace,
        )
        self._starting: deque[SweepOrphans | Spawn] = deque()
        self._starts: asyncio.Task[None] | None = None
        self._closed = False
        self._keeper = RecordKeeper(
            context.run_dir, lambda words: self._report(Report(Subject.START_FAILED, words))
        )

    @property
    def seen(self) -> Seen | None:
        """The daemon's last answers; None where there are none."""
        return self.monitor.seen if self.monitor else None

    # --- what is wanted -------------------------------------------------------------------------

    def spec_of(self, wanted: WantedMps) -> DaemonSpec:
        """The daemon that makes it so, here."""
        return spec_for(
            wanted,
            self.device,
            pipe_directory=self.pipe_directory,
            log_directory=self.log_directory,
        )

    def want(self, wanted: WantedMps | None) -> None:
        """From now on it is to be so; None: there is to be no daemon."""
        if wanted is None:
            self.handle(NewPlan(None))
            return
        self.unrecorded = False
        spec = self.spec_of(wanted)
        self.was_ready = self.was_ready and self.wanted in {None, wanted}
        self.wanted = wanted
        self._by_spec[spec] = wanted
        self.handle(NewPlan(spec))

    def stay_down(self, wanted: WantedMps) -> None:
        """An earlier agent was asked to drain it, and it was not requested since."""
        self.wanted = wanted
        spec = self.spec_of(wanted)
        self._by_spec[spec] = wanted
        self.state = State(wanted=spec, restarts=self.state.restarts, why="drained on request")
        self._write_record()

    def adopt(self, process: DaemonProcess, runs: WantedMps, wanted: WantedMps) -> None:
        """Take over what an earlier agent started as `runs`."""
        spec = self.spec_of(runs)
        self.wanted = runs
        self._by_spec[spec] = runs
        self._process = process
        self.handle(Adopted(spec, process.pid))
        self._monitor_process(self.state.run, process, adopted=True)
        if wanted != runs:
            self.want(wanted)

    # --- events ---------------------------------------------------------------------------------

    def handle(self, event: Event) -> None:
        """Something has happened; does or begins what follows."""
        before = self.state
        context = self._context
        jitter, now = context.jitter(), self._loop.time()
        self.state, actions = step(before, event, now, settings=context.settings, jitter=jitter)
        if self.state.phase is not before.phase:
            self.since = datetime.now(UTC)
        if self.state.phase is Phase.READY:
            self.was_ready = True
        for action in actions:
            self._do(action)
        self.keep_gate()
        self._write_record()
        if self.state != before:
            self._stir()

    async def aclose(self) -> None:
        """Look away. The daemon and its clients live on."""
        await self._end_starts()
        if self._timer is not None:
            self._timer.cancel()
        if self._waiter is not None:
            self._waiter.cancel()
            await asyncio.gather(self._waiter, return_exceptions=True)
        await self._stop_monitor()
        if self._process is not None:
            self._process.close()
        self.condition.close()

    def _stir(self) -> None:
        self.condition.notify_all()
        self._context.changed()

    def _looked(self, changed: bool) -> None:
        if changed:
            self._context.changed()
        self.condition.notify_all()

    # --- actions --------------------------------------------------------------------------------

    def _do(self, action: Action) -> None:
        match action:
            case Report():
                self._report(action)
            case Schedule():
                self._schedule(action.seconds)
            case Kill() if self._process is not None:
                self._process.kill()
            case Kill():
                self._to_kill = action.run
            case SweepOrphans() | Spawn():
                self._start_in_turn(action)
            case SetLimits() | ReadBack() | Quit():
                if self.monitor is not None and self.monitor.run == action.run:
                    self.monitor.do(action)
            case _ as never:
                assert_never(never)

    def _report(self, report: Report) -> None:
        self._context.report(self.device, report)

    def _schedule(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self.handle, DeadlinePassed())

    def close_to_clients(self, why: str) -> None:
        """Let in no new client from now on, for this reason, or again those who come (""). Who is
        inside goes on, and so does the daemon.
        """
        if why != self.closed:
            self.closed = why
            self.keep_gate()
            self._stir()

    def keep_gate(self) -> None:
        """New clients find the daemon, unless it drains or is closed to them. Where its sockets are
        is what counts, so this also mends what an earlier agent left.
        """
        if self._process is None:
            return
        try:
            self._gate.keep(hidden=self.state.phase is Phase.DRAINING or bool(self.closed))
        except OSError as error:
            words = f"its sockets cannot be moved: {error.strerror or error}"
            if words != self._gate_fault:
                self._report(Report(Subject.STILL_IN_USE, words))
            self._gate_fault = words
        self.control.pipe_directory = self._gate.directory

    # --- starting -------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether no process is being started and no orphan being ended."""
        return self._starts is None

    def _start_in_turn(self, action: SweepOrphans | Spawn) -> None:
        if self._closed:
            return
        self._starting.append(action)
        if self._starts is None:
            self._starts = asyncio.create_task(self._work_on_starts(), name="mps processes")

    async def _work_on_starts(self) -> None:
        try:
            while self._starting:
                action = self._starting.popleft()
                if isinstance(action, SweepOrphans):
                    await self.starter.sweep(action.spec)
                elif self.state.run == action.run and self._process is None:
                    await self._start(action)
        finally:
            self._starts = None
            self.condition.notify_all()

    async def _start(self, action: Spawn) -> None:
        try:
            process = await self.starter.start(action.spec, self._record_start)
        except StartError as error:
            self.handle(StartFailed(action.run, error.message))
            return
        self._process = process
        self._write_record()
        self._monitor_process(action.run, process, adopted=False)
        self.handle(Started(action.run, process.pid))
        if self._to_kill == action.run:
            process.kill()

    async def _end_starts(self) -> None:
        """A process that is just being started is waited for, so that its record is there; else the
        next agent could adopt what is about to be taken back.
        """
        self._closed = True
        self._starting.clear()
        if self._starts is not None:
            starts = self._starts
            await asyncio.wait([starts], timeout=_PATIENCE)
            starts.cancel()
            await asyncio.gather(starts, return_exceptions=True)

    # --- the process there is -------------------------------------------------------------------

    def _monitor_process(self, run: int, process: DaemonProcess, *, adopted: bool) -> None:
        self.monitor = DaemonMonitor(
            run,
            process.identity,
            self.control,
            self._gate,
            self._context,
            handle=self.handle,
            state=lambda: self.state,
            looked=self._looked,
            keep_gate=self.keep_gate,
            adopted=adopted,
        )
        self._waiter = asyncio.create_task(self._wait(run, process), name="mps end")

    async def _wait(self, run: int, process: DaemonProcess) -> None:
        began = self._loop.time()
        status = await process.wait()
        if self.monitor is not None:
            self.last_lines = self.monitor.log.last_lines()
        await self._stop_monitor()
        self._process = self._waiter = None
        ran_for = age_of(process.identity) or self._loop.time() - began
        self.handle(Exited(run, status, ran_for, self.last_lines))

    async def _stop_monitor(self) -> None:
        monitor, self.monitor = self.monitor, None
        if monitor is not None:
            await monitor.aclose()

    # --- the record -----------------------------------------------------------------------------

    def _record_now(self, spec: DaemonSpec | None) -> Record:
        """As `spec`, which its process runs as."""
        if self.wanted is None:
            raise ValueError(f"nothing is wanted of {self.device}")
        return Record(
            device=self.device,
            wanted=self.wanted,
            runs=self._by_spec.get(spec) if spec else None,
            process=self._process.identity if self._process else None,
            drained=self.state.phase is Phase.DOWN and self.state.wanted is not None,
            was_ready=self.was_ready,
            restarts=self.state.restarts,
            unrecorded=self.unrecorded,
        )

    def _record_start(self, spec: DaemonSpec) -> None:
        """Before the process is there, so that it is never there without a record."""
        write_record(self._context.run_dir, self._record_now(spec))

    def _write_record(self) -> None:
        """For the next agent; nothing of a daemon that is to be no more."""
        if self.wanted is None or (self.state.wanted is None and self._process is None):
            return
        self._keeper.keep(self._record_now(self.state.running if self._process else None))
