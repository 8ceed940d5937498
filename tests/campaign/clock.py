"""The machine's time: it passes only when the agent waits. Importing this puts it in the place of
Python's, so a process that plays episodes imports it before anything of the agent.

A thread of the agent runs only when it is let, one at a time and only while the event loop has
nothing to do, so that an episode goes the same way each time.
"""

import math
import random
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

EPOCH = 1_800_000_000.0  # the wall clock when the machine's uptime was 0
_BEGIN = 1000.0
_real_clock, _real_sleep = time.clock_gettime, time.sleep


class Killed(BaseException):
    """The agent's process is no more: no handler of an error is for it."""


class Clock:
    """Seconds since the machine's start. `jump`: by how much its wall clock was set."""

    def __init__(self) -> None:
        self.now = _BEGIN
        self.jump = 0.0
        self.random = random.Random(0)
        self.turns: list[Turn] = []

    def begin(self, seed: int) -> None:
        self.now, self.jump = _BEGIN, 0.0
        self.random.seed(seed)

    def pass_to(self, moment: float) -> None:
        self.now = max(self.now, moment)

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return EPOCH + self.now + self.jump

    def clock_gettime(self, which: int) -> float:
        ours = which in {time.CLOCK_BOOTTIME, time.CLOCK_MONOTONIC}
        return self.now if ours else _real_clock(which)

    def sleep(self, seconds: float) -> None:
        turn = turn_of_this_thread()
        if turn is None:
            _real_sleep(seconds)
        else:
            until = self.now + seconds
            turn.park(lambda: self.now >= until, until)

    def let_one_run(self) -> bool:
        """Let one of the threads that can go on run until it has to wait; whether there was one."""
        ready = [turn for turn in self.turns if turn.is_ready()]
        if not ready:
            return False
        turn = ready[0] if len(ready) == 1 else self.random.choice(ready)
        turn.step()
        return True

    @property
    def next_thread(self) -> float:
        return min((turn.until for turn in self.turns), default=math.inf)


class Turn:
    """One thread that runs only when it is let. `killed`: what it waits for never comes."""

    def __init__(self, jobs: SimpleQueue[Any]) -> None:
        self._jobs = jobs
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self._was_let = False
        self.is_ready: Callable[[], bool] = self._has_work
        self.until = math.inf
        self.killed = False
        self.closed = False

    def _has_work(self) -> bool:
        return self.closed or self._jobs.qsize() > 0

    # --- in the thread ----------------------------------------------------------------------------

    def get(self) -> Any:
        """In the place of the queue's: the next job, in this thread's turn."""
        self._wait(self._has_work, math.inf)
        if self.closed:
            raise Killed
        return self._jobs.get_nowait()

    def park(self, ready: Callable[[], bool], until: float = math.inf) -> None:
        """In a job: wait until it is `ready`, which it is at that time or before. Raises Killed."""
        self._wait(lambda: self.killed or ready(), until)
        if self.killed:
            raise Killed

    def _wait(self, ready: Callable[[], bool], until: float) -> None:
        self.is_ready, self.until = ready, until
        if self._was_let:
            self._back.release()
        self._go.acquire()
        self._was_let = True
        self.until = math.inf

    def end(self) -> None:
        CLOCK.turns.remove(self)
        if self._was_let:
            self._back.release()

    # --- in the event loop ------------------------------------------------------------------------

    def step(self) -> None:
        self._go.release()
        self._back.acquire()


class MachineThread(threading.Thread):
    """A thread; one that takes jobs from a queue waits for its turn to do each."""

    def __init__(self, *, target: Any = None, args: Any = (), **more: Any) -> None:
        self.turn: Turn | None = None
        if args and isinstance(args[0], SimpleQueue):
            self.turn = Turn(args[0])
            args = (self.turn, *args[1:])
            CLOCK.turns.append(self.turn)
        super().__init__(target=target, args=args, **more)

    def run(self) -> None:
        if self.turn is None:
            super().run()
            return
        try:
            super().run()
        except Killed:
            pass
        finally:
            self.turn.end()


def turn_of_this_thread() -> Turn | None:
    return getattr(threading.current_thread(), "turn", None)


def living_threads() -> list[str]:
    """The names of those of the agent that have not ended."""
    found = [thread for thread in threading.enumerate() if isinstance(thread, MachineThread)]
    return [thread.name for thread in found if thread.turn in CLOCK.turns]


CLOCK = Clock()
time.monotonic = CLOCK.monotonic
time.time = CLOCK.time
time.clock_gettime = CLOCK.clock_gettime
time.sleep = CLOCK.sleep  # type: ignore[assignment]  # whatever is an index is a number
threading.Thread = MachineThread  # type: ignore[misc,assignment]  # its own subclass
random.SystemRandom.random = lambda _: CLOCK.random.random()  # type: ignore[method-assign,assignment]
