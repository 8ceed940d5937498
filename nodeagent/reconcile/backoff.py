"""Remembers what failed on which GPU, so that the same is not tried again at every wake-up.

Pure but for its memory: the time and the source of chance are passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from nodeagent.plan.desired import DesiredGpu
from nodeagent.plan.observed import Gpu
from nodeagent.plan.problems import Code, Problem


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


@dataclass(frozen=True, slots=True)
class _Failure:
    situation: object
    count: int
    retry_at: float
    problems: tuple[Problem, ...]


class Attempts:
    """The failures of each GPU since it was last in sync."""

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._failures: dict[str, _Failure] = {}

    def may_try(self, gpu: Gpu, desired: DesiredGpu, now: float) -> bool:
        """Whether it is worth trying: nothing failed, something is different now, or it is time."""
        failure = self._failures.get(gpu.uuid)
        if failure is None:
            return True
        return now >= failure.retry_at or failure.situation != situation(gpu, desired)

    def failed(
        self, gpu: Gpu, desired: DesiredGpu, problems: Iterable[Problem], now: float
    ) -> None:
        """`gpu` is what the failed attempt left behind."""
        earlier = self._failures.get(gpu.uuid)
        count = earlier.count + 1 if earlier else 1
        retry_at = now + self._backoff.after(count)
        self._failures[gpu.uuid] = _Failure(
            situation(gpu, desired), count, retry_at, tuple(problems)
        )

    def settled(self, uuid: str) -> None:
        """The GPU is as it should be."""
        self._failures.pop(uuid, None)

    def blocked(self, uuid: str) -> None:
        """The GPU now waits for somebody; of the failure only what it left behind matters."""
        failure = self._failures.pop(uuid, None)
        left = [p for p in failure.problems if p.code is Code.NOT_RESTORED] if failure else []
        if failure and left:
            self._failures[uuid] = _Failure(None, failure.count, failure.retry_at, tuple(left))

    def forget_all(self) -> None:
        """There is a new plan: everything may be tried at once."""
        self._failures.clear()

    def problems(self, uuid: str) -> tuple[Problem, ...]:
        failure = self._failures.get(uuid)
        return failure.problems if failure else ()

    def next_retry(self, uuids: Iterable[str]) -> float | None:
        """When the first of these GPUs is to be tried again."""
        times = [self._failures[uuid].retry_at for uuid in uuids if uuid in self._failures]
        return min(times, default=None)


def situation(gpu: Gpu, desired: DesiredGpu) -> object:
    """What must differ for another attempt to be worth its while at once.

    Ids and UUIDs are left out, because an attempt that was taken back gives new ones.
    """
    layout = sorted(
        (i.profile, i.placement, tuple(sorted(c.slices for c in i.compute))) for i in gpu.instances
    )
    return (desired, gpu.access, gpu.mig, tuple(layout))
