"""Switching MIG mode: only on a GPU that is proven idle, and only where it leads somewhere.

Some cards change their mode at once, others at a GPU reset, which a setting has to allow. Which it
is depends on the driver too (nvml.h allows both on every card). The plan takes the expected one;
the executor reads the result and plans the rest again where it differs.
"""

from __future__ import annotations

from nodeagent.plan import obstacles
from nodeagent.plan.desired import WantedInstance
from nodeagent.plan.layout_steps import destroy, in_slice_order, lay_out
from nodeagent.plan.observed import Gpu
from nodeagent.plan.plan import GpuPlan, Policy, Verdict
from nodeagent.plan.simulate_steps import after
from nodeagent.plan.steps import ResetGpu, SetMigMode, Step


def enable(
    gpu: Gpu, wanted: tuple[WantedInstance, ...] | None, path: str, policy: Policy
) -> GpuPlan:
    """Mode on, then the layout (`wanted` None: whatever is there may stay)."""
    if gpu.mig is None:
        return GpuPlan.refused(gpu, Verdict.UNSATISFIABLE, obstacles.not_mig_capable(gpu, path))
    if gpu.mig.current:
        on = SetMigMode(gpu.uuid, True, "switching MIG off was pending, which would undo the plan")
        return _then_lay_out(gpu, (on,), wanted, path)
    if not gpu.idle:
        return GpuPlan.refused(gpu, Verdict.BLOCKED, obstacles.mode_in_use(gpu, path, enable=True))
    steps: tuple[Step, ...] = ()
    # A pending mode that needs no reset is set again.
    if not (gpu.mig.pending and gpu.mode_change_needs_reset):
        steps = (SetMigMode(gpu.uuid, True, f"{path} asks for MIG"),)
    if gpu.mode_change_needs_reset:
        if gpu.passthrough or not policy.reset_when_idle:
            needed = obstacles.reset_required(gpu, path, policy, enable=True)
            if not steps:
                return GpuPlan.refused(gpu, Verdict.BLOCKED, needed)
            return GpuPlan.applicable(gpu, steps, needed)
        steps = (*steps, ResetGpu(gpu.uuid, "this card's MIG mode changes at a GPU reset"))
    return _then_lay_out(gpu, steps, wanted, path)


def _then_lay_out(
    gpu: Gpu, steps: tuple[Step, ...], wanted: tuple[WantedInstance, ...] | None, path: str
) -> GpuPlan:
    """`steps` switch the mode; the layout is planned for what they lead to."""
    if wanted is None:
        return GpuPlan.applicable(gpu, steps)
    rest = lay_out(after(gpu, steps), wanted, path)
    if rest.verdict in (Verdict.BLOCKED, Verdict.UNSATISFIABLE):
        return GpuPlan.refused(gpu, rest.verdict, *rest.problems)
    return GpuPlan.applicable(gpu, (*steps, *rest.steps))


def disable(gpu: Gpu, path: str, policy: Policy) -> GpuPlan:
    """All instances go, then the mode; only on a GPU that is proven idle."""
    if gpu.mig is None or not (gpu.mig.current or gpu.mig.pending):
        return GpuPlan.in_sync(gpu)
    if not gpu.mig.current:  # switching on was pending; taking that back needs no reset
        off = SetMigMode(gpu.uuid, False, "switching MIG on was pending")
        return GpuPlan.applicable(gpu, (off,))
    if gpu.mode_change_needs_reset and gpu.passthrough:
        return GpuPlan.refused(gpu, Verdict.UNSATISFIABLE, obstacles.mode_cannot_return(gpu, path))
    if not gpu.idle:
        return GpuPlan.refused(gpu, Verdict.BLOCKED, obstacles.mode_in_use(gpu, path, enable=False))
    steps: list[Step] = [
        destroy(gpu, i, "MIG is to be switched off") for i in in_slice_order(gpu.instances)
    ]
    if gpu.mig.pending:
        steps.append(SetMigMode(gpu.uuid, False, f"{path} says that MIG is disabled"))
    if gpu.mode_change_needs_reset:
        if not policy.reset_when_idle:
            needed = obstacles.reset_required(gpu, path, policy, enable=False)
            # Without the reset the instances would be gone for nothing.
            if gpu.instances or not gpu.mig.pending:
                return GpuPlan.refused(gpu, Verdict.BLOCKED, needed)
            return GpuPlan.applicable(gpu, tuple(steps), needed)
        steps.append(ResetGpu(gpu.uuid, "this card's MIG mode changes at a GPU reset"))
    return GpuPlan.applicable(gpu, tuple(steps))
