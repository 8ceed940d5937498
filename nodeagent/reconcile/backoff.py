"""Waiting times between attempts at what failed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waiting times in seconds: `first`, then doubling up to `limit`, each shortened by chance by
    up to a quarter, so that many nodes do not act in step. `chance` gives numbers in [0, 1).
    """

    first: float
    limit: float
    chance: Callable[[], float]

    def after(self, failures: int) -> float:
        """How long to wait after so many failures in a row (1 or more)."""
        # The exponent is bounded because a float's is.
        whole = min(self.first * 2.0 ** min(failures - 1, 60), self.limit)
        return whole * (1 - self.chance() / 4)
