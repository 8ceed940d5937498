"""The planner's answer for each GPU (a verdict, the steps, the picture afterwards), and the outcome
of its execution.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import assert_never

from nodeagent.plan.desired import DesiredGpu
from nodeagent.plan.observed import Gpu
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.steps import (
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    ResetGpu,
    SetComputeMode,
    SetMigMode,
    SetTimeSlice,
    StartMps,
    Step,
    StopMps,
    after,
)


class Verdict(StrEnum):
    """Values are those of the JSON output."""

    IN_SYNC = "inSync"
    APPLICABLE = "applicable"
    BLOCKED = "blocked"
    UNSATISFIABLE = "unsatisfiable"
    INVALID = "invalid"


# From worst to best: the node's verdict is the worst of its GPUs'.
_SEVERITY = (
    Verdict.INVALID,
    Verdict.UNSATISFIABLE,
    Verdict.BLOCKED,
    Verdict.APPLICABLE,
    Verdict.IN_SYNC,
)


def worst(verdicts: Collection[Verdict]) -> Verdict:
    """The verdict of several GPUs together; in sync when there are none."""
    return next((v for v in _SEVERITY if v in verdicts), Verdict.IN_SYNC)


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings that bear on planning.

    `reset_when_idle`: a GPU proven idle may be reset. `exclusive_mps`: a device with MPS gets
    compute mode EXCLUSIVE_PROCESS, else its mode is left alone.
    """

    reset_when_idle: bool = False
    exclusive_mps: bool = True


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """`before` as observed, `after` as it would be; `steps` is empty unless APPLICABLE.

    `problems` of an APPLICABLE plan are warnings (what will still be missing afterwards). `goal` is
    what it was planned for, to plan again when a step has another result.
    """

    before: Gpu
    verdict: Verdict
    steps: tuple[Step, ...]
    after: Gpu
    problems: tuple[Problem, ...] = ()
    goal: DesiredGpu | None = field(default=None, compare=False, repr=False)

    @classmethod
    def in_sync(cls, gpu: Gpu) -> GpuPlan:
        """Nothing to do."""
        return cls(before=gpu, verdict=Verdict.IN_SYNC, steps=(), after=gpu)

    @classmethod
    def refused(cls, gpu: Gpu, verdict: Verdict, *problems: Problem) -> GpuPlan:
        """Nothing is done, and why."""
        return cls(before=gpu, verdict=verdict, steps=(), after=gpu, problems=problems)

    @classmethod
    def applicable(cls, gpu: Gpu, steps: tuple[Step, ...], *warnings: Problem) -> GpuPlan:
        """Steps to take; none of them means that nothing is to do."""
        if not steps:
            return cls.in_sync(gpu)
        return cls(gpu, Verdict.APPLICABLE, steps, after(gpu, steps), warnings)

    @property
    def changes_devices(self) -> bool:
        """Whether the devices that a device plugin can offer differ after the plan."""
        return any(self._changes_devices(step) for step in self.steps)

    def _changes_devices(self, step: Step) -> bool:
        match step:
            case SetMigMode():
                return not self.before.mode_change_needs_reset  # else it only waits for a reset
            case (
                ResetGpu()
                | DestroyGpuInstance()
                | DestroyComputeInstance()
                | CreateGpuInstance()
                | CreateComputeInstance()
            ):
                return True
            case SetComputeMode() | SetTimeSlice() | StartMps() | StopMps():
                return False
            case _:
                assert_never(step)


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One `GpuPlan` for each GPU the document names; `problems` are those of no single GPU."""

    verdict: Verdict
    gpus: tuple[GpuPlan, ...] = ()
    problems: tuple[Problem, ...] = field(default=())
    digest: str = ""

    @property
    def changes_devices(self) -> bool:
        """Whether the devices that a device plugin can offer differ after the plan."""
        return any(gpu.changes_devices for gpu in self.gpus)

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(step for gpu in self.gpus for step in gpu.steps)


class StepResult(StrEnum):
    """`undone`: done, then taken back because a later step of that GPU failed."""

    DONE = "done"
    FAILED = "failed"
    UNDONE = "undone"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step, how it ended and how many seconds it took; `message` is the reason of a failure."""

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
