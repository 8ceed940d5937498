"""What each worker thread is doing in the driver just now, for those who wait for it.

A deadline is for one call into the driver: a card that answers slowly is not one that hangs. So
the threads note each call as they make it, and who waits looks whether it goes on.
"""

from __future__ import annotations

import threading
import time


class Progress:
    """One thread's calls since `restart`. Written by that thread, read by others; times are in
    seconds, monotonic.
    """

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """A job begins."""
        self.call = ""
        self.since = time.monotonic()
        self.calls = 0
        self.slowest = ("", 0.0)

    def begin(self, call: str) -> None:
        self.since = time.monotonic()
        self.call = call

    def end(self) -> None:
        now = time.monotonic()
        took = now - self.since
        if took > self.slowest[1]:
            self.slowest = (self.call, took)
        self.calls += 1
        self.call = ""
        self.since = now

    @property
    def silence(self) -> float:
        """Seconds since it last came to or from the driver."""
        return time.monotonic() - self.since

    @property
    def pace(self) -> str:
        """As in `106 driver calls, the slowest nvmlDeviceGetUUID with 0.12 s`."""
        name, seconds = self.slowest
        return f"{self.calls} driver calls, the slowest {name or 'none'} with {seconds:.2g} s"


_here = threading.local()


def current() -> Progress:
    """The progress of the thread that asks."""
    try:
        return _here.progress  # type: ignore[no-any-return]  # only this module sets it
    except AttributeError:
        _here.progress = Progress()
        return current()


def attach(progress: Progress) -> None:
    """Have the thread that asks note its calls there."""
    _here.progress = progress
