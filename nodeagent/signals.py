"""A value that changes, and the one way to follow it.

`newest` is what there is now, `subscribe` has a function called with each later value, and a loop
iterates over them.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Signal(Generic[Value]):
    """The newest value, and those who follow it. Belongs to one event loop.

    Subscribers are called one after the other, in the order in which they subscribed, before
    `publish` returns. An assignment to `newest` corrects the value and calls nobody. `version`
    grows with each value that is published.
    """

    def __init__(self, first: Value) -> None:
        self.newest = first
        self.version = 0
        self._subscribers: list[Callable[[Value], object]] = []
        self._published = asyncio.Event()  # another one for each value

    def publish(self, value: Value) -> None:
        """Make the value the newest, and call every subscriber with it. The first exception of any
        is raised when all were called.
        """
        self.newest = value
        self.version += 1
        self._published.set()
        self._published = asyncio.Event()
        first_error: Exception | None = None
        for notify in tuple(self._subscribers):
            try:
                notify(value)
            except Exception as error:  # noqa: BLE001  # raised below
                first_error = first_error or error
        if first_error is not None:
            raise first_error

    def subscribe(self, notify: Callable[[Value], object]) -> Callable[[], None]:
        """Have `notify` called with each value from now on; what is returned ends that."""
        self._subscribers.append(notify)
        return lambda: self._subscribers.remove(notify)

    @property
    def subscribers(self) -> int:
        """The number of subscribers."""
        return len(self._subscribers)

    async def after(self, version: int) -> Value:
        """The newest value, as soon as there is one later than that version."""
        while self.version <= version:
            await self._published.wait()
        return self.newest

    async def __aiter__(self) -> AsyncIterator[Value]:
        """The newest value now and after each change; those that came meanwhile are skipped."""
        while True:
            version = self.version
            yield self.newest
            await self.after(version)
