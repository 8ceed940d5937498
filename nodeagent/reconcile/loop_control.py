"""Around the reconciliation loop: heartbeats, the end of blocking processes, a prompt stop."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager


class ProcessWatch:
    """Calls `wake` when a watched process ends.

    What the kernel cannot tell (a pid that has ended already and that the driver still names, one
    of another namespace, users without a pid) is looked at again after `fallback` seconds,
    doubling up to `fallback_limit` as long as the same users stay.
    """

    def __init__(
        self, wake: Callable[[], None], *, fallback: float = 2.0, fallback_limit: float = 30.0
    ) -> None:
        self._wake = wake
        self._fallback = fallback
        self._fallback_limit = fallback_limit
        self._delay = fallback
        self._descriptors: dict[int, int] = {}  # pid -> pidfd
        self._unwatchable: frozenset[int] = frozenset()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, pids: Collection[int]) -> None:
        """Watch exactly these; 0 stands for users of whom no pid is known."""
        for pid in self._descriptors.keys() - set(pids):
            self._forget(pid)
        unwatchable = frozenset(
            pid for pid in pids if pid not in self._descriptors and not self._follow(pid)
        )
        if unwatchable != self._unwatchable:
            self._delay = self._fallback
        self._unwatchable = unwatchable
        self._look_again_later()

    def close(self) -> None:
        self.watch(())

    def _follow(self, pid: int) -> bool:
        if pid <= 0:
            return False
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            return False
        if _has_ended(descriptor):  # a zombie: it would wake us again and again
            os.close(descriptor)
            return False
        self._descriptors[pid] = descriptor
        asyncio.get_running_loop().add_reader(descriptor, self._ended, pid)
        return True

    def _ended(self, pid: int) -> None:
        self._forget(pid)
        self._wake()

    def _forget(self, pid: int) -> None:
        descriptor = self._descriptors.pop(pid)
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)

    def _look_again_later(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if self._unwatchable:
            self._timer = asyncio.get_running_loop().call_later(self._delay, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        self._delay = min(self._delay * 2, self._fallback_limit)
        self._wake()


def _has_ended(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


class Heartbeats:
    """`clock` gives seconds, such as the event loop's time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._due: dict[str, float] = {}

    def beat(self, loop: str, *, within: float) -> None:
        """`loop` lives, and will beat again within so many seconds."""
        self._due[loop] = self._clock() + within

    def forget(self, loop: str) -> None:
        """`loop` has ended as it should."""
        self._due.pop(loop, None)

    def overdue(self) -> tuple[str, ...]:
        """A sentence for each loop that did not beat in time; empty while all is well."""
        now = self._clock()
        return tuple(
            f"the {loop} has not been heard of for {now - due:.0f} s longer than it should take"
            for loop, due in self._due.items()
            if now > due
        )


_LEAVING = 1.0  # seconds that a look may still take once told to stop


class GivenUp(Exception):
    """The agent stops, and did not wait for the end of a look."""


class GivingUp:
    """One look at a time."""

    def __init__(self) -> None:
        self._stopping = False
        self._looking: asyncio.Timeout | None = None

    def stop(self) -> None:
        """From now on looks, the running one too, have little time."""
        self._stopping = True
        if self._looking:
            _hurry(self._looking)

    @asynccontextmanager
    async def at_stop(self) -> AsyncIterator[None]:
        """Around a look; raises GivenUp when its time is over."""
        try:
            async with asyncio.timeout(None) as self._looking:
                if self._stopping:
                    _hurry(self._looking)
                yield
        except TimeoutError as error:
            raise GivenUp from error
        finally:
            self._looking = None


def _hurry(looking: asyncio.Timeout) -> None:
    looking.reschedule(asyncio.get_running_loop().time() + _LEAVING)
