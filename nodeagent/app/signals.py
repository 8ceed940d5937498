"""Signals that end the agent: the first lets the running steps finish, the second does not wait."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

log = structlog.get_logger(__name__)

_NUMBERS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` in the event loop at the first signal; the next one ends the process at once."""
    loop = asyncio.get_running_loop()

    def received(number: signal.Signals) -> None:
        log.info("stopping; the running steps finish", signal=number.name)
        stop()
        for one in _NUMBERS:
            loop.remove_signal_handler(one)
            signal.signal(one, signal.SIG_DFL)

    for number in _NUMBERS:
        loop.add_signal_handler(number, received, number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _NUMBERS)  # the program's start blocks them
    try:
        yield
    finally:
        for number in _NUMBERS:
            loop.remove_signal_handler(number)
