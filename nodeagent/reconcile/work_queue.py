"""What to work on now, given the plan, earlier failures and drift.

The plan lists what would have to be done; `WorkQueue` remembers why some of it waits: a GPU on
which a step failed is retried with backoff, and a GPU that drifted (was in sync with the plan and
was then changed by another program, or lost its layout at a reset) may be left alone.
"""

import math
from typing import NamedTuple

from nodeagent.pacing import Backoff
from nodeagent.plan.desired import DesiredGpu, WhenInUse
from nodeagent.plan.observed import Gpu
from nodeagent.plan.plan import GpuOutcome, GpuPlan, NodePlan, Verdict
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.active_plan import PlanEvaluation
from nodeagent.reconcile.step_problems import not_as_planned
from nodeagent.structs import Struct, replace
from nodeagent.views.text import layout_words, users


class _Failure(Struct, frozen=True):
    """How often a GPU failed since it was last in sync, and what the last attempt left behind."""

    situation: object
    count: int
    retry_at: float
    problems: tuple[Problem, ...]


class Retry(NamedTuple):
    """The next attempt: how many have failed, and in how many seconds it comes at the latest."""

    attempt: int
    pause: float


class WorkQueue:
    """Chooses the GPUs to work on. `mend`: whether drift is repaired. Times are of one clock."""

    def __init__(self, backoff: Backoff, *, mend: bool) -> None:
        self._backoff = backoff
        self._mend = mend
        self._failures: dict[str, _Failure] = {}
        self._in_sync: dict[str, DesiredGpu] = {}  # with what
        self._drifted: dict[str, DesiredGpu] = {}  # from what
        self._chosen_at = -math.inf

    def observe(self, evaluation: PlanEvaluation) -> tuple[Gpu, ...]:
        """Note how the GPUs are; returns those that another program changed since the last time."""
        if evaluation.accepted:  # everything may be tried at once
            self._failures.clear()
        drifted = []
        for gpu_plan in evaluation.gpus:
            gpu = gpu_plan.before
            if gpu_plan.verdict is Verdict.IN_SYNC:
                self._failures.pop(gpu.uuid, None)
            if not gpu.is_there:
                continue
            if gpu_plan.verdict is Verdict.BLOCKED:
                self._wait_for_users(gpu.uuid)
            wanted = evaluation.desired.gpus[gpu.key]
            if gpu_plan.verdict is Verdict.IN_SYNC:
                self._in_sync[gpu.uuid] = wanted
                self._drifted.pop(gpu.uuid, None)
            elif self._in_sync.pop(gpu.uuid, None) == wanted:
                self._drifted[gpu.uuid] = wanted
                drifted.append(gpu)
            elif self._drifted.get(gpu.uuid) != wanted:
                self._drifted.pop(gpu.uuid, None)
        return tuple(drifted)

    def _wait_for_users(self, uuid: str) -> None:
        """The GPU now waits for its users; of the failure only what it left behind is a problem.
        How often it failed still counts: no pod is evicted for it before its time.
        """
        if failure := self._failures.get(uuid):
            lost = tuple(p for p in failure.problems if p.code is Code.NOT_RESTORED)
            self._failures[uuid] = replace(failure, situation=None, problems=lost)

    def postponed(self, evaluation: PlanEvaluation, now: float) -> frozenset[str]:
        """The GPUs, by UUID, that would not be worked on now even if their users were gone."""
        failed = {uuid for uuid, failure in self._failures.items() if now < failure.retry_at}
        return frozenset(
            gpu_plan.before.uuid
            for gpu_plan in evaluation.gpus
            if self._is_left_drifted(gpu_plan) or gpu_plan.before.uuid in failed
        )

    def choose(self, evaluation: PlanEvaluation, now: float) -> tuple[GpuPlan, ...]:
        self._chosen_at = now
        wanted = evaluation.desired.gpus
        todo = {gpu_plan.before.key: gpu_plan for gpu_plan in evaluation.gpus if gpu_plan.steps}
        due = [
            gpu_plan
            for key, gpu_plan in todo.items()
            if not self._is_left_drifted(gpu_plan)
            and self._may_try(gpu_plan.before, wanted[key], now)
        ]
        # A daemon for several GPUs comes when something is done on all, or nothing has to be.
        waiting = todo.keys() - {gpu_plan.before.key for gpu_plan in due}
        return tuple(gpu_plan for gpu_plan in due if waiting.isdisjoint(gpu_plan.joined))

    def _may_try(self, gpu: Gpu, desired: DesiredGpu, now: float) -> bool:
        """Whether nothing failed, the situation has changed since, or the retry is due."""
        failure = self._failures.get(gpu.uuid)
        return (
            failure is None
            or now >= failure.retry_at
            or failure.situation != _situation(gpu, desired)
        )

    def learn(
        self, outcome: GpuOutcome, after: GpuPlan | None, evaluation: PlanEvaluation, now: float
    ) -> Retry | None:
        """Remember what failed: by what is there now, and not by what was said to be done. When it
        is tried again; None where nothing failed.
        """
        if after is None or not (outcome.failed or after.steps):
            return None
        gpu = after.before
        earlier = self._failures.get(gpu.uuid)
        count = earlier.count + 1 if earlier else 1
        pause = self._backoff.after(count)
        self._failures[gpu.uuid] = _Failure(
            _situation(gpu, evaluation.desired.gpus[gpu.uuid]),
            count,
            now + pause,
            outcome.problems or (not_as_planned(gpu),),
        )
        if after.verdict is Verdict.BLOCKED:  # who came meanwhile may be gone at the next look
            self._wait_for_users(gpu.uuid)
        return Retry(count, round(pause, 1))

    def problems(self, gpu_plan: GpuPlan) -> tuple[Problem, ...]:
        if gpu_plan.verdict is Verdict.IN_SYNC:
            return ()
        gpu, is_left = gpu_plan.before, self._is_left_drifted(gpu_plan)
        drift = [gpu.problem(Code.DRIFT, has=layout_words(gpu))] if is_left else []
        failure = self._failures.get(gpu.uuid)
        return (*drift, *gpu_plan.problems, *(failure.problems if failure else ()))

    def next_retry(self, evaluation: PlanEvaluation) -> float | None:
        """The time of the next retry of what failed; None if there is none. What was due when
        the GPUs were chosen, and still waits, waits for what keeps it from being worked on.
        """
        waiting = (p.before.uuid for p in evaluation.gpus if p.steps or _waits_for_eviction(p))
        times = (self._failures[uuid].retry_at for uuid in waiting if uuid in self._failures)
        return min((time for time in times if time > self._chosen_at), default=None)

    def _is_left_drifted(self, gpu_plan: GpuPlan) -> bool:
        return not self._mend and gpu_plan.before.uuid in self._drifted


def _waits_for_eviction(gpu_plan: GpuPlan) -> bool:
    goal = gpu_plan.goal
    evicts = goal is not None and goal.when_in_use is WhenInUse.EVICT
    return evicts and gpu_plan.verdict is Verdict.BLOCKED


def blocking_pids(evaluation: PlanEvaluation) -> set[int]:
    """Everyone on the GPUs that are blocked by users; 0 for those of whom no pid is known."""
    pids: set[int] = set()
    for gpu_plan in evaluation.gpus:
        if any(problem.code is Code.IN_USE for problem in gpu_plan.problems):
            pids |= {user.pid for user in users(gpu_plan.before)} or {0}
    return pids


def undisturbing(todo: NodePlan) -> NodePlan:
    """The GPUs whose devices do not change: they wait for no preparation, but for that of another
    one which their daemon is to serve.
    """
    others = {gpu.before.key for gpu in todo.gpus if gpu.changes_devices}
    gpus = (gpu for gpu in todo.gpus if others.isdisjoint((gpu.before.key, *gpu.joined)))
    return replace(todo, gpus=tuple(gpus))


def _situation(gpu: Gpu, desired: DesiredGpu) -> object:
    """Return what must differ for another attempt to be worth its while at once.

    Ids and UUIDs are left out, because an attempt that was taken back gives new ones.
    """
    layout = sorted(
        (i.profile, i.placement, tuple(sorted(c.slices for c in i.compute))) for i in gpu.instances
    )
    return (desired, gpu.access, gpu.mig, tuple(layout))
