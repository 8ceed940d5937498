"""Starts daemons whose server takes clients of every user, in the way the installed program knows.

Its flag for that has changed between versions, and older ones have none; so it is tried out before
the first such daemon is started, and only then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from nodeagent.mps.launch.launchers import Launcher
from nodeagent.mps.launch.probing import Probe
from nodeagent.mps.launch.process import DaemonProcess, Programs
from nodeagent.mps.shares import DaemonSpec


class AnyUserLauncher:
    """Starts daemons by the launcher that `make` makes for these programs."""

    def __init__(
        self,
        programs: Programs,
        *,
        make: Callable[[Programs], Launcher],
        probe: Callable[[], Awaitable[Probe]],
    ) -> None:
        self._programs = programs
        self._make = make
        self._probe = probe
        self._launcher = make(programs)
        self._for_any_user: Launcher | None = None
        self._probing = asyncio.Lock()

    async def launch(self, spec: DaemonSpec) -> DaemonProcess:
        """As the launcher; raises StartError, also when the program has no such way."""
        if not spec.multi_user:
            return await self._launcher.launch(spec)
        async with self._probing:
            if self._for_any_user is None:
                found = await self._probe()
                flag = found.multi_user_flag
                launcher = self._make(replace(self._programs, multi_user_flag=flag))
                if not flag:  # the program may be replaced by one that has it: try again then
                    return await launcher.launch(spec)
                self._for_any_user = launcher
        return await self._for_any_user.launch(spec)
