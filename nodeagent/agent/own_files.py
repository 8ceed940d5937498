"""The agent's own files, looked after while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from nodeagent.files import StateFile
from nodeagent.planning.problems import Code, Problem

log = structlog.get_logger(__name__)

_INTERVAL = 2.0  # seconds between two looks


class OwnFiles:
    """What is wrong with them, in `problems`; `changed` is called when that is another."""

    def __init__(self, files: Sequence[StateFile[Any]], changed: Callable[[], None]) -> None:
        self._files = files
        self._changed = changed

    @property
    def problems(self) -> tuple[Problem, ...]:
        found = (file.problem for file in self._files)
        return tuple(Problem(Code.STATE_FILE, p.message, p.remedy) for p in found if p)

    async def run(self) -> None:
        """Look at them every so often, until cancelled."""
        known = self.problems
        while True:
            await asyncio.sleep(_INTERVAL)
            await asyncio.to_thread(self._review)
            if self.problems != known:
                known = self.problems
                self._changed()

    def _review(self) -> None:
        for file in self._files:
            file.review()
