"""From the daemons, compute modes and time slices there are to those wanted.

MIG and MPS are one plan: daemons that must go are stopped first, earlier settings come back, then
MIG changes, then new settings and daemons. A daemon that has clients, or of which nobody knows
whether it has any, is never stopped; the plan is refused then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from nodeagent.plan import mps_obstacles
from nodeagent.plan.desired import DesiredGpu, Layout
from nodeagent.plan.mps_targets import (
    Device,
    Wish,
    by_itself,
    is_held,
    mig_devices,
    whole,
    wishes_for,
)
from nodeagent.plan.mps_usage import past_mps
from nodeagent.plan.observed import Gpu
from nodeagent.plan.plan import GpuPlan, Policy, Verdict
from nodeagent.plan.problems import Problem
from nodeagent.plan.shares import ComputeMode, WantedMps
from nodeagent.plan.simulate_steps import after
from nodeagent.plan.steps import SetComputeMode, SetTimeSlice, StartMps, Step, StopMps


def concerns(desired: DesiredGpu, gpu: Gpu) -> bool:
    """Whether there is anything about sharing, wanted or found."""
    if desired.mps or desired.mps_by_device or desired.time_slice:
        return True
    if gpu.mps or gpu.earlier_mode or gpu.earlier_time_slice:
        return True
    if any(c.mps or c.earlier_mode for i in gpu.instances for c in i.compute):
        return True
    return isinstance(desired.mig, Layout) and any(w.mps for w in desired.mig.instances)


def add_sharing(gpu: Gpu, mig: GpuPlan, desired: DesiredGpu, policy: Policy) -> GpuPlan:
    """The steps of `mig`, a plan for `gpu` as it is really used, with those for sharing around."""
    used = mig.before
    if mig.verdict not in {Verdict.IN_SYNC, Verdict.APPLICABLE}:
        return replace(mig, before=gpu, after=gpu)
    end = after(used, mig.steps)
    wishes = wishes_for(end, desired, policy)
    problems = (*_served(used, wishes, desired), *_held(used, wishes, desired, policy))
    if problems:
        return GpuPlan.refused(gpu, Verdict.BLOCKED, *problems, *mig.problems)
    steps = (
        *_stops(used, wishes),
        *_restorations(used, wishes, desired),
        *mig.steps,
        *_time_slice(end, desired),
        *(() if by_itself(used) else _late_restoration(end, desired)),
        *(step for wish in wishes for step in _starts(gpu, wish, policy)),
    )
    return GpuPlan.applicable(gpu, steps, *mig.problems)


# --- what is in the way -----------------------------------------------------------------------


def _ending(gpu: Gpu, wishes: list[Wish]) -> Iterator[tuple[Device, str, WantedMps | None]]:
    """The daemons that must go, why, and what is to come instead."""
    at_the_end = {wish.device.uuid: wish for wish in wishes}
    for device in (whole(gpu), *mig_devices(gpu)):
        if device.daemon is None:
            continue
        wish = at_the_end.get(device.uuid)
        if wish is None or wish.device.daemon is None:
            goes = "its device goes" if device.profile else "the GPU's MIG mode changes"
            yield device, goes, None
        elif wish.stops:
            yield device, wish.stops, wish.wanted


def _served(gpu: Gpu, wishes: list[Wish], desired: DesiredGpu) -> Iterator[Problem]:
    for device, why, instead in _ending(gpu, wishes):
        if device.usage.in_use:
            path = (instead.path if instead else "") or desired.path
            yield mps_obstacles.daemon_in_use(
                gpu, _words(gpu, device), device.usage, why=why, path=path
            )


def _held(gpu: Gpu, wishes: list[Wish], desired: DesiredGpu, policy: Policy) -> Iterator[Problem]:
    for wish in wishes:
        if wish.wanted and is_held(wish, policy):
            users = past_mps(wish.device.usage)
            path = wish.wanted.path or desired.path
            yield mps_obstacles.held_past_mps(gpu, _words(gpu, wish.device), users, path)


def _words(gpu: Gpu, device: Device) -> str:
    if device.placement is None:
        return f"GPU {gpu.index}"
    return f"{device.profile} at slice {device.placement.start} of GPU {gpu.index}"


# --- steps ------------------------------------------------------------------------------------


def _stops(gpu: Gpu, wishes: list[Wish]) -> Iterator[Step]:
    for device, why, _ in _ending(gpu, wishes):
        yield StopMps(gpu.uuid, device.uuid, why, device.profile, device.placement)


def _restorations(gpu: Gpu, wishes: list[Wish], desired: DesiredGpu) -> Iterator[Step]:
    """What was changed for a way of sharing that is over, before MIG changes make it impossible."""
    if by_itself(gpu):
        before = gpu.earlier_time_slice
        if before and desired.time_slice is None and gpu.time_slice not in (None, before):
            yield SetTimeSlice(gpu.uuid, before, "as it was before the agent set it")
        yield from _late_restoration(gpu, desired)
    here = {device.uuid for device in mig_devices(gpu)}
    for wish in wishes:
        if wish.wanted is None and wish.device.uuid in here:
            yield from _mode_back(gpu, wish.device)


def _late_restoration(gpu: Gpu, desired: DesiredGpu) -> Iterator[Step]:
    """The GPU's own compute mode, which in MIG mode it does not have."""
    if by_itself(gpu) and desired.mps is None and desired.time_slice is None:
        yield from _mode_back(gpu, whole(gpu))


def _mode_back(gpu: Gpu, device: Device) -> Iterator[Step]:
    if device.earlier is not None and device.mode not in (None, device.earlier):
        yield _mode_step(gpu, device, device.earlier, "as it was before the agent set it")


def _mode_step(gpu: Gpu, device: Device, mode: ComputeMode, reason: str) -> SetComputeMode:
    return SetComputeMode(gpu.uuid, device.uuid, mode, reason, device.profile, device.placement)


def _time_slice(end: Gpu, desired: DesiredGpu) -> Iterator[Step]:
    if desired.time_slice is None or not by_itself(end):
        return
    if end.time_slice is not desired.time_slice:
        yield SetTimeSlice(end.uuid, desired.time_slice, f"{desired.path}.timeSlice asks for it")
    if end.compute_mode not in (None, ComputeMode.DEFAULT):
        reason = "processes that take turns need it"
        yield _mode_step(end, whole(end), ComputeMode.DEFAULT, reason)


def _starts(gpu: Gpu, wish: Wish, policy: Policy) -> Iterator[Step]:
    device, wanted = wish.device, wish.wanted
    if wanted is None:
        return
    exclusive = ComputeMode.EXCLUSIVE_PROCESS
    if policy.exclusive_mps and device.mode not in (None, exclusive):
        reason = "so that a program that misses MPS fails instead of running beside it"
        yield _mode_step(gpu, device, exclusive, reason)
    if device.runs == wanted:
        return
    runs = device.daemon is not None and not wish.stops
    yield StartMps(
        gpu.uuid,
        device.uuid,
        wanted,
        "its limits or shares are to be others"
        if runs
        else f"{wanted.path or 'the plan'} asks for it",
        device.profile,
        device.placement,
        runs,
    )
