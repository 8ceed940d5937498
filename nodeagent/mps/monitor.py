"""Monitors one daemon's process: polls it, reads its log, and carries out what its life demands.
Reports what it learns as events; what follows from them is not decided here.

Conversations come one after the other, in the order in which they were demanded, so that a poll
never falls between limits that are set and their read-back.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from nodeagent.errors import error_sentence
from nodeagent.mps.commands import UnexpectedReply, quit_daemon, terminate_client
from nodeagent.mps.control import (
    ControlError,
    DaemonBusy,
    DaemonDead,
    DaemonSilent,
    Seen,
    ask_everything,
    differences,
    set_limits,
)
from nodeagent.mps.files.directories import seal_pipe_directory
from nodeagent.mps.files.log import DEBOUNCE
from nodeagent.mps.launch.launcher import DaemonProcess
from nodeagent.mps.lifecycle import model
from nodeagent.mps.lifecycle.model import DaemonPhase, Ending, ReportSubject, ServerStatus
from nodeagent.mps.log_events import SURE_AFTER, LogEvents
from nodeagent.mps.processes import SERVER, age_of, mps_processes
from nodeagent.pacing import Backoff
from nodeagent.processor_waits import AnswerTime, ProcessorWaits
from nodeagent.views.shapes import MpsWaiting
from nodeagent.waiting import ends_within

if TYPE_CHECKING:
    from nodeagent.mps.supervisor import Supervisor

MIN_POLL_INTERVAL = 0.2  # seconds between two polls, however much changes
_FIRST_PAUSE = 0.005  # seconds between checks for the socket of a daemon that starts
_MAX_PAUSE = 0.1
_RETRY_INTERVAL = 0.2  # seconds before a daemon that did not answer is asked again
_STARVED = (
    "it could not answer, since it or the agent waits for a processor most of the time: raise the "
    "CPU request"
)
_UNREACHABLE_INTERVAL = (
    1.0  # seconds before one that could not be asked is tried again, if it is new
)
_PROOFS = 2  # polls without any client, before it is believed that there are none

Job = model.SetLimits | model.ReadBack | model.Quit


class DaemonMonitor:
    """Monitors `process`, which is of the run in its supervisor's state; the supervisor handles
    events, and is notified of each poll.
    """

    def __init__(self, process: DaemonProcess, supervisor: Supervisor, *, adopted: bool) -> None:
        self.process = process
        self.run = supervisor.state.run
        self.seen: Seen | None = None  # the last answers
        self.seen_hidden = False  # whether new clients were kept out when it was asked
        self.sockets_fault = ""  # why its sockets cannot be moved, as reported
        self.polls = 0  # that have ended, well or not
        self._adopted = adopted
        self._supervisor = supervisor
        self._handle = supervisor.handle
        self._control = supervisor.control
        self._sockets = supervisor.sockets
        self._context = context = supervisor.context
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._jobs: deque[Job] = deque()
        self._wake = asyncio.Event()
        self._next_poll = self._began
        self._last_poll = -math.inf
        self._pauses = Backoff(_FIRST_PAUSE, _MAX_PAUSE)
        self._proofs = 0
        self._answer_time = AnswerTime(context.settings.answer_deadline, self._begin_to_count)
        self._shown: tuple[Seen | None, tuple[MpsWaiting, ...]] = (None, ())  # after the last poll
        self._reports_status = True
        log_size = context.settings.log_size << 20
        self.events = LogEvents(
            self.run, self.state.spec, process.pid, log_size=log_size, adopted=adopted
        )
        self._end_watch = context.watch.watch(self.events.log.path, self._read_log)
        # It was perhaps written to before it was watched.
        self._reading = self._loop.call_later(DEBOUNCE, self._read_log)
        self._task = asyncio.create_task(self._work(), name=f"monitor mps run {self.run}")

    @property
    def state(self) -> model.State:
        return self._supervisor.state

    def do(self, action: Job) -> None:
        if action.run == self.run:
            self._jobs.append(action)
            self._wake.set()

    def poll_soon(self) -> None:
        """Poll it now, but not within MIN_POLL_INTERVAL of the last poll."""
        when = max(self._loop.time(), self._last_poll + MIN_POLL_INTERVAL)
        if when < self._next_poll:
            self._next_poll = when
            self._wake.set()

    async def until_ended(self) -> model.Exited:
        """Wait until the process ends, then stop watching it."""
        status = await self.process.wait()
        last_lines = self.events.log.last_lines()
        await self.aclose()
        ran_for = age_of(self.process.identity) or self._loop.time() - self._began
        return model.Exited(self.run, status, ran_for, last_lines)

    async def aclose(self) -> None:
        self._reading.cancel()
        self._end_watch()
        self.events.log.close()
        self._task.cancel()
        await asyncio.wait([self._task])
        self.process.close()

    def update_sockets(self) -> None:
        """Hide the sockets from new clients if the daemon drains or is cordoned, else show them. It
        goes by where they are, and so mends what an earlier agent left. A daemon that was just
        started is left alone until it answers: it would end if its new sockets were moved.
        """
        hidden = bool(self._supervisor.cordoned) or self.state.phase is DaemonPhase.DRAINING
        hidden = hidden and (self._adopted or self.state.answered)
        try:
            self._sockets.keep(hidden=hidden)
            self.sockets_fault = "" if hidden else self.sockets_fault
        except OSError as error:
            where = self.state.spec.pipe_directory
            words = f"its sockets cannot be moved in {where}: {error.strerror or error}"
            if words != self.sockets_fault:
                report = model.Report(ReportSubject.STILL_IN_USE, words)
                self._context.report(self.state.spec.device, report)
            self.sockets_fault = words
        self._control.pipe_directory = self._sockets.directory

    def _read_log(self) -> None:
        self._reading.cancel()
        stirred, events = self.events.read(self.state.ending)
        for event in events:
            self._handle(event)
        if stirred:
            self.poll_soon()
        if self.events.log.behind:
            self._reading = self._loop.call_later(DEBOUNCE, self._read_log)

    async def _work(self) -> None:
        while True:
            await self._due()
            job = self._jobs.popleft() if self._jobs else None
            try:
                # Who may change the directory could lead what is sent to another user's daemon. One
                # that never answered is sealed here; it is only asked to end.
                sealed = job is None or await self._seal()
                if sealed and not await self._is_replaced():
                    await self._do(job)
            except Exception as error:  # noqa: BLE001  # a fault of ours must not end the monitoring
                self._handle(model.Unreachable(self.run, error_sentence(error)))
                self._next_poll = self._loop.time() + _UNREACHABLE_INTERVAL

    async def _due(self) -> None:
        while not self._jobs:
            left = self._next_poll - self._loop.time()
            if left <= 0:
                return
            self._wake.clear()
            await ends_within(left, self._wake.wait())

    async def _do(self, job: Job | None) -> None:
        match job:
            case model.SetLimits():
                with suppress(ControlError):  # the poll shows what is in force
                    await set_limits(self._control, job.spec)
                await self._poll()
            case model.Quit():
                await self._quit(job)
            case model.ReadBack() | None:
                await self._poll()

    async def _is_replaced(self) -> bool:
        """Whether another process is in the daemon's place, which is then neither asked nor
        believed.
        """
        impostor = await asyncio.to_thread(self._sockets.impostor, self.process.identity)
        if impostor:
            self._next_poll = self._loop.time() + _UNREACHABLE_INTERVAL
            self._handle(model.ImpostorFound(self.run, impostor))
        return bool(impostor)

    async def _quit(self, action: model.Quit) -> None:
        """Have the daemon end; in a drain by force, end the work of remaining clients before."""
        control, seen = self._control, self.seen
        empty = self._proofs >= _PROOFS
        half = action.seconds / 2
        if not empty and seen is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(half):
                    for server, client in seen.clients:
                        if client == 0:
                            continue  # the daemon does not know its number either
                        with suppress(ControlError, UnexpectedReply):
                            await control.ask(terminate_client(server, client), deadline=half)
        with suppress(ControlError, UnexpectedReply):
            await control.ask(quit_daemon(None if empty else 1), deadline=action.seconds)

    async def _poll(self) -> None:
        state = self.state
        self._next_poll = math.inf
        if state.ending is not Ending.NO:
            return  # its end is all that is waited for
        if not state.answered and not self._sockets.listens:
            self._next_poll = self._loop.time() + self._pauses.next()
            return
        self.update_sockets()  # a socket may have come since it was to be out of the way
        try:
            await self._ask(state)
        except DaemonDead as error:
            if state.answered:
                await self._timed_out(f"its process lives, but {error.message}")
            else:
                self._next_poll = self._loop.time() + self._pauses.next()
        except DaemonSilent:
            if self._answer_time.is_too_short():
                self._handle(model.Unreachable(self.run, _STARVED))
                self._next_poll = self._loop.time() + _RETRY_INTERVAL
            else:
                await self._timed_out("")
        except (ControlError, UnexpectedReply) as error:
            remedy = f": {error.remedy}" if isinstance(error, DaemonBusy) else ""
            self._handle(model.Unreachable(self.run, f"{error.message}{remedy}"))
            patience = self._interval(served=True) if state.was_ready else _UNREACHABLE_INTERVAL
            self._next_poll = self._loop.time() + patience
        finally:
            self._last_poll = self._loop.time()
            self.polls += 1
            shown, self._shown = self._shown, (self.seen, self.events.blocked.waiting)
            self._supervisor.notify(changed=self._shown != shown)

    async def _ask(self, state: model.State) -> None:
        hidden = self._sockets.hidden
        known = [server.pid for server in self.seen.servers] if self.seen else []
        seen = await ask_everything(
            self._control, known, devices=len(state.spec.devices), status=self._reports_status
        )
        wrong = (*differences(seen, state.spec), *self._context.check(state.spec))
        await self._seal()
        if await self._is_replaced():
            return  # these answers may have come from the impostor
        self._reports_status = seen.reports_status
        self.seen, self.seen_hidden = seen, hidden
        self._answer_time.restart()
        self._handle(model.Answered(self.run))
        if any(server.status is ServerStatus.FAULT for server in seen.servers):
            self._read_log()  # the line that names the cause is in it, perhaps not read yet
        for event in self.events.judge(seen, self.state):
            self._handle(event)
        self._handle(model.LimitsReadBack(self.run, state.limits_version, wrong))
        self._judge_drain(seen, hidden=hidden)
        self._plan_next(seen)

    async def _seal(self) -> bool:
        """Whether its user cannot change the pipe directory any more."""
        try:
            await asyncio.to_thread(seal_pipe_directory, self.state.spec.pipe_directory)
        except FileNotFoundError:
            pass  # the directory is gone, which the next poll will report
        except OSError as error:
            where = self.state.spec.pipe_directory
            words = f"its pipe directory {where} cannot be made root's: {error.strerror or error}"
            self._handle(model.Unreachable(self.run, words))
            return False
        return True

    def _interval(self, *, served: bool) -> float:
        interval = self._context.settings.check_interval
        return min(interval, self._context.served_interval) if served else interval

    def _plan_next(self, seen: Seen) -> None:
        draining = self.state.phase is DaemonPhase.DRAINING
        waiting = bool(self.events.blocked.waiting)
        wait = self._interval(served=bool(seen.servers) or draining or waiting)
        if self.events.blocked.is_unsure:
            wait = min(wait, SURE_AFTER + 0.05)
        if 0 < self._proofs < _PROOFS:
            wait = min(wait, MIN_POLL_INTERVAL)
        self._next_poll = min(self._next_poll, self._loop.time() + wait)

    async def _timed_out(self, reason: str) -> None:
        self._next_poll = self._loop.time() + _RETRY_INTERVAL
        if self._drains and not await self._has_servers():
            self._proofs = _PROOFS
            self._handle(model.ClientsGone(self.run))  # without a server there can be no client
        else:
            self._handle(model.Timeout(self.run, reason))

    def _begin_to_count(self) -> Callable[[], float]:
        """Neither this process nor the daemon may be blamed for a wait of the other's."""
        both = ProcessorWaits(), ProcessorWaits(self.process.pid)
        return lambda: min(waits.left() for waits in both)

    async def _has_servers(self) -> bool:
        """Any user can name a process as a server, and must not hold up the daemon's end. Servers
        of root's daemon may be of any user. Not knowing what one is counts.
        """
        spec = self.state.spec
        servers = {("", ""), (SERVER, spec.pipe_directory)}
        any_user = spec.multi_user or spec.uid == 0
        found = await asyncio.to_thread(mps_processes)
        able = (one for one in found if any_user or one.uid == spec.uid)
        return any((one.program, one.pipe_directory) in servers for one in able)

    @property
    def _drains(self) -> bool:
        return self.state.phase is DaemonPhase.DRAINING and self.state.ending is Ending.NO

    def _judge_drain(self, seen: Seen, *, hidden: bool) -> None:
        """No client is left when none was found twice since new ones are kept out."""
        if not self._drains or not hidden or seen.clients or not seen.knows_clients:
            self._proofs = 0
            return
        self._proofs += 1
        if self._proofs >= _PROOFS:
            self._handle(model.ClientsGone(self.run))
