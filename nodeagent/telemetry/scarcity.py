"""Whether the agent itself is short of processor time."""

from __future__ import annotations

import time

from nodeagent.plan.problems import Code, Problem
from nodeagent.processor_waits import ProcessorWaits

# Shares of the time for which the agent waits for a processor.
_SCARCE, _ENOUGH = 0.5, 0.25
_SHOWN_FOR = 10  # windows with enough, since each change of the Node's status is a write


class Scarcity:
    """Judges what the kernel counts, each time that `window` seconds are over."""

    def __init__(self, window: float = 30.0) -> None:
        self._window = window
        self._waits: ProcessorWaits | None = None
        self._since = 0.0  # in real time, as the kernel counts
        self._shown_for = 0  # more such windows

    def problem(self) -> Problem | None:
        """Called again and again."""
        now = time.perf_counter()
        if self._waits is None:
            self._waits, self._since = ProcessorWaits(), now
        elif now - self._since >= self._window:
            share = self._waits.share()
            if share >= _SCARCE:
                self._shown_for = _SHOWN_FOR
            elif share < _ENOUGH:
                self._shown_for = max(self._shown_for - 1, 0)
            self._since = now
        return Problem.of(Code.STARVED) if self._shown_for > 0 else None
