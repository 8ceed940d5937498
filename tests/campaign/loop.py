"""The event loop of one life of the agent, on the machine's time."""

import asyncio
import contextvars
import math
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from tests.campaign import processes
from tests.campaign.clock import CLOCK, Killed, turn_of_this_thread

_GLANCE = 0.002  # real seconds between looks whether other processes are done
_TICK = 1e-6  # seconds: what a timer takes at least, as on any clock that goes on by itself
MAX_TURNS = 200_000  # of the loop without any time passing: it would go on for ever


class Spinning(Exception):
    """The agent is at work all the time and never waits."""


class MachineLoop(asyncio.SelectorEventLoop):
    """Time passes when nothing is ready. `stopped` is asked between two turns: whether to return
    from `run_forever` at once. What is for a pool of threads is done in a turn of its own. Where
    the machine `has_processes`, no time passes while one of them is at work. `arriving` are the
    real seconds in which threads that are not the agent's, as gRPC's, carry a message.
    """

    def __init__(
        self, stopped: Callable[[], bool], *, has_processes: bool, arriving: float = 0.0
    ) -> None:
        super().__init__(_Passing(self, has_processes=has_processes, arriving=arriving))
        self._stopped = stopped
        self._still = 0  # turns since time passed

    def time(self) -> float:
        return CLOCK.now

    def call_later(  # type: ignore[override]  # the stub has type variables
        self,
        delay: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        # What is so small that it is lost in the sum would let no time pass, for ever.
        return super().call_later(max(delay, _TICK), callback, *args, context=context)

    def run_for(self, seconds: float) -> None:
        timer = self.call_later(seconds, self.stop)
        self.run_forever()
        timer.cancel()

    def pass_until(self, limit: float) -> None:
        """Let time pass to the next thing that happens, at most until then."""
        CLOCK.pass_to(min(limit, CLOCK.next_thread))
        self._still = 0

    def goes_on(self) -> bool:
        """After a turn: whether another one follows. Raises Spinning."""
        self._still += 1
        if self._stopped():
            self.stop()
            return False
        if self._still > MAX_TURNS:
            self._still = 0  # what is left of it has to be unwound
            raise Spinning
        return True

    def run_in_executor(  # type: ignore[override]  # the stub's type variables tell nothing here
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()
        self.call_soon(_run, future, func, args)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """That a task ended with its process is no fault of it."""
        if not isinstance(context.get("exception"), Killed):
            super().call_exception_handler(context)

    def _write_to_self(self) -> None:
        """A thread runs only while this loop waits for it, which needs no waking."""
        if turn_of_this_thread() is None:
            super()._write_to_self()  # type: ignore[misc]  # not in the stubs


def _run(future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
    if future.cancelled():
        return
    try:
        result = func(*args)
    except BaseException as error:  # noqa: BLE001  # it is raised where the call was made
        future.set_exception(error)
    else:
        future.set_result(result)


class _Passing(selectors.DefaultSelector):
    """Looks at the sockets, then lets a thread run, then lets time pass."""

    def __init__(self, loop: MachineLoop, *, has_processes: bool, arriving: float) -> None:
        super().__init__()
        self._loop = loop
        self._has_processes = has_processes
        self._arriving = arriving

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if not self._loop.goes_on() or (timeout is not None and timeout <= 0):
            return []  # the sockets are looked at when all else is done
        if (found := super().select(0)) or CLOCK.let_one_run():
            return found
        while self._has_processes and processes.are_at_work():
            if found := super().select(_GLANCE):
                return found
        waits = self._has_processes or self._arriving
        if waits and (found := super().select(self._arriving)):
            return found
        self._loop.pass_until(math.inf if timeout is None else CLOCK.now + timeout)
        return found
