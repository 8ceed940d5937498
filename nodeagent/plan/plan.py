"""The planner's answer for each GPU (a verdict, the steps, the picture afterwards), and the outcome
of its execution.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from nodeagent.plan.desired import DesiredGpu, Layout
from nodeagent.plan.observed import Gpu
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.steps import (
    ResetGpu,
    SetComputeMode,
    SetMigMode,
    SetTimeSlice,
    StartMps,
    Step,
    StopMps,
)
from nodeagent.structs import Struct


class Verdict(StrEnum):
    """How a GPU stands to its goal, from best to worst; the values are those of the JSON output."""

    IN_SYNC = "inSync"
    APPLICABLE = "applicable"
    BLOCKED = "blocked"
    UNSATISFIABLE = "unsatisfiable"
    INVALID = "invalid"


def worst(verdicts: Collection[Verdict]) -> Verdict:
    """The node's verdict: the worst of its GPUs'; in sync when there are none."""
    return max(verdicts, key=list(Verdict).index, default=Verdict.IN_SYNC)


# Steps that change how devices are shared, and no device.
_SHARING_STEPS = (SetComputeMode, SetTimeSlice, StartMps, StopMps)


class Policy(Struct, frozen=True):
    """The settings that bear on planning.

    `reset_when_idle`: a GPU proven idle may be reset. `exclusive_mps`: a device with MPS gets
    compute mode EXCLUSIVE_PROCESS, else its mode is left alone. `evicts`: there is a cluster, in
    which the pods go that an entry with `whenInUse: evict` has in its way.
    """

    reset_when_idle: bool = False
    exclusive_mps: bool = True
    evicts: bool = False


class GpuPlan(Struct, frozen=True):
    """`before` as observed, `after` as it would be; `steps` is empty unless APPLICABLE.

    `problems` of an APPLICABLE plan are warnings (what will still be missing afterwards). `goal` is
    what it was planned for, to plan again when a step has not the result that was planned.
    """

    before: Gpu
    verdict: Verdict
    steps: tuple[Step, ...]
    after: Gpu
    problems: tuple[Problem, ...] = ()
    goal: DesiredGpu | None = None

    @classmethod
    def in_sync(cls, gpu: Gpu) -> GpuPlan:
        return cls(before=gpu, verdict=Verdict.IN_SYNC, steps=(), after=gpu)

    @classmethod
    def refused(cls, gpu: Gpu, verdict: Verdict, *problems: Problem) -> GpuPlan:
        return cls(before=gpu, verdict=verdict, steps=(), after=gpu, problems=problems)

    @property
    def changes_devices(self) -> bool:
        """Whether the devices that a device plugin can offer differ after the plan."""
        pends = self.before.mode_change_needs_reset  # a mode that is set waits for a reset
        return any(
            not isinstance(step, _SHARING_STEPS) and not (pends and isinstance(step, SetMigMode))
            for step in self.steps
        )

    @property
    def joined(self) -> tuple[str, ...]:
        """The UUIDs of all GPUs of a daemon for several that is started here."""
        started = (s.wanted.devices for s in self.steps if isinstance(s, StartMps))
        return next(started, ())

    @property
    def respelled(self) -> dict[str, str]:
        """Map the names of profiles in the plan to the card's, where these differ."""
        layout = self.goal and self.goal.mig
        wanted = layout.instances if isinstance(layout, Layout) else ()
        return {instance.written: instance.profile for instance in wanted if instance.written}


class NodePlan(Struct, frozen=True):
    """One `GpuPlan` for each GPU the document names; `problems` are those of no single GPU."""

    verdict: Verdict
    gpus: tuple[GpuPlan, ...] = ()
    problems: tuple[Problem, ...] = ()
    digest: str = ""

    @property
    def changes_devices(self) -> bool:
        """Whether the devices that a device plugin can offer differ after the plan."""
        return any(gpu.changes_devices for gpu in self.gpus)

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(step for gpu in self.gpus for step in gpu.steps)


class StepResult(StrEnum):
    """How a step ended; `undone`: done, and rolled back since a later step of the GPU failed."""

    DONE = "done"
    FAILED = "failed"
    UNDONE = "undone"
    SKIPPED = "skipped"


class StepReport(Struct, frozen=True):
    """One step, how it ended and how many seconds it took; `message` is the reason of a failure."""

    step: Step
    result: StepResult
    seconds: float = 0.0
    message: str = ""


class GpuOutcome(Struct, frozen=True):
    """What became of one GPU. `after` was read back from the hardware. `turned_back`: it was
    rolled back, by the steps in `restored`.
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
    def restarted_driver(self) -> bool:
        """Whether the driver was restarted, by which other GPUs may have lost their instances, as
        they do without persistence mode.
        """
        return any(isinstance(one.step, ResetGpu) for one in (*self.steps, *self.restored))

    @property
    def as_planned(self) -> bool:
        """Whether the GPU was read back as the plan says."""
        return not (self.turned_back or self.problems)

    @property
    def refused_in_use(self) -> bool:
        """Whether a step failed because something is in use, and nothing else is wrong: the GPU
        waits, as if its users had been seen before.
        """
        codes = {problem.code for problem in (*self.plan.problems, *self.problems)}
        return self.failed and codes == {Code.IN_USE}


class NodeOutcome(Struct, frozen=True):
    """The outcomes of one round, in the order of the plan."""

    plan: NodePlan
    gpus: tuple[GpuOutcome, ...]
