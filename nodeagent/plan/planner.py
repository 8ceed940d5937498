"""Desired and observed in, an ordered list of steps out. Pure, exact, deterministic.

Rules, in this order:

1. A GPU that the document does not name, or that the driver does not answer for, is not touched.
2. What already fits is kept in place; what is in use is a fixed point. Not knowing is in use.
   Where a GPU is unhealthy nothing new comes; what is there stays.
3. Nothing is destroyed unless the whole new layout is known to fit at known placements.
4. Per GPU: stop MPS daemons, destroy, set the mode, reset if it is needed and allowed, create the
   largest first, start daemons.
5. A plan that is refused has no steps and names what is in the way.

For every cut of the steps, planning again from what is then observed leads to the same end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from nodeagent.plan import refusals
from nodeagent.plan.desired import (
    DesiredGpu,
    DesiredNode,
    Layout,
    MigDisabled,
    MigEnabled,
    WantedInstance,
    WhenInUse,
)
from nodeagent.plan.mig import disable, enable, lay_out
from nodeagent.plan.mps import add_sharing, concerns
from nodeagent.plan.observed import Access, Gpu, ObservedNode
from nodeagent.plan.plan import GpuPlan, NodePlan, Policy, Verdict, worst
from nodeagent.plan.steps import ResetGpu, SetMigMode
from nodeagent.plan.usage import as_used

_DEFAULT_POLICY = Policy()


def plan(
    desired: DesiredNode, observed: ObservedNode, policy: Policy = _DEFAULT_POLICY
) -> NodePlan:
    """The steps for every GPU that `desired` names, in the node's GPU order."""
    gpus = tuple(
        plan_gpu(desired.gpus[gpu.key], gpu, policy)
        for gpu in observed.gpus
        if gpu.key in desired.gpus
    )
    gone = tuple(
        refusals.vanished(key, wanted)
        for key, wanted in desired.gpus.items()
        if all(gpu.key != key for gpu in observed.gpus)
    )
    verdicts = {g.verdict for g in gpus} | ({Verdict.BLOCKED} if gone else set())
    return NodePlan(verdict=worst(verdicts), gpus=gpus, problems=gone, digest=desired.digest)


def plan_gpu(desired: DesiredGpu, gpu: Gpu, policy: Policy = _DEFAULT_POLICY) -> GpuPlan:
    """The steps for one GPU."""
    result = replace(_spared(_plan_gpu(desired, gpu, policy), desired.path), goal=desired)
    if result.verdict is Verdict.BLOCKED and desired.when_in_use is WhenInUse.EVICT:
        return replace(result, problems=tuple(map(refusals.without_eviction, result.problems)))
    return result


def _plan_gpu(desired: DesiredGpu, gpu: Gpu, policy: Policy) -> GpuPlan:
    if gpu.access is not Access.OK:
        return GpuPlan.refused(gpu, Verdict.BLOCKED, refusals.inaccessible(gpu, desired))
    if not concerns(desired, gpu):
        return _plan_mig(desired, gpu, policy)
    return add_sharing(gpu, _plan_mig(desired, as_used(gpu), policy), desired, policy)


def _plan_mig(desired: DesiredGpu, gpu: Gpu, policy: Policy) -> GpuPlan:
    match desired.mig:
        case None:
            return GpuPlan.in_sync(gpu)
        case MigDisabled(path=path):
            return disable(gpu, path, policy)
        case MigEnabled(path=path):
            return GpuPlan.in_sync(gpu) if _mode_on(gpu) else enable(gpu, None, path, policy)
        case Layout(instances=wanted, path=path):
            if _mode_on(gpu):
                return lay_out(gpu, wanted, path)
            return enable(gpu, wanted, path, policy)
        case _:
            assert_never(desired.mig)


def layout_of(gpu: Gpu) -> DesiredGpu:
    """What the GPU is now, as something that can be desired: every device where it lies, with the
    daemon it has. Compute modes follow from that.
    """
    path = f"GPU {gpu.index} as it was"
    if gpu.mig is None or not gpu.mig.current:
        return DesiredGpu(
            mig=None if gpu.mig is None else MigDisabled(path),
            path=path,
            mps=gpu.mps.runs if gpu.mps else None,
            time_slice=gpu.time_slice if _takes_turns(gpu) else None,
        )
    wanted = tuple(
        WantedInstance(i.profile, c.slices, i.placement.start, path, c.mps.runs if c.mps else None)
        for i in gpu.instances
        for c in i.compute
    )
    return DesiredGpu(mig=Layout(wanted, path), path=path)


def _takes_turns(gpu: Gpu) -> bool:
    """Whether the agent made it so; a time slice that it did not set comes back by itself.

    Where that was the same before, only the compute mode shows it, changed without a daemon.
    """
    return gpu.earlier_time_slice is not None or (gpu.mps is None and gpu.earlier_mode is not None)


def _mode_on(gpu: Gpu) -> bool:
    return gpu.mig is not None and gpu.mig.current and gpu.mig.pending


def _spared(result: GpuPlan, path: str) -> GpuPlan:
    """The plan for a GPU, or its refusal where it would work on unhealthy parts."""
    gpu = result.before
    if result.verdict is not Verdict.APPLICABLE:
        return result
    if gpu.health_limits.whole:
        return GpuPlan.refused(gpu, Verdict.BLOCKED, refusals.unhealthy_gpu(gpu, path))
    if gpu.health_limits.slices and _hands_out_all(result):
        return GpuPlan.refused(gpu, Verdict.BLOCKED, refusals.unhealthy_slices(gpu, path))
    return result


def _hands_out_all(result: GpuPlan) -> bool:
    """Whether MIG goes off, which would hand out unhealthy slices too; a reset mends them first."""
    off = any(isinstance(step, SetMigMode) and not step.enabled for step in result.steps)
    return off and not any(isinstance(step, ResetGpu) for step in result.steps)
