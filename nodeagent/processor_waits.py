"""How long this process was ready to run and did not, because others had the processors or its
cgroup's share of them was used up: time for which no deadline may blame the other side.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_INTERVAL = 5.0  # seconds at least between two looks of RunningTime


class ProcessorWaits:
    """What the kernel has counted since the last `lap` for each thread of a process: this one, or
    that of `pid`. It counts real time, as perf_counter does where monotonic is a test's own.
    """

    def __init__(self, pid: int | None = None) -> None:
        self._folder = Path("/proc", "self" if pid is None else str(pid), "task")
        self._at, self._before = time.perf_counter(), self._counts()
        self._began = time.monotonic()

    def lap(self, *, unfinished: bool = True) -> float:
        """Seconds for which a thread waited for a processor, of that which waited longest: where it
        has Python's lock, all others wait for it. 0 where the kernel does not count. `unfinished`:
        with that of who waits now, as far as it did not run, be it that it slept.
        """
        at, before = self._at, self._before
        self._at, self._before = time.perf_counter(), self._counts()
        passed, longest = self._at - at, 0.0
        for thread, (ran, waited) in self._before.items():
            earlier = before.get(thread, (0.0, 0.0))
            # The kernel counts a wait when it is over.
            waits = unfinished and self._is_ready(thread)
            now = passed - (ran - earlier[0]) if waits else 0.0
            longest = max(longest, waited - earlier[1], now)
        return min(longest, passed)

    def left(self) -> float:
        """Seconds that passed since the last `lap` without such a wait."""
        began, self._began = self._began, time.monotonic()
        return max(self._began - began - self.lap(), 0.0)

    def share(self) -> float:
        """The share of the time that passed, of waits that are over: in a long time each thread
        has slept, too, and one that has just answered is seen ready.
        """
        at, waited = self._at, self.lap(unfinished=False)
        return waited / max(self._at - at, 1e-9)

    def _counts(self) -> dict[str, tuple[float, float]]:
        """Seconds by thread for which it ran and for which it waited, as its schedstat has them.
        Does not wait for a disk.
        """
        found = {}
        with suppress(OSError):  # it ended
            for thread in self._folder.iterdir():
                with suppress(OSError, ValueError):  # the kernel has no CONFIG_SCHED_INFO
                    ran, waited, _ = (thread / "schedstat").read_bytes().split()
                    found[thread.name] = (int(ran) / 1e9, int(waited) / 1e9)
        return found

    def _is_ready(self, thread: str) -> bool:
        """Whether another thread than the calling one runs or would, if it had a processor."""
        if thread == str(threading.get_native_id()):
            return False
        try:
            state = (self._folder / thread / "stat").read_bytes().rpartition(b") ")[2]
        except OSError:
            return False
        return state.startswith(b"R")


class Stopwatch:
    """Counts the seconds of a wait in which this process could run: not those of waits for a
    processor, nor those by which the event loop came late. `limit` is what the wait may take.

    What is over soon costs no look: only from the first quarter of the limit on are waits known.
    """

    def __init__(self, limit: float) -> None:
        self.seconds = 0.0
        self._limit = limit
        self._clock = asyncio.get_running_loop().time
        self._at = self._due = self._clock()
        self._waits: ProcessorWaits | None = None

    def next(self, left: float) -> float:
        """The seconds until the next look, at most about `left`."""
        least, first = self._limit / 50, self._limit / 4
        seconds = max(left, least) if self._waits else min(left, first)
        self._due = self._at + seconds
        return seconds

    @property
    def so_far(self) -> float:
        """The time, up to the last look and since."""
        return self.seconds + self._clock() - self._at

    def look(self) -> float:
        """The seconds that count since the last look."""
        now = self._clock()
        waited = max(self._waits.lap() if self._waits else 0.0, now - self._due)
        if self._waits is None and self._due > self._at:  # not at the first look, at the beginning
            self._waits = ProcessorWaits()
        counted = max(now - self._at - max(waited, 0.0), 0.0)
        self._at = self._due = now
        self.seconds += counted
        return counted


class AnswerTime:
    """Counts the time in which a question could have been answered. `begin` begins to count, and
    gives what then tells the seconds that passed without a wait for a processor.
    """

    def __init__(self, deadline: float, begin: Callable[[], Callable[[], float]]) -> None:
        self._deadline = deadline
        self._begin = begin
        self.restart()

    def restart(self) -> None:
        """Forget what was counted, since there was an answer."""
        self._passed: Callable[[], float] | None = None
        self._seconds = 0.0

    def is_too_short(self) -> bool:
        """Whether who gave no answer had too little time for one since the question before."""
        passed, self._passed = self._passed, self._begin()
        if passed is None:
            return False
        self._seconds += passed()
        if self._seconds < self._deadline:
            return True
        self._seconds = 0.0
        return False


class RunningTime:
    """A clock in seconds that stands still while this process waits for a processor."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._waits = ProcessorWaits()
        self._looked_at = clock()
        self._waited = 0.0

    def __call__(self) -> float:
        now = self._clock()
        if now - self._looked_at >= _INTERVAL:
            self._waited += min(self._waits.lap(), now - self._looked_at)
            self._looked_at = now
        return now - self._waited
