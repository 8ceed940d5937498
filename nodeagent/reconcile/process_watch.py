"""Waits for processes to end, by the kernel's word (pidfd) instead of by asking again and again."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable, Collection


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
