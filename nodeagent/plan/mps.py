"""From the daemons, compute modes and time slices there are to those wanted.

MIG and MPS are one plan: daemons that must go are stopped first, earlier settings come back, then
MIG changes, then new settings and daemons. A daemon that has clients, or of which it is not known
whether it has any, is never stopped; the plan is refused then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from nodeagent.plan import refusals
from nodeagent.plan.desired import DesiredGpu, Layout, MigDisabled, WantedInstance
from nodeagent.plan.mps_assignment import Seat, assign, cost_of
from nodeagent.plan.observed import (
    ComputeInstance,
    Gpu,
    GpuInstance,
    MpsDaemon,
    Placement,
    Usage,
)
from nodeagent.plan.plan import GpuPlan, Policy, Verdict
from nodeagent.plan.problems import Problem
from nodeagent.plan.shares import ComputeMode, WantedMps
from nodeagent.plan.steps import SetComputeMode, SetTimeSlice, StartMps, Step, StopMps, after
from nodeagent.plan.usage import past_mps, together

_BLOCKED = 1_000_000  # more than all that a way could cost which is open


@dataclass(frozen=True, slots=True)
class Device:
    """A device that can have a daemon: a GPU outside MIG mode, or a MIG device.

    `uuid` is empty while it is not made yet. `usage` has everyone who may be on it.
    """

    uuid: str
    usage: Usage
    daemon: MpsDaemon | None
    mode: ComputeMode | None
    earlier: ComputeMode | None
    profile: str = ""
    placement: Placement | None = None

    @property
    def runs(self) -> WantedMps | None:
        return self.daemon.runs if self.daemon else None


@dataclass(frozen=True, slots=True)
class Wish:
    """A device at the end of the MIG steps, and what its daemon is to be then."""

    device: Device
    wanted: WantedMps | None

    @property
    def stops(self) -> str:
        """Why the daemon cannot stay; "" if it can."""
        runs = self.device.runs
        if runs is None or (self.wanted and not runs.needs_restart_for(self.wanted)):
            return ""
        if self.wanted is None:
            return "the plan gives this device no MPS"
        if runs.account != self.wanted.account:
            return "it is to run as somebody else"
        return "a memory limit can only be taken away by a new daemon"


def by_itself(gpu: Gpu) -> bool:
    """Outside MIG mode, where the GPU is a device."""
    return gpu.mig is None or not gpu.mig.current


def whole(gpu: Gpu) -> Device:
    """The GPU itself as a device."""
    return Device(gpu.uuid, gpu.usage, gpu.mps, gpu.compute_mode, gpu.earlier_mode)


def mig_devices(gpu: Gpu) -> list[Device]:
    """The MIG devices as they lie on the card."""
    return [_device(gpu, i, c) for i, c in _in_order(gpu)]


def _in_order(gpu: Gpu) -> Iterator[tuple[GpuInstance, ComputeInstance]]:
    for instance in sorted(gpu.instances, key=lambda i: (i.placement, i.id)):
        for device in sorted(instance.compute, key=lambda c: c.id):
            yield instance, device


def _device(gpu: Gpu, instance: GpuInstance, device: ComputeInstance) -> Device:
    return Device(
        device.uuid,
        # A process of which no instance is known may be on any of them.
        together(device.usage, gpu.usage),
        device.mps,
        device.compute_mode,
        device.earlier_mode,
        device.profile,
        instance.placement,
    )


# --- what each is to have ---------------------------------------------------------------------


def wishes_for(end: Gpu, desired: DesiredGpu, policy: Policy) -> list[Wish]:
    """What every device of `end`, the GPU after its MIG steps, is to have."""
    if by_itself(end):
        return [Wish(whole(end), desired.mps)]
    devices = mig_devices(end)
    match desired.mig:
        case Layout(instances=wanted):
            given = _assigned(end, devices, wanted, policy)
        case MigDisabled():
            given = [None] * len(devices)
        case _:
            given = [desired.mps_by_device.get(device.uuid) for device in devices]
    return [Wish(device, mps) for device, mps in zip(devices, given, strict=True)]


def _assigned(
    end: Gpu, devices: list[Device], wanted: tuple[WantedInstance, ...], policy: Policy
) -> list[WantedMps | None]:
    """To devices that are alike, so that nothing in use is in the way if that can be."""

    def cost(number: int, mps: WantedMps | None) -> int:
        wish = Wish(devices[number], mps)
        blocked = is_served(wish) or is_held(wish, policy)
        return cost_of(wish.device.runs, mps) + _BLOCKED * blocked

    if not any(w.mps for w in wanted):
        return [None] * len(devices)
    seats = [Seat(i.profile, c.slices, i.placement.start) for i, c in _in_order(end)]
    return assign(seats, wanted, cost)[1]


def is_served(wish: Wish) -> bool:
    """Whether its daemon would have to go although it may serve somebody."""
    return bool(wish.stops) and wish.device.usage.in_use


def is_held(wish: Wish, policy: Policy) -> bool:
    """Whether a daemon is to come where somebody's context would keep its server out."""
    comes = wish.wanted is not None and wish.device.daemon is None
    return comes and policy.exclusive_mps and past_mps(wish.device.usage).in_use


# --- the plan ---------------------------------------------------------------------------------


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
            yield refusals.daemon_in_use(gpu, _words(gpu, device), device.usage, why=why, path=path)


def _held(gpu: Gpu, wishes: list[Wish], desired: DesiredGpu, policy: Policy) -> Iterator[Problem]:
    for wish in wishes:
        if wish.wanted and is_held(wish, policy):
            users = past_mps(wish.device.usage)
            path = wish.wanted.path or desired.path
            yield refusals.held_past_mps(gpu, _words(gpu, wish.device), users, path)


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
