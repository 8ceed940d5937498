"""What a plan does not do where a GPU is sick, and what is said then.

The search itself keeps new instances off sick memory slices. Here is the rest: a GPU that is sick
as a whole is left alone, and one with sick slices is not handed out as a whole.
"""

from __future__ import annotations

from nodeagent.plan.observed import Gpu
from nodeagent.plan.plan import GpuPlan, Verdict
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.steps import ResetGpu, SetMigMode


def spared(result: GpuPlan, path: str) -> GpuPlan:
    """The plan for a GPU, or its refusal where it would work on what is sick."""
    gpu = result.before
    if result.verdict is not Verdict.APPLICABLE:
        return result
    if gpu.sickness.whole:
        return GpuPlan.refused(gpu, Verdict.BLOCKED, _sick_gpu(gpu, path))
    if gpu.sickness.slices and _hands_out_all(result):
        return GpuPlan.refused(gpu, Verdict.BLOCKED, sick_slices(gpu, path))
    return result


def _hands_out_all(result: GpuPlan) -> bool:
    """Whether MIG goes off and the sick slices are then anybody's; a reset mends them first."""
    off = any(isinstance(step, SetMigMode) and not step.enabled for step in result.steps)
    return off and not any(isinstance(step, ResetGpu) for step in result.steps)


def _sick_gpu(gpu: Gpu, path: str) -> Problem:
    return _unhealthy(gpu, f"nothing is changed on {gpu.title}", path)


def sick_slices(gpu: Gpu, path: str) -> Problem:
    """What is wanted would need memory slices that are sick."""
    sick = ", ".join(str(n) for n in range(gpu.sickness.slices.bit_length()) if _is_sick(gpu, n))
    what = f"the plan needs sick memory slices of {gpu.title} (sick: {sick})"
    return _unhealthy(gpu, what, path)


def _is_sick(gpu: Gpu, number: int) -> bool:
    return bool(gpu.sickness.slices >> number & 1)


def _unhealthy(gpu: Gpu, what: str, path: str) -> Problem:
    why = f": {gpu.sickness.why}" if gpu.sickness.why else ""
    return Problem(Code.GPU_UNHEALTHY, f"{what}{why}", gpu.sickness.remedy, gpu=gpu.uuid, path=path)
