"""What a signal promises to those who follow it."""

from __future__ import annotations

import asyncio

import pytest

from nodeagent.signals import Signal


def test_subscribers_are_called_in_order_until_they_leave() -> None:
    """With each value, before `publish` returns."""
    signal, called = Signal(0), list[tuple[str, int]]()
    leave = signal.subscribe(lambda value: called.append(("first", value)))
    signal.subscribe(lambda value: called.append(("second", value)))
    signal.publish(1)
    leave()
    signal.publish(2)
    assert called == [("first", 1), ("second", 1), ("second", 2)]
    assert signal.newest == 2


def test_one_that_fails_keeps_it_from_no_other() -> None:
    """The failure is raised when all were called, and the value is the newest."""
    signal, called = Signal(0), list[int]()
    signal.subscribe(lambda value: 1 // (value - 1))
    signal.subscribe(called.append)
    with pytest.raises(ZeroDivisionError):
        signal.publish(1)
    assert called == [1]
    assert signal.newest == 1


async def test_iteration_gives_the_newest() -> None:
    """At once, and after each change; what came while the reader was busy is skipped."""
    signal, seen = Signal(0), list[int]()
    values = aiter(signal)
    seen.append(await anext(values))
    signal.publish(1)
    signal.publish(2)
    seen.append(await anext(values))
    waiting = asyncio.ensure_future(anext(values))
    await asyncio.sleep(0)
    assert not waiting.done()
    signal.publish(3)
    seen.append(await waiting)
    assert seen == [0, 2, 3]


async def test_a_value_later_than_a_version() -> None:
    """Is awaited, also where it equals the one before; one that came meanwhile is there at once."""
    signal = Signal(0)
    version = signal.version
    waiting = asyncio.ensure_future(signal.after(version))
    await asyncio.sleep(0)
    assert not waiting.done()
    signal.publish(0)
    assert await waiting == await signal.after(version) == 0
