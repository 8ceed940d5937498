"""MIG: from the mode and the layout there are to those wanted.

The mode is switched only on a GPU that is proven idle, and only where that leads somewhere. Some
cards change it at once, others at a GPU reset, which a setting has to allow. Which it is depends on
the driver too (nvml.h allows both on every card). The plan takes the expected one; the executor
reads the result and plans the rest again where it differs.
"""

from collections.abc import Iterator, Sequence
from typing import assert_never

from nodeagent.plan.desired import (
    DesiredGpu,
    Layout,
    MigDisabled,
    MigEnabled,
    Reserved,
    WantedInstance,
    in_the_way,
)
from nodeagent.plan.layouts import Card, free_slots
from nodeagent.plan.names import device_name
from nodeagent.plan.observed import ComputeInstance, Gpu, GpuInstance
from nodeagent.plan.plan import Policy
from nodeagent.plan.problems import Code, PlanRefused, Problem
from nodeagent.plan.remedies import in_use_remedy, reset_remedy
from nodeagent.plan.search import Target, best_layout, counted, does_not_fit
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

_Steps = tuple[Step, ...]


def mig_steps(desired: DesiredGpu, gpu: Gpu, policy: Policy) -> _Steps:
    """The steps to the mode and the layout; `gpu` without what is reserved. Raises PlanRefused."""
    on = gpu.mig is not None and gpu.mig.current and gpu.mig.pending
    match desired.mig:
        case None:
            return ()
        case MigDisabled(path=path):
            steps = _disable(gpu, path, policy)
            if steps and desired.reserved:
                off = f"MIG mode of {gpu.title} cannot be switched off"
                raise PlanRefused(in_the_way(gpu, desired.reserved, off, path))
            return steps
        case MigEnabled(path=path):
            return () if on else _enable(gpu, path, policy)
        case Layout(instances=wanted, path=path):
            mode = () if on else _enable(gpu, path, policy)
            then = after(gpu, mode)
            if not then.in_mig_mode:
                return mode
            return (*mode, *_lay_out(then, wanted, desired.reserved, path))
        case _:
            assert_never(desired)


# --- the mode ---------------------------------------------------------------------------------


def _enable(gpu: Gpu, path: str, policy: Policy) -> _Steps:
    if gpu.mig is None:
        raise PlanRefused(not_mig_capable(gpu, path))
    if gpu.mig.current:
        why = "switching MIG off was pending, which would undo the plan"
        return (SetMigMode(gpu.uuid, True, why),)
    _require_idle(gpu, path, "on")
    on = SetMigMode(gpu.uuid, True, f"{path} asks for MIG")
    if not gpu.mode_change_needs_reset:
        return (on,)
    steps: _Steps = () if gpu.mig.pending else (on,)
    if policy.reset_when_idle and not gpu.no_reset:
        return (*steps, _reset(gpu))
    if not steps:
        raise PlanRefused(reset_required(gpu, path, policy, enable=True))
    return steps


def _disable(gpu: Gpu, path: str, policy: Policy) -> _Steps:
    """All instances go, then the mode."""
    if gpu.mig is None or not (gpu.mig.current or gpu.mig.pending):
        return ()
    if not gpu.mig.current:  # switching on was pending; taking that back needs no reset
        return (SetMigMode(gpu.uuid, False, "switching MIG on was pending"),)
    _require_idle(gpu, path, "off")
    resets = gpu.mode_change_needs_reset and policy.reset_when_idle and not gpu.no_reset
    # Without the reset the instances would be gone for nothing.
    if gpu.mode_change_needs_reset and not resets and (gpu.instances or not gpu.mig.pending):
        raise PlanRefused(reset_required(gpu, path, policy, enable=False))
    off = SetMigMode(gpu.uuid, False, f"{path} says that MIG is disabled")
    return (
        *(_destroy(gpu, i, "MIG is to be switched off") for i in _in_slice_order(gpu.instances)),
        *((off,) if gpu.mig.pending else ()),
        *((_reset(gpu),) if resets else ()),
    )


def _reset(gpu: Gpu) -> ResetGpu:
    return ResetGpu(gpu.uuid, "this card's MIG mode changes at a GPU reset")


def _require_idle(gpu: Gpu, path: str, word: str) -> None:
    if gpu.idle:
        return
    users = [str(gpu.usage)] if gpu.usage.in_use else []
    if gpu.usage.known:
        users += [
            f"{c.usage} on {c.profile} at slice {i.placement.start}"
            for i, c in gpu.mig_devices()
            if c.usage.in_use
        ]
    who, end = "; ".join(users), in_use_remedy(*gpu.usages)
    raise PlanRefused(gpu.problem(Code.IN_USE, "migMode", path=path, mode=word, users=who, end=end))


def reset_required(gpu: Gpu, path: str, policy: Policy, *, enable: bool) -> Problem:
    """The mode is set or to be set, and becomes current only at a reset.

    Where the plan does not set it (instances would be destroyed for nothing), the remedy does.
    """
    unset = not enable and bool(gpu.instances) and gpu.mig is not None and gpu.mig.pending
    case = "byHand" if policy.reset_when_idle or gpu.no_reset else "orAllowed"
    mode, reset = "on" if enable else "off", reset_remedy(gpu, mode_off_first=unset)
    return gpu.problem(Code.RESET_REQUIRED, case, path=path, mode=mode, reset=reset)


def not_mig_capable(gpu: Gpu, path: str) -> Problem:
    """MIG is asked of a card that has none."""
    if gpu.unlisted:
        return unlisted(gpu, path)
    return gpu.problem(Code.NOT_MIG_CAPABLE, "card", path=path)


def unlisted(gpu: Gpu, path: str = "") -> Problem:
    """The driver does not report what a layout takes. What is done already is no remedy."""
    case = "mode"
    if gpu.mig is not None:
        case = "profiles" if gpu.in_mig_mode else "profilesWhileOff"
    return gpu.problem(Code.UNSUPPORTED, case, path=path, why=gpu.unlisted)


# --- the layout -------------------------------------------------------------------------------


def _lay_out(
    gpu: Gpu, wanted: Sequence[WantedInstance], reserved: Sequence[Reserved], path: str
) -> _Steps:
    """The steps to exactly these devices beside what is reserved, on a GPU with MIG on."""
    card = Card.of(gpu)
    unknown = next((w for w in wanted if w.profile not in card.profiles), None)
    if unknown:
        raise PlanRefused(_not_offered(gpu, unknown))
    # A process of which no instance is known may be on any of them; so may one that the driver
    # does not list, although the devices' own lists are empty.
    everything = gpu.usage.in_use
    limits = gpu.health_limits.slices
    target = best_layout(
        card, wanted, gpu.instances, all_in_use=everything, unhealthy=limits, reserved=reserved
    )
    if target is None and limits and best_layout(card, wanted, (), reserved=reserved) is not None:
        raise PlanRefused(unhealthy_slices(gpu, path))
    if target is None and reserved and best_layout(card, wanted, ()) is not None:
        names = counted(
            device_name(w.profile, card.profiles[w.profile].profile.slices, w.slices)
            for w in wanted
        )
        raise PlanRefused(in_the_way(gpu, reserved, f"{gpu.title} has no room for {names}", path))
    if target is None:
        raise PlanRefused(does_not_fit(gpu, wanted, path))
    _require_unused(gpu, wanted, target, path)
    steps = (*_destructions(gpu, target), *_creations(gpu, card, target))
    if everything and any(isinstance(s, CreateGpuInstance) for s in steps):
        # The driver refuses new GPU instances while a client from before holds the GPU.
        usage, end = gpu.usage, in_use_remedy(gpu.usage)
        raise PlanRefused(gpu.problem(Code.IN_USE, "whole", path=path, users=usage, end=end))
    return steps


def unhealthy_slices(gpu: Gpu, path: str) -> Problem:
    """The plan would need unhealthy memory slices."""
    bits = gpu.health_limits.slices
    slices = ", ".join(str(n) for n in range(bits.bit_length()) if bits >> n & 1)
    why, remedy = gpu.health_limits.why, gpu.health_limits.remedy
    return gpu.problem(
        Code.GPU_UNHEALTHY, "slices", path=path, slices=slices, why=why, remedy=remedy
    )


def _not_offered(gpu: Gpu, wanted: WantedInstance) -> Problem:
    """The layout names a profile that the card does not list (any more)."""
    names, profile = ", ".join(p.name for p in gpu.profiles), wanted.profile
    return gpu.problem(
        Code.UNKNOWN_PROFILE, "gone", path=wanted.path, profile=profile, offered=names or "none"
    )


def _require_unused(gpu: Gpu, wanted: Sequence[WantedInstance], target: Target, path: str) -> None:
    """One problem for each device in use that the target would take away."""
    lost = [*((i, c) for i in target.gone for c in i.compute), *target.divided]
    blockers = [(i, c) for i, c in lost if gpu.usage.in_use or c.usage.in_use]
    if not blockers:
        return
    missing = [p.division.profile for p in target.placed if p.existing is None]
    purpose = "because the plan has none"
    if missing:
        purpose = f"to make room for {counted(missing)} ({_free_words(gpu)})"
    path = next((w.path for w in wanted if w.profile in missing), "") or path
    raise PlanRefused(
        *(
            gpu.problem(
                Code.IN_USE,
                "instance",
                path=path,
                instance=f"{device.profile} at slice {instance.placement.start}",
                purpose=purpose,
                users=_users(gpu, device),
                end=in_use_remedy(device.usage if device.usage.in_use else gpu.usage),
            )
            for instance, device in blockers
        )
    )


def _free_words(gpu: Gpu) -> str:
    slots = [str(slot) for slot in free_slots(gpu)]
    if not slots:
        return "no memory slice is free"
    if len(slots) == 1:
        return f"only memory slice {slots[0]} is free"
    return f"only memory slices {', '.join(slots[:-1])} and {slots[-1]} are free"


def _users(gpu: Gpu, device: ComputeInstance) -> str:
    if device.usage.in_use:
        return str(device.usage)
    return f"{gpu.usage}; which instance they use is not known"


def _in_slice_order(instances: Sequence[GpuInstance]) -> list[GpuInstance]:
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


def _destructions(gpu: Gpu, target: Target) -> Iterator[Step]:
    wanted = {p.division.profile for p in target.placed}
    for instance in _in_slice_order(target.gone):
        yield _destroy(gpu, instance, _why_gone(instance, wanted))
    for instance, device in target.divided:
        yield DestroyComputeInstance(
            gpu=gpu.uuid,
            instance=instance.id,
            compute=device.id,
            profile=device.profile,
            placement=instance.placement,
            device=device.uuid,
            reason="the plan divides its GPU instance differently",
        )


def _why_gone(instance: GpuInstance, wanted: set[str]) -> str:
    if not instance.compute:
        return "half-made: it has no compute instance, and its place is needed"
    if instance.profile not in wanted:
        return f"the plan has no {instance.profile}"
    return "the plan has fewer of them, or its place is needed"


def _creations(gpu: Gpu, card: Card, target: Target) -> list[Step]:
    """New GPU instances, the largest first, then compute instances in those that are there."""
    order = {name: n for n, name in enumerate(card.profiles)}
    instances: list[Step] = []
    compute: list[Step] = []
    for placed in sorted(target.placed, key=lambda p: (order[p.division.profile], p.start)):
        profile = card.profiles[placed.division.profile].profile
        there = placed.existing
        if there is None:
            fixed = placed.division.start >= 0
            why = "the plan asks for it here" if fixed else "missing; this place leaves most room"
            placement = next(x for x in profile.placements if x.start == placed.start)
            sizes = placed.division.compute
            instances.append(
                CreateGpuInstance(gpu.uuid, profile.id, profile.name, placement, sizes, why)
            )
            continue
        why = "missing in an existing GPU instance"
        if not there.compute:
            why = "completes a half-made GPU instance"
        for slices in placed.change.added:
            name = device_name(profile.name, profile.slices, slices)
            compute.append(
                CreateComputeInstance(gpu.uuid, there.id, name, slices, there.placement, why)
            )
    return [*instances, *compute]
