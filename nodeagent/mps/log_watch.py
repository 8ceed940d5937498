"""Tells when daemons' logs have grown, by the kernel's word (inotify)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from asyncinotify import Inotify, Mask


class LogWatch:
    """Usable inside `async with`. Where the kernel gives no watch nothing is told, and logs are
    read when daemons are asked.
    """

    def __init__(self) -> None:
        self._inotify: Inotify | None = None
        self._callbacks: dict[int, Callable[[], None]] = {}

    async def __aenter__(self) -> Self:
        with suppress(OSError):
            self._inotify = Inotify(sync_timeout=0)
            asyncio.get_running_loop().add_reader(self._inotify.fd, self._read, self._inotify)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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

    def _read(self, inotify: Inotify) -> None:
        """All that is there: the many writes of one moment make one call each."""
        grown: set[int] = set()
        while (event := inotify.sync_get()) is not None:
            if Mask.Q_OVERFLOW in event.mask:
                grown.update(self._callbacks)
            elif event.watch is not None:
                grown.add(event.watch.wd)
        for number in grown:
            callback = self._callbacks.get(number)
            if callback is not None:
                callback()
