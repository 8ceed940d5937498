"""What came of carrying out a plan, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from nodeagent.plan.observed import Gpu
from nodeagent.plan.plan import GpuPlan, NodePlan
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.steps import Step


class StepResult(StrEnum):
    """`undone`: done, then taken back because a later step of that GPU failed."""

    DONE = "done"
    FAILED = "failed"
    UNDONE = "undone"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step, how it ended and how many seconds it took; `message` says why it failed."""

    step: Step
    result: StepResult
    seconds: float = 0.0
    message: str = ""


@dataclass(frozen=True, slots=True)
class GpuOutcome:
    """`after` was read back from the hardware; `restored` are the steps of the way back, which was
    taken if `turned_back`.
    """

    plan: GpuPlan
    steps: tuple[StepReport, ...]
    after: Gpu
    problems: tuple[Problem, ...] = ()
    restored: tuple[StepReport, ...] = ()
    turned_back: bool = False

    @property
    def failed(self) -> bool:
        return any(report.result is StepResult.FAILED for report in self.steps)

    @property
    def refused_in_use(self) -> bool:
        """Whether a step failed because something is in use, and nothing else is wrong: the GPU
        waits, as if its users had been seen before.
        """
        codes = {problem.code for problem in (*self.plan.problems, *self.problems)}
        return self.failed and codes == {Code.IN_USE}


@dataclass(frozen=True, slots=True)
class NodeOutcome:
    """The outcomes of one round, in the order of the plan."""

    plan: NodePlan
    gpus: tuple[GpuOutcome, ...]
