"""Work on claims, tried again while what is in its way passes by itself.

A pod whose claim could not be prepared is tried again by the kubelet 60 to 90 s later. So what
passes (a device of a pod that is ending, a busy GPU, an API server that is away, a daemon that is
being started) is waited for within the kubelet's call, and only then is the answer no.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeVar

from nodeagent.errors import Transient
from nodeagent.signals import Signal

PATIENCE: Final = 35.0  # seconds; the kubelet's call ends after 45, the agent's answer to it at 40
_FIRST_PAUSE: Final = 0.2  # seconds between two attempts, doubled each time, unless it is woken
_MAX_PAUSE: Final = 2.0

_Result = TypeVar("_Result")


class Patience:
    """For all claims of the node."""

    def __init__(self) -> None:
        self._woken: Signal[None] = Signal(None)
        self._gives_way: dict[str, bool] = {}  # by uid, of the work that runs

    def wake(self) -> None:
        """Something may have passed: try again now."""
        self._woken.publish(None)

    def give_way(self, uid: str) -> None:
        """Other work on the claim is asked for: wait no more."""
        if uid in self._gives_way:
            self._gives_way[uid] = True
            self.wake()

    async def persist(
        self,
        uid: str,
        work: Callable[[], Awaitable[_Result]],
        on_wait: Callable[[Transient], None],
    ) -> _Result:
        """What the work on the claim gives at last; `on_wait` gets what it waits for, each time.

        Raises what the work raises: at once what does not pass.
        """
        clock = asyncio.get_running_loop().time
        until, pause = clock() + PATIENCE, _FIRST_PAUSE
        self._gives_way[uid] = False
        try:
            while True:
                version = self._woken.version
                try:
                    return await work()
                except Transient as error:
                    if clock() + pause > until:
                        raise
                    on_wait(error)
                    await asyncio.sleep(pause / 4)  # however often something changes
                    with suppress(TimeoutError):
                        async with asyncio.timeout(pause * 3 / 4):
                            await self._woken.after(version)
                    if self._gives_way[uid]:
                        raise
                pause = min(2 * pause, _MAX_PAUSE)
        finally:
            del self._gives_way[uid]
