"""MIG: from the mode and the layout there are to those wanted.

The mode is switched only on a GPU that is proven idle, and only where that leads somewhere. Some
cards change it at once, others at a GPU reset, which a setting has to allow. Which it is depends on
the driver too (nvml.h allows both on every card). The plan takes the expected one; the executor
reads the result and plans the rest again where it differs.
"""

from __future__ import annotations

from nodeagent.plan import refusals
from nodeagent.plan.desired import WantedInstance
from nodeagent.plan.layouts import Card
from nodeagent.plan.names import device_name
from nodeagent.plan.observed import ComputeInstance, Gpu, GpuInstance
from nodeagent.plan.plan import GpuPlan, Policy, Verdict
from nodeagent.plan.search import Placed, Target, best_layout
from nodeagent.plan.steps import (
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    ResetGpu,
    SetMigMode,
    Step,
    after,
)

# --- the layout -------------------------------------------------------------------------------


def lay_out(gpu: Gpu, wanted: tuple[WantedInstance, ...], path: str) -> GpuPlan:
    """The steps to exactly these devices, on a GPU with MIG on."""
    card = Card.of(gpu)
    unknown = tuple(w for w in wanted if w.profile not in card.profiles)
    if unknown:
        return GpuPlan.refused(gpu, Verdict.UNSATISFIABLE, refusals.not_offered(gpu, unknown))
    # A process of which no instance is known may be on any of them; so may one that the driver
    # does not list, although the devices' own lists are empty.
    everything = gpu.usage.in_use
    target = best_layout(
        card, wanted, gpu.instances, all_in_use=everything, unhealthy=gpu.health_limits.slices
    )
    if target is None and gpu.health_limits.slices and best_layout(card, wanted, ()) is not None:
        return GpuPlan.refused(gpu, Verdict.BLOCKED, refusals.unhealthy_slices(gpu, path))
    if target is None:
        return GpuPlan.refused(gpu, Verdict.UNSATISFIABLE, refusals.does_not_fit(gpu, wanted, path))
    blockers = _taken_in_use(target, everything=everything)
    if blockers:
        return GpuPlan.refused(
            gpu, Verdict.BLOCKED, *refusals.in_the_way(gpu, wanted, target, blockers, path)
        )
    steps = (*_destructions(gpu, target), *_creations(gpu, card, target))
    if everything and any(isinstance(s, CreateGpuInstance) for s in steps):
        # The driver refuses new GPU instances while a client from before holds the GPU.
        return GpuPlan.refused(gpu, Verdict.BLOCKED, refusals.gpu_held(gpu, path))
    return GpuPlan.applicable(gpu, steps)


def _taken_in_use(target: Target, *, everything: bool) -> tuple[refusals.Blocker, ...]:
    """What the target would take away although it is in use."""
    lost = [(i, c) for i in target.gone for c in i.compute]
    lost += [(p.existing, c) for p in target.placed if p.existing for c in p.change.destroyed]
    return tuple(refusals.Blocker(i, c) for i, c in lost if everything or c.usage.in_use)


def in_slice_order(instances: tuple[GpuInstance, ...]) -> list[GpuInstance]:
    """As they lie on the card."""
    return sorted(instances, key=lambda i: (i.placement, i.id))


def destroy(gpu: Gpu, instance: GpuInstance, reason: str) -> DestroyGpuInstance:
    """The step that takes a GPU instance away with all that is in it."""
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
    steps: list[Step] = [destroy(gpu, i, _why_gone(i, wanted)) for i in in_slice_order(target.gone)]
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


# --- the mode ---------------------------------------------------------------------------------


def enable(
    gpu: Gpu, wanted: tuple[WantedInstance, ...] | None, path: str, policy: Policy
) -> GpuPlan:
    """Mode on, then the layout (`wanted` None: whatever is there may stay)."""
    if gpu.mig is None:
        return GpuPlan.refused(gpu, Verdict.UNSATISFIABLE, refusals.not_mig_capable(gpu, path))
    if gpu.mig.current:
        on = SetMigMode(gpu.uuid, True, "switching MIG off was pending, which would undo the plan")
        return _then_lay_out(gpu, (on,), wanted, path)
    if not gpu.idle:
        return GpuPlan.refused(gpu, Verdict.BLOCKED, refusals.mode_in_use(gpu, path, enable=True))
    steps: tuple[Step, ...] = ()
    # A pending mode that needs no reset is set again.
    if not (gpu.mig.pending and gpu.mode_change_needs_reset):
        steps = (SetMigMode(gpu.uuid, True, f"{path} asks for MIG"),)
    if gpu.mode_change_needs_reset:
        if gpu.passthrough or not policy.reset_when_idle:
            needed = refusals.reset_required(gpu, path, policy, enable=True)
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
        return GpuPlan.refused(gpu, Verdict.UNSATISFIABLE, refusals.mode_cannot_return(gpu, path))
    if not gpu.idle:
        return GpuPlan.refused(gpu, Verdict.BLOCKED, refusals.mode_in_use(gpu, path, enable=False))
    steps: list[Step] = [
        destroy(gpu, i, "MIG is to be switched off") for i in in_slice_order(gpu.instances)
    ]
    if gpu.mig.pending:
        steps.append(SetMigMode(gpu.uuid, False, f"{path} says that MIG is disabled"))
    if gpu.mode_change_needs_reset:
        if not policy.reset_when_idle:
            needed = refusals.reset_required(gpu, path, policy, enable=False)
            # Without the reset the instances would be gone for nothing.
            if gpu.instances or not gpu.mig.pending:
                return GpuPlan.refused(gpu, Verdict.BLOCKED, needed)
            return GpuPlan.applicable(gpu, tuple(steps), needed)
        steps.append(ResetGpu(gpu.uuid, "this card's MIG mode changes at a GPU reset"))
    return GpuPlan.applicable(gpu, tuple(steps))
