"""What to work on now, given the plan, earlier failures and drift.

The plan lists what would have to be done; `WorkQueue` remembers why some of it waits: a GPU on
which a step failed is retried with backoff, and a GPU that drifted (was in sync with the plan and
was then changed by another program, or lost its layout at a reset) may be left alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from nodeagent.backoff import Backoff
from nodeagent.execute.step_problems import not_as_planned
from nodeagent.plan.desired import DesiredGpu, DesiredNode
from nodeagent.plan.observed import Access, Gpu
from nodeagent.plan.plan import GpuOutcome, GpuPlan, NodePlan, Verdict
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.active_plan import Judgement
from nodeagent.views.text import gpu_words, layout_words, users


class WorkQueue:
    """`mend`: whether drift is repaired or only reported. Times are in seconds of one clock."""

    def __init__(self, backoff: Backoff, *, mend: bool) -> None:
        self._retries = Retries(backoff)
        self._drift = Drift()
        self._mend = mend

    def look(self, judgement: Judgement) -> tuple[Gpu, ...]:
        """Note what is so now; the GPUs that another program changed since the last look."""
        if judgement.accepted:
            self._retries.forget_all()
        if judgement.plan is None:
            return ()
        for gpu_plan in judgement.plan.gpus:
            uuid = gpu_plan.before.uuid
            if gpu_plan.verdict is Verdict.IN_SYNC:
                self._retries.settled(uuid)
            elif gpu_plan.verdict is Verdict.BLOCKED and gpu_plan.before.access is Access.OK:
                self._retries.blocked(uuid)
        return self._drift.look(judgement.desired, judgement.plan)

    def choose(self, judgement: Judgement, now: float) -> tuple[GpuPlan, ...]:
        """The GPUs to work on now."""
        if judgement.plan is None:
            return ()
        wanted = judgement.desired.gpus
        return tuple(
            gpu_plan
            for gpu_plan in judgement.plan.gpus
            if gpu_plan.steps
            and not self._is_left_drifted(gpu_plan)
            and self._retries.may_try(gpu_plan.before, wanted[gpu_plan.before.uuid], now)
        )

    def learn(
        self, outcome: GpuOutcome, after: GpuPlan | None, judgement: Judgement, now: float
    ) -> None:
        """Remember what failed: by what is there now, and not by what was said to be done."""
        if after is None or not (outcome.failed or after.steps):
            return
        uuid = after.before.uuid
        problems = outcome.problems or (not_as_planned(after.before),)
        self._retries.failed(after.before, judgement.desired.gpus[uuid], problems, now)

    def problems(self, gpu_plan: GpuPlan) -> tuple[Problem, ...]:
        """Everything that is wrong with one GPU."""
        if gpu_plan.verdict is Verdict.IN_SYNC:
            return ()
        drift = (drift_problem(gpu_plan.before),) if self._is_left_drifted(gpu_plan) else ()
        return (*drift, *gpu_plan.problems, *self._retries.problems(gpu_plan.before.uuid))

    def next_retry(self, judgement: Judgement) -> float | None:
        """When something that failed is to be tried again; None when nothing is."""
        waiting = [p.before.uuid for p in judgement.plan.gpus if p.steps] if judgement.plan else []
        return self._retries.next_retry(waiting)

    def _is_left_drifted(self, gpu_plan: GpuPlan) -> bool:
        return not self._mend and self._drift.has(gpu_plan.before.uuid)


def blocking_pids(judgement: Judgement) -> set[int]:
    """Everyone on the GPUs that are blocked by users; 0 for those of whom no pid is known."""
    pids: set[int] = set()
    for gpu_plan in judgement.plan.gpus if judgement.plan else ():
        if any(problem.code is Code.IN_USE for problem in gpu_plan.problems):
            pids |= {user.pid for user in users(gpu_plan.before)} or {0}
    return pids


@dataclass(frozen=True, slots=True)
class _Failure:
    situation: object
    count: int
    retry_at: float
    problems: tuple[Problem, ...]


class Retries:
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
        """The GPU now waits for its users; of the failure only what it left behind matters."""
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


class Drift:
    """What each GPU was in sync with, and which have drifted from it."""

    def __init__(self) -> None:
        self._in_sync: dict[str, DesiredGpu] = {}
        self._drifted: dict[str, DesiredGpu] = {}

    def look(self, desired: DesiredNode, plan: NodePlan) -> tuple[Gpu, ...]:
        """Compare with what was so before; the GPUs that have drifted since."""
        new = []
        for gpu_plan in plan.gpus:
            gpu = gpu_plan.before
            wanted = desired.gpus[gpu.key]
            if gpu.access is not Access.OK:
                continue
            if gpu_plan.verdict is Verdict.IN_SYNC:
                self._in_sync[gpu.uuid] = wanted
                self._drifted.pop(gpu.uuid, None)
            elif self._in_sync.pop(gpu.uuid, None) == wanted:
                self._drifted[gpu.uuid] = wanted
                new.append(gpu)
            elif self._drifted.get(gpu.uuid) != wanted:
                self._drifted.pop(gpu.uuid, None)
        return tuple(new)

    def has(self, uuid: str) -> bool:
        """Whether this GPU has drifted and is not back."""
        return uuid in self._drifted


def drift_problem(gpu: Gpu) -> Problem:
    """The problem of a GPU that drifted and is to be left so."""
    return Problem(
        Code.DRIFT,
        f"{gpu_words(gpu)} was as the plan says and was then changed by another program: it now "
        f"has {layout_words(gpu)}",
        remedy="run nodeagent apply, change the plan, or set `drift: mend`",
        gpu=gpu.uuid,
    )


def undisturbing(todo: NodePlan) -> NodePlan:
    """The GPUs whose devices do not change: they wait for no preparation."""
    gpus = tuple(gpu for gpu in todo.gpus if not gpu.changes_devices)
    return replace(todo, gpus=gpus)
