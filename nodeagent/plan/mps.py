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
from nodeagent.plan.observed import Device, Gpu
from nodeagent.plan.plan import GpuPlan, Policy, Verdict
from nodeagent.plan.problems import Problem
from nodeagent.plan.shares import ComputeMode, WantedMps
from nodeagent.plan.steps import SetComputeMode, SetTimeSlice, StartMps, Step, StopMps, after
from nodeagent.plan.usage import outside_mps

_BLOCKED = 1_000_000  # as a cost: more than any assignment that is possible


def concerns(desired: DesiredGpu, gpu: Gpu) -> bool:
    """Whether there is anything about sharing, wanted or found."""
    if desired.mps or desired.mps_by_device or desired.time_slice or gpu.earlier_time_slice:
        return True
    if any(device.mps or device.earlier_mode for device in gpu.devices()):
        return True
    return isinstance(desired.mig, Layout) and any(w.mps for w in desired.mig.instances)


def add_sharing(gpu: Gpu, mig: GpuPlan, desired: DesiredGpu, policy: Policy) -> GpuPlan:
    """The steps of `mig`, a plan for `gpu` as it is really used, with those for sharing around."""
    used = mig.before
    if mig.verdict not in {Verdict.IN_SYNC, Verdict.APPLICABLE}:
        return replace(mig, before=gpu, after=gpu)
    end = after(used, mig.steps)
    targets = _targets(end, desired, policy)
    problems = (*_served(used, targets, desired), *_held(used, targets, desired, policy))
    if problems:
        return GpuPlan.refused(gpu, Verdict.BLOCKED, *problems, *mig.problems)
    steps = (
        *(
            StopMps(gpu.uuid, device.uuid, why, device.profile, device.placement)
            for device, why, _ in _ending(used, targets)
        ),
        *_restorations(used, targets, desired),
        *mig.steps,
        *_time_slice(end, desired),
        *(_own_mode_back(end, desired) if used.in_mig_mode else ()),
        *(step for target in targets for step in _starts(gpu, target, policy)),
    )
    return GpuPlan.applicable(gpu, steps, *mig.problems)


# --- what each device is to have --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Target:
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
            return "it is to run as another user"
        return "a memory limit can only be taken away by a new daemon"

    def is_held(self, policy: Policy) -> bool:
        """Whether a daemon is to come where a context outside MPS would keep its server out."""
        comes = self.wanted is not None and self.device.mps is None
        return comes and policy.exclusive_mps and outside_mps(self.device.usage).in_use


def _targets(end: Gpu, desired: DesiredGpu, policy: Policy) -> list[_Target]:
    """What every device of `end`, the GPU after its MIG steps, is to have."""
    whole, *devices = end.devices()
    if not end.in_mig_mode:
        return [_Target(whole, desired.mps)]
    match desired.mig:
        case Layout(instances=wanted):
            daemons = _assigned(devices, wanted, policy)
        case MigDisabled():
            daemons = [None] * len(devices)
        case _:
            daemons = [desired.mps_by_device.get(device.uuid) for device in devices]
    return [_Target(device, mps) for device, mps in zip(devices, daemons, strict=True)]


def _assigned(
    devices: list[Device], wanted: tuple[WantedInstance, ...], policy: Policy
) -> list[WantedMps | None]:
    """To devices that are alike, so that nothing in use is in the way if that can be."""

    def cost(number: int, mps: WantedMps | None) -> int:
        target = _Target(devices[number], mps)
        served = bool(target.stops) and target.device.usage.in_use
        return cost_of(target.device.runs, mps) + _BLOCKED * (served or target.is_held(policy))

    if not any(w.mps for w in wanted):
        return [None] * len(devices)
    seats = [
        Seat(device.instance.profile, device.slices, device.instance.placement.start)
        for device in devices
        if device.instance is not None
    ]
    return assign(seats, wanted, cost)[1]


# --- what is in the way -----------------------------------------------------------------------


def _ending(gpu: Gpu, targets: list[_Target]) -> Iterator[tuple[Device, str, WantedMps | None]]:
    """The daemons that must go, why, and what is to come instead."""
    at_the_end = {target.device.uuid: target for target in targets}
    for device in gpu.devices():
        target = at_the_end.get(device.uuid)
        if device.mps is None:
            continue
        if target is None or target.device.mps is None:
            goes = "its device goes" if device.profile else "the GPU's MIG mode changes"
            yield device, goes, None
        elif target.stops:
            yield device, target.stops, target.wanted


def _served(gpu: Gpu, targets: list[_Target], desired: DesiredGpu) -> Iterator[Problem]:
    for device, why, instead in _ending(gpu, targets):
        if device.usage.in_use:
            path = (instead.path if instead else "") or desired.path
            yield refusals.daemon_in_use(gpu, _name(gpu, device), device.usage, why=why, path=path)


def _held(
    gpu: Gpu, targets: list[_Target], desired: DesiredGpu, policy: Policy
) -> Iterator[Problem]:
    for target in targets:
        if target.wanted and target.is_held(policy):
            users = outside_mps(target.device.usage)
            path = target.wanted.path or desired.path
            yield refusals.held_outside_mps(gpu, _name(gpu, target.device), users, path)


def _name(gpu: Gpu, device: Device) -> str:
    if device.placement is None:
        return f"GPU {gpu.index}"
    return f"{device.profile} at slice {device.placement.start} of GPU {gpu.index}"


# --- steps ------------------------------------------------------------------------------------


def _restorations(gpu: Gpu, targets: list[_Target], desired: DesiredGpu) -> Iterator[Step]:
    """What was changed for a way of sharing that is over, before MIG changes make it impossible."""
    if not gpu.in_mig_mode:
        before = gpu.earlier_time_slice
        if before and desired.time_slice is None and gpu.time_slice not in (None, before):
            yield SetTimeSlice(gpu.uuid, before, "as it was before the agent set it")
        yield from _own_mode_back(gpu, desired)
    here = {device.uuid for device in gpu.devices() if device.instance}
    for target in targets:
        if target.wanted is None and target.device.uuid in here:
            yield from _mode_back(gpu, target.device)


def _own_mode_back(gpu: Gpu, desired: DesiredGpu) -> Iterator[Step]:
    """The GPU's own compute mode, which in MIG mode it does not have."""
    if not gpu.in_mig_mode and desired.mps is None and desired.time_slice is None:
        yield from _mode_back(gpu, gpu.devices()[0])


def _mode_back(gpu: Gpu, device: Device) -> Iterator[Step]:
    earlier = device.earlier_mode
    if earlier is not None and device.compute_mode not in (None, earlier):
        yield _mode_step(gpu, device, earlier, "as it was before the agent set it")


def _mode_step(gpu: Gpu, device: Device, mode: ComputeMode, reason: str) -> SetComputeMode:
    return SetComputeMode(gpu.uuid, device.uuid, mode, reason, device.profile, device.placement)


def _time_slice(end: Gpu, desired: DesiredGpu) -> Iterator[Step]:
    if desired.time_slice is None or end.in_mig_mode:
        return
    if end.time_slice is not desired.time_slice:
        yield SetTimeSlice(end.uuid, desired.time_slice, f"{desired.path}.timeSlice asks for it")
    if end.compute_mode not in (None, ComputeMode.DEFAULT):
        reason = "processes that take turns need it"
        yield _mode_step(end, end.devices()[0], ComputeMode.DEFAULT, reason)


def _starts(gpu: Gpu, target: _Target, policy: Policy) -> Iterator[Step]:
    device, wanted = target.device, target.wanted
    if wanted is None:
        return
    exclusive = ComputeMode.EXCLUSIVE_PROCESS
    if policy.exclusive_mps and device.compute_mode not in (None, exclusive):
        reason = "so that a program that misses MPS fails instead of running beside it"
        yield _mode_step(gpu, device, exclusive, reason)
    if device.runs == wanted:
        return
    runs = device.mps is not None and not target.stops
    why = "its limits or shares change" if runs else f"{wanted.path or 'the plan'} asks for it"
    yield StartMps(gpu.uuid, device.uuid, wanted, why, device.profile, device.placement, runs)
