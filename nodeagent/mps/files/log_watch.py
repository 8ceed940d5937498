"""Tells when daemons' logs have grown, by the kernel's word (inotify)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from asyncinotify import Inotify, Mask

_MOST = 1000  # events taken in one go; who writes without end must not hold up the loop
_REST = 0.05  # seconds of rest after so many


class LogWatch:
    """Usable inside `async with`. Where the kernel gives no watch nothing is told, and logs are
    read when daemons are asked.
    """

    def __init__(self) -> None:
        self._inotify: Inotify | None = None
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._resting: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        with suppress(OSError):
            self._inotify = Inotify(sync_timeout=0)
            self._begin(self._inotify)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._resting is not None:
            self._resting.cancel()
        if self._inotify is not None:
            asyncio.get_running_loop().remove_reader(self._inotify.fd)
            self._inotify.close()
        self._inotify = None

    def watch(self, path: str, grown: Callable[[], None]) -> Callable[[], None]:
        """Call `grown` whenever the file was written to; returns what ends that. One watch for a
        file at a time.
        """
        inotify = self._inotify
        if inotify is None:
            return lambda: None
        try:
            watch = inotify.add_watch(path, Mask.MODIFY)
        except OSError:
            return lambda: None
        self._callbacks[watch.wd] = grown

        def end() -> None:
            self._callbacks.pop(watch.wd, None)
            with suppress(OSError, ValueError):
                if self._inotify is not None:
                    inotify.rm_watch(watch)

        return end

    def _begin(self, inotify: Inotify) -> None:
        asyncio.get_running_loop().add_reader(inotify.fd, self._read, inotify)

    def _rest(self, inotify: Inotify) -> None:
        """What comes meanwhile waits, and what was taken is waited for no more than that."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(inotify.fd)
        self._resting = loop.call_later(_REST, self._go_on, inotify)

    def _go_on(self, inotify: Inotify) -> None:
        self._begin(inotify)
        self._read(inotify)  # some may have been taken from the kernel already

    def _read(self, inotify: Inotify) -> None:
        """All that is there: the many writes of one moment make one call each."""
        grown: set[int] = set()
        for _ in range(_MOST):
            event = inotify.sync_get()
            if event is None:
                break
            if Mask.Q_OVERFLOW in event.mask:
                grown.update(self._callbacks)
            elif event.watch is not None:
                grown.add(event.watch.wd)
        else:
            self._rest(inotify)
        for number in grown:
            callback = self._callbacks.get(number)
            if callback is not None:
                callback()
