"""Waits for processes by the kernel's word (pidfd), children or not."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def opened(pid: int) -> Iterator[int | None]:
    """A descriptor that stands for this very process; None when it is gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def has_ended(descriptor: int) -> bool:
    """Whether the process has ended, a zombie too; does not block."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


async def ended(descriptor: int) -> None:
    """Until the process ends; only one may wait by one descriptor at a time."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    loop.add_reader(descriptor, done.set)
    try:
        await done.wait()
    finally:
        loop.remove_reader(descriptor)
