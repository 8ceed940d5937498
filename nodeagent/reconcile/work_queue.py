"""What is to be done now, given what failed and what drifted before.

The plan says what would have to be done; this remembers why some of it has to wait.
"""

from __future__ import annotations

from nodeagent.execute.step_problems import not_as_planned
from nodeagent.plan.observed import Access, Gpu
from nodeagent.plan.outcome import GpuOutcome
from nodeagent.plan.plan import GpuPlan, Verdict
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.active_plan import Judgement
from nodeagent.reconcile.backoff import Attempts, Backoff
from nodeagent.reconcile.drift import Drift, drift_problem
from nodeagent.views.text import users


class Agenda:
    """`mend`: whether drift is repaired or only reported. Times are in seconds of one clock."""

    def __init__(self, backoff: Backoff, *, mend: bool) -> None:
        self._attempts = Attempts(backoff)
        self._drift = Drift()
        self._mend = mend

    def look(self, judgement: Judgement) -> tuple[Gpu, ...]:
        """Take note of what is so now; the GPUs that somebody else changed since the last look."""
        if judgement.accepted:
            self._attempts.forget_all()
        if judgement.plan is None:
            return ()
        for gpu_plan in judgement.plan.gpus:
            uuid = gpu_plan.before.uuid
            if gpu_plan.verdict is Verdict.IN_SYNC:
                self._attempts.settled(uuid)
            elif gpu_plan.verdict is Verdict.BLOCKED and gpu_plan.before.access is Access.OK:
                self._attempts.blocked(uuid)
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
            and self._attempts.may_try(gpu_plan.before, wanted[gpu_plan.before.uuid], now)
        )

    def learn(
        self, outcome: GpuOutcome, after: GpuPlan | None, judgement: Judgement, now: float
    ) -> None:
        """Remember what failed: by what is there now, and not by what was said to be done."""
        if after is None or not (outcome.failed or after.steps):
            return
        uuid = after.before.uuid
        problems = outcome.problems or (not_as_planned(after.before),)
        self._attempts.failed(after.before, judgement.desired.gpus[uuid], problems, now)

    def problems(self, gpu_plan: GpuPlan) -> tuple[Problem, ...]:
        """Everything that is wrong with one GPU."""
        if gpu_plan.verdict is Verdict.IN_SYNC:
            return ()
        drift = (drift_problem(gpu_plan.before),) if self._is_left_drifted(gpu_plan) else ()
        return (*drift, *gpu_plan.problems, *self._attempts.problems(gpu_plan.before.uuid))

    def next_retry(self, judgement: Judgement) -> float | None:
        """When something that failed is to be tried again; None when nothing is."""
        waiting = [p.before.uuid for p in judgement.plan.gpus if p.steps] if judgement.plan else []
        return self._attempts.next_retry(waiting)

    def _is_left_drifted(self, gpu_plan: GpuPlan) -> bool:
        return not self._mend and self._drift.has(gpu_plan.before.uuid)


def blocking_pids(judgement: Judgement) -> set[int]:
    """Everyone on the GPUs that are blocked by users; 0 for those of whom no pid is known."""
    pids: set[int] = set()
    for gpu_plan in judgement.plan.gpus if judgement.plan else ():
        if any(problem.code is Code.IN_USE for problem in gpu_plan.problems):
            pids |= {user.pid for user in users(gpu_plan.before)} or {0}
    return pids
