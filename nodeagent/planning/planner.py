"""Desired and observed in, an ordered list of steps out. Pure, exact, deterministic.

Rules, in this order:

1. A GPU that the document does not name, or that the driver does not answer for, is not touched.
2. What already fits is kept in place; what is in use is a fixed point. Not knowing is in use.
3. Nothing is destroyed unless the whole new layout is known to fit at known placements.
4. Per GPU: destroy, set the mode, reset if it is needed and allowed, create the largest first.
5. A plan that is refused has no steps and says what stands in the way.

For every cut of the steps, planning again from what is then observed leads to the same end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from nodeagent.planning import obstacles
from nodeagent.planning.desired import (
    DesiredGpu,
    DesiredNode,
    Layout,
    MigDisabled,
    MigEnabled,
    WantedInstance,
    WhenInUse,
)
from nodeagent.planning.effects import after
from nodeagent.planning.layout import Card
from nodeagent.planning.observed import Access, ComputeInstance, Gpu, GpuInstance, ObservedNode
from nodeagent.planning.plan import GpuPlan, NodePlan, Policy, Verdict
from nodeagent.planning.problems import Problem
from nodeagent.planning.profiles import device_name
from nodeagent.planning.search import Placed, Target, best_layout
from nodeagent.planning.steps import (
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    ResetGpu,
    SetMigMode,
    Step,
)

_DEFAULT_POLICY = Policy()

# From worst to best: the node's verdict is the worst of its GPUs'.
_SEVERITY = (
    Verdict.INVALID,
    Verdict.UNSATISFIABLE,
    Verdict.BLOCKED,
    Verdict.APPLICABLE,
    Verdict.IN_SYNC,
)


def plan(
    desired: DesiredNode, observed: ObservedNode, policy: Policy = _DEFAULT_POLICY
) -> NodePlan:
    """The steps for every GPU that `desired` names, in the node's GPU order."""
    gpus = tuple(
        plan_gpu(desired.gpus[gpu.uuid], gpu, policy)
        for gpu in observed.gpus
        if gpu.uuid in desired.gpus
    )
    gone = tuple(
        obstacles.vanished(uuid, wanted)
        for uuid, wanted in desired.gpus.items()
        if observed.gpu(uuid) is None
    )
    verdicts = {g.verdict for g in gpus} | ({Verdict.BLOCKED} if gone else set())
    worst = next((v for v in _SEVERITY if v in verdicts), Verdict.IN_SYNC)
    return NodePlan(verdict=worst, gpus=gpus, problems=gone, digest=desired.digest)


def plan_gpu(desired: DesiredGpu, gpu: Gpu, policy: Policy = _DEFAULT_POLICY) -> GpuPlan:
    """The steps for one GPU."""
    result = _plan_gpu(desired, gpu, policy)
    if result.verdict is Verdict.BLOCKED and desired.when_in_use is WhenInUse.EVICT:
        return replace(result, problems=tuple(map(obstacles.without_eviction, result.problems)))
    return result


def _plan_gpu(desired: DesiredGpu, gpu: Gpu, policy: Policy) -> GpuPlan:
    if gpu.access is not Access.OK:
        return _refused(gpu, Verdict.BLOCKED, obstacles.inaccessible(gpu, desired))
    match desired.mig:
        case None:
            return _in_sync(gpu)
        case MigDisabled(path=path):
            return _disable(gpu, path, policy)
        case MigEnabled(path=path):
            return _in_sync(gpu) if _mode_on(gpu) else _enable(gpu, None, path, policy)
        case Layout(instances=wanted, path=path):
            if _mode_on(gpu):
                return _lay_out(gpu, wanted, path)
            return _enable(gpu, wanted, path, policy)
        case _:
            assert_never(desired.mig)


def layout_of(gpu: Gpu) -> DesiredGpu:
    """What the GPU is now, as something that can be desired: every device where it lies."""
    path = f"GPU {gpu.index} as it was"
    if gpu.mig is None or not gpu.mig.current:
        return DesiredGpu(mig=None if gpu.mig is None else MigDisabled(path), path=path)
    wanted = tuple(
        WantedInstance(i.profile, c.slices, i.placement.start, path)
        for i in gpu.instances
        for c in i.compute
    )
    return DesiredGpu(mig=Layout(wanted, path), path=path)


def _mode_on(gpu: Gpu) -> bool:
    return gpu.mig is not None and gpu.mig.current and gpu.mig.pending


def _in_sync(gpu: Gpu) -> GpuPlan:
    return GpuPlan(before=gpu, verdict=Verdict.IN_SYNC, steps=(), after=gpu)


def _refused(gpu: Gpu, verdict: Verdict, *problems: Problem) -> GpuPlan:
    return GpuPlan(before=gpu, verdict=verdict, steps=(), after=gpu, problems=problems)


def _applicable(gpu: Gpu, steps: tuple[Step, ...], *warnings: Problem) -> GpuPlan:
    if not steps:
        return _in_sync(gpu)
    return GpuPlan(
        before=gpu,
        verdict=Verdict.APPLICABLE,
        steps=steps,
        after=after(gpu, steps),
        problems=warnings,
    )


# --- MIG mode ---------------------------------------------------------------------------------


def _enable(
    gpu: Gpu, wanted: tuple[WantedInstance, ...] | None, path: str, policy: Policy
) -> GpuPlan:
    """Mode on, then the layout (`wanted` None: whatever is there may stay)."""
    if gpu.mig is None:
        return _refused(gpu, Verdict.UNSATISFIABLE, obstacles.not_mig_capable(gpu, path))
    if gpu.mig.current:
        on = SetMigMode(gpu.uuid, True, "switching MIG off was pending, which would undo the plan")
        return _then_lay_out(gpu, (on,), wanted, path)
    if not gpu.idle:
        return _refused(gpu, Verdict.BLOCKED, obstacles.mode_in_use(gpu, path, enable=True))
    steps: tuple[Step, ...] = ()
    if not gpu.mig.pending:
        steps = (SetMigMode(gpu.uuid, True, f"{path} asks for MIG"),)
    if gpu.mode_change_needs_reset:
        if gpu.passthrough or not policy.reset_when_idle:
            needed = obstacles.reset_required(gpu, path, policy, enable=True)
            if not steps:
                return _refused(gpu, Verdict.BLOCKED, needed)
            return _applicable(gpu, steps, needed)
        steps = (*steps, ResetGpu(gpu.uuid, "this card's MIG mode changes at a GPU reset"))
    return _then_lay_out(gpu, steps, wanted, path)


def _then_lay_out(
    gpu: Gpu, steps: tuple[Step, ...], wanted: tuple[WantedInstance, ...] | None, path: str
) -> GpuPlan:
    """`steps` switch the mode; the layout is planned for what they lead to."""
    if wanted is None:
        return _applicable(gpu, steps)
    rest = _lay_out(after(gpu, steps), wanted, path)
    if rest.verdict in (Verdict.BLOCKED, Verdict.UNSATISFIABLE):
        return _refused(gpu, rest.verdict, *rest.problems)
    return _applicable(gpu, (*steps, *rest.steps))


def _disable(gpu: Gpu, path: str, policy: Policy) -> GpuPlan:
    """All instances go, then the mode; only on a GPU that is proven idle."""
    if gpu.mig is None or not (gpu.mig.current or gpu.mig.pending):
        return _in_sync(gpu)
    if not gpu.mig.current:  # switching on was pending; taking that back needs no reset
        off = SetMigMode(gpu.uuid, False, "switching MIG on was pending")
        return _applicable(gpu, (off,))
    if gpu.mode_change_needs_reset and gpu.passthrough:
        return _refused(gpu, Verdict.UNSATISFIABLE, obstacles.mode_cannot_return(gpu, path))
    if not gpu.idle:
        return _refused(gpu, Verdict.BLOCKED, obstacles.mode_in_use(gpu, path, enable=False))
    steps: list[Step] = [
        _destroy(gpu, i, "MIG is to be switched off") for i in _in_slice_order(gpu.instances)
    ]
    if gpu.mig.pending:
        steps.append(SetMigMode(gpu.uuid, False, f"{path} says that MIG is disabled"))
    if gpu.mode_change_needs_reset:
        if not policy.reset_when_idle:
            needed = obstacles.reset_required(gpu, path, policy, enable=False)
            # Without the reset the instances would be gone for nothing.
            if gpu.instances or not steps:
                return _refused(gpu, Verdict.BLOCKED, needed)
            return _applicable(gpu, tuple(steps), needed)
        steps.append(ResetGpu(gpu.uuid, "this card's MIG mode changes at a GPU reset"))
    return _applicable(gpu, tuple(steps))


# --- the layout -------------------------------------------------------------------------------


def _lay_out(gpu: Gpu, wanted: tuple[WantedInstance, ...], path: str) -> GpuPlan:
    card = Card.of(gpu)
    unknown = tuple(w for w in wanted if w.profile not in card.profiles)
    if unknown:
        return _refused(gpu, Verdict.UNSATISFIABLE, obstacles.not_offered(gpu, unknown))
    # A process of which no instance is known may be on any of them.
    everything = bool(gpu.usage.processes)
    target = best_layout(card, wanted, gpu.instances, all_in_use=everything)
    if target is None:
        return _refused(gpu, Verdict.UNSATISFIABLE, obstacles.does_not_fit(gpu, wanted, path))
    blockers = _taken_in_use(target, everything=everything)
    if blockers:
        return _refused(
            gpu, Verdict.BLOCKED, *obstacles.in_the_way(gpu, wanted, target, blockers, path)
        )
    steps = (*_destructions(gpu, target), *_creations(gpu, card, target))
    if gpu.usage.processes and any(isinstance(s, CreateGpuInstance) for s in steps):
        # The driver refuses new GPU instances while a client from before holds the GPU.
        return _refused(gpu, Verdict.BLOCKED, obstacles.gpu_held(gpu, path))
    return _applicable(gpu, steps)


def _taken_in_use(target: Target, *, everything: bool) -> tuple[obstacles.Blocker, ...]:
    """What the target would take away although it is in use."""
    lost = [(i, c) for i in target.gone for c in i.compute]
    lost += [(p.existing, c) for p in target.placed if p.existing for c in p.change.destroyed]
    return tuple(obstacles.Blocker(i, c) for i, c in lost if everything or c.usage.in_use)


def _in_slice_order(instances: tuple[GpuInstance, ...]) -> list[GpuInstance]:
    return sorted(instances, key=lambda i: (i.placement, i.id))


def _destroy(gpu: Gpu, instance: GpuInstance, reason: str) -> DestroyGpuInstance:
    return DestroyGpuInstance(
        gpu=gpu.uuid,
        instance=instance.id,
        profile=instance.profile,
        placement=instance.placement,
        devices=tuple(c.uuid for c in instance.compute),
        reason=reason,
    )


def _destructions(gpu: Gpu, target: Target) -> list[Step]:
    wanted = {p.division.profile for p in target.placed}
    steps: list[Step] = [
        _destroy(gpu, i, _why_gone(i, wanted)) for i in _in_slice_order(target.gone)
    ]
    for placed in target.placed:
        if placed.existing is not None:
            steps += _reductions(gpu, placed.existing, placed.change.destroyed)
    return steps


def _reductions(
    gpu: Gpu, instance: GpuInstance, gone: tuple[ComputeInstance, ...]
) -> list[DestroyComputeInstance]:
    return [
        DestroyComputeInstance(
            gpu=gpu.uuid,
            instance=instance.id,
            compute=device.id,
            profile=device.profile,
            placement=instance.placement,
            device=device.uuid,
            reason="the plan divides its GPU instance differently",
        )
        for device in gone
    ]


def _why_gone(instance: GpuInstance, wanted: set[str]) -> str:
    if not instance.compute:
        return "half-made: it has no compute instance, and its place is needed"
    if instance.profile not in wanted:
        return f"the plan has no {instance.profile}"
    return "the plan has fewer of it, or its place is needed for another"


def _creations(gpu: Gpu, card: Card, target: Target) -> list[Step]:
    order = {name: n for n, name in enumerate(card.profiles)}
    placed = sorted(target.placed, key=lambda p: (order[p.division.profile], p.start))
    steps: list[Step] = [_create(gpu, card, p) for p in placed if p.existing is None]
    for p in placed:
        if p.existing is not None:
            steps += _additions(gpu, card, p.existing, p.change.added)
    return steps


def _create(gpu: Gpu, card: Card, placed: Placed) -> CreateGpuInstance:
    profile = card.profiles[placed.division.profile].profile
    placement = next(x for x in profile.placements if x.start == placed.start)
    fixed = placed.division.start >= 0
    return CreateGpuInstance(
        gpu=gpu.uuid,
        profile_id=profile.id,
        profile=profile.name,
        placement=placement,
        compute=placed.division.compute,
        reason="the plan asks for it here" if fixed else "missing; this place leaves most room",
    )


def _additions(
    gpu: Gpu, card: Card, instance: GpuInstance, added: tuple[int, ...]
) -> list[CreateComputeInstance]:
    whole = card.profiles[instance.profile].profile.slices
    reason = (
        "missing in a GPU instance that is there"
        if instance.compute
        else "completes a half-made GPU instance"
    )
    return [
        CreateComputeInstance(
            gpu=gpu.uuid,
            instance=instance.id,
            profile=device_name(instance.profile, whole, slices),
            slices=slices,
            placement=instance.placement,
            reason=reason,
        )
        for slices in added
    ]
