"""Attends one daemon's process: does what its life asks for, asks it now and then, and listens to
its log. It reports what it learns as events; what follows from them is not decided here.

Conversations come one after the other, in the order in which they were asked for, so that a look
never falls between limits that are set and their read-back.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from nodeagent.errors import NodeagentError
from nodeagent.mps.control.client import (
    ControlClient,
    ControlError,
    DaemonBusy,
    DaemonDead,
    DaemonSilent,
)
from nodeagent.mps.control.commands import UnexpectedReply, terminate_client
from nodeagent.mps.control.query import Seen, ask_everything, differences, set_limits
from nodeagent.mps.files.sockets import DaemonSockets, SocketGate
from nodeagent.mps.launch.starter import internal_fault
from nodeagent.mps.lifecycle.model import (
    Answered,
    ClientsGone,
    Ending,
    Event,
    KeptOut,
    LimitsReadBack,
    Phase,
    Quit,
    ReadBack,
    Replaced,
    SetLimits,
    Silent,
    State,
)
from nodeagent.mps.log_events import LogEvents
from nodeagent.mps.processes import SERVER, Identity, processes_of
from nodeagent.mps.shares import DaemonSpec
from nodeagent.mps.supervisor_context import SupervisorContext

CALM = 0.2  # seconds between two looks, however much stirs
_FIRST_PAUSE = 0.005  # seconds between looks for the socket of a daemon that starts
_LONGEST_PAUSE = 0.1
_AGAIN = 0.2  # seconds before a daemon that did not answer is asked again
_KEPT_OUT = 1.0  # seconds before one that could not be asked is tried again, if it is new
_PROOFS = 2  # looks without any client, before it is believed that there are none


class DaemonMonitor:
    """Watches the process number `run`. `handle` takes events, after which `state` gives the state
    that follows from them. `looked` is called after each look, with whether the answer was another
    than before; `keep_gate` keeps new clients out where they are to be kept out.
    """

    def __init__(
        self,
        run: int,
        process: Identity,
        control: ControlClient,
        gate: SocketGate,
        context: SupervisorContext,
        *,
        handle: Callable[[Event], None],
        state: Callable[[], State],
        looked: Callable[[bool], None],
        keep_gate: Callable[[], None],
        adopted: bool,
    ) -> None:
        self.run = run
        self.seen: Seen | None = None  # the last answers
        self.looks = 0  # that have ended, well or not
        self.seen_hidden = False  # whether new clients were kept out when it was asked
        self._control = control
        self._gate = gate
        self._sockets = DaemonSockets(gate, process)
        self._timing = context.timing
        self._check = context.check
        self._handle = handle
        self._state = state
        self._looked = looked
        self._keep_gate = keep_gate
        self._loop = asyncio.get_running_loop()
        self._jobs: deque[SetLimits | ReadBack | Quit] = deque()
        self._wake = asyncio.Event()
        self._next_look = self._loop.time()
        self._last_look = -math.inf
        self._pause = _FIRST_PAUSE
        self._proofs = 0
        self._tells_status = True
        self.log = LogEvents(
            run,
            state().spec,
            process.pid,
            watch=context.watch,
            log_size=context.timing.log_size,
            handle=handle,
            state=state,
            stirred=self.look_soon,
            adopted=adopted,
        )
        self._task = asyncio.create_task(self._work(), name=f"monitor mps run {run}")

    def do(self, action: SetLimits | ReadBack | Quit) -> None:
        """In its turn."""
        self._jobs.append(action)
        self._wake.set()

    def look_soon(self, seconds: float = 0.0) -> None:
        """Ask it after so long, or when a bit of calm has passed since it was asked last."""
        when = max(self._loop.time() + seconds, self._last_look + CALM)
        if when < self._next_look:
            self._next_look = when
            self._wake.set()

    async def aclose(self) -> None:
        """No more talk, and no more listening."""
        self.log.close()
        self._task.cancel()
        await asyncio.wait([self._task])

    # --- one thing after the other --------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            await self._due()
            job = self._jobs.popleft() if self._jobs else None
            try:
                await self._do(job)
            except Exception as error:  # noqa: BLE001  # a fault of ours must not end the attending
                self._handle(KeptOut(self.run, internal_fault(error)))
                self._next_look = self._loop.time() + _KEPT_OUT

    async def _do(self, job: SetLimits | ReadBack | Quit | None) -> None:
        if await self._is_replaced():
            return
        match job:
            case SetLimits():
                await self._set_limits(job)
            case Quit():
                await self._quit(job)
            case ReadBack() | None:
                await self._look()

    async def _is_replaced(self) -> bool:
        """Whether another process is in the daemon's place, which is then neither asked nor
        believed.
        """
        impostor = await asyncio.to_thread(self._sockets.impostor)
        if impostor:
            self._next_look = self._loop.time() + _KEPT_OUT
            self._handle(Replaced(self.run, impostor))
        return bool(impostor)

    async def _due(self) -> None:
        while not self._jobs:
            left = self._next_look - self._loop.time()
            if left <= 0:
                return
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(None if left == math.inf else left):
                    await self._wake.wait()

    async def _set_limits(self, action: SetLimits) -> None:
        with suppress(ControlError):  # the read-back that comes next shows what is in force
            await set_limits(self._control, action.spec)

    async def _quit(self, action: Quit) -> None:
        """Those who are still there, by force, are taken off the device first."""
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
            await control.quit(None if empty else 1, deadline=action.seconds)

    # --- looking ----------------------------------------------------------------------------------

    async def _look(self) -> None:
        state = self._state()
        if state.ending is not Ending.NO:
            self._next_look = math.inf  # its end is all that is waited for
            return
        if not state.answered and not self._gate.listens:
            self._not_yet()
            return
        self._keep_gate()  # a socket may have come since it was to be out of the way
        self._next_look = math.inf
        before = self.seen
        try:
            await self._ask(state)
        except DaemonDead as error:
            if state.answered:
                await self._silent(f"its process lives, but {error.message}")
            else:
                self._not_yet()
        except DaemonSilent:
            await self._silent("")
        except (ControlError, UnexpectedReply) as error:
            remedy = f": {error.remedy}" if isinstance(error, DaemonBusy) else ""
            self._handle(KeptOut(self.run, f"{error.message}{remedy}"))
            patience = self._timing.until_next_look(served=True)
            self._next_look = self._loop.time() + (patience if state.was_ready else _KEPT_OUT)
        finally:
            self._last_look = self._loop.time()
            self.looks += 1
            self._looked(self.seen != before)

    def _not_yet(self) -> None:
        self._next_look = self._loop.time() + self._pause
        self._pause = min(self._pause * 1.5, _LONGEST_PAUSE)

    async def _ask(self, state: State) -> None:
        reading, spec, hidden = state.reading, state.spec, self._gate.hidden
        known = [server.pid for server in self.seen.servers] if self.seen else []
        seen = await ask_everything(self._control, known, status=self._tells_status)
        wrong = (*differences(seen, spec), *await self._checked(spec))
        await self._seal()
        if await self._is_replaced():
            return  # these answers may have come from the impostor
        self._tells_status = seen.tells_status
        self.seen, self.seen_hidden = seen, hidden
        self._handle(Answered(self.run))
        for event in self.log.judge(seen, self._state()):
            self._handle(event)
        self._handle(LimitsReadBack(self.run, reading, wrong))
        self._judge_drain(seen, hidden=hidden)
        self._plan_next(seen)

    async def _seal(self) -> None:
        try:
            await asyncio.to_thread(self._sockets.seal)
        except FileNotFoundError:
            pass  # the directory is gone, which the next look will report
        except OSError as error:
            words = f"its pipe directory cannot be made root's: {error.strerror or error}"
            self._handle(KeptOut(self.run, words))

    async def _checked(self, spec: DaemonSpec) -> tuple[str, ...]:
        try:
            return await self._check(spec)
        except NodeagentError as error:
            return (f"whether the device is as it has to be is not known ({error.message})",)

    def _plan_next(self, seen: Seen) -> None:
        draining = self._state().phase is Phase.DRAINING
        served = bool(seen.servers) or draining or self.log.has_waiting
        wait = self._timing.until_next_look(served=served)
        if self.log.unsure_for is not None:
            wait = min(wait, self.log.unsure_for)
        if 0 < self._proofs < _PROOFS:
            wait = min(wait, CALM)
        self._next_look = min(self._next_look, self._loop.time() + wait)

    async def _silent(self, reason: str) -> None:
        self._next_look = self._loop.time() + _AGAIN
        if self._drains and not await self._has_servers():
            self._proofs = _PROOFS
            self._handle(ClientsGone(self.run))  # without a server there can be no client
        else:
            self._handle(Silent(self.run, reason))

    async def _has_servers(self) -> bool:
        """Any user can name a process as a server, and must not hold up the daemon's end. Servers
        of root's daemon may be of any user.
        """
        spec = self._state().spec
        found = await asyncio.to_thread(processes_of, spec.pipe_directory, SERVER)
        any_user = spec.multi_user or spec.uid == 0
        return any(any_user or server.uid == spec.uid for server in found)

    # --- draining -------------------------------------------------------------------------------

    @property
    def _drains(self) -> bool:
        state = self._state()
        return state.phase is Phase.DRAINING and state.ending is Ending.NO

    def _judge_drain(self, seen: Seen, *, hidden: bool) -> None:
        """No client is left when none was found twice since new ones are kept out."""
        if not self._drains or not hidden or seen.clients or not seen.knows_clients:
            self._proofs = 0
            return
        self._proofs += 1
        if self._proofs >= _PROOFS:
            self._handle(ClientsGone(self.run))
