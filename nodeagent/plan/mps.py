"""From the daemons, compute modes and time slices there are to those wanted.

MIG and MPS are one plan: daemons that must go are stopped first, earlier settings come back, then
MIG changes, then new settings and daemons. A daemon that has clients, or of which it is not known
whether it has any, is never stopped; the plan is refused then.
"""

from collections.abc import Iterator, Sequence

from nodeagent.plan.desired import DesiredGpu, Layout, MigDisabled, WantedInstance
from nodeagent.plan.observed import Device, Gpu
from nodeagent.plan.plan import Policy
from nodeagent.plan.problems import Code, PlanRefused, Problem
from nodeagent.plan.remedies import in_use_remedy
from nodeagent.plan.search import Seat, assign, cost_of
from nodeagent.plan.shares import ComputeMode, WantedMps
from nodeagent.plan.steps import SetComputeMode, SetTimeSlice, StartMps, Step, StopMps
from nodeagent.plan.users import outside_mps
from nodeagent.structs import Struct

_BLOCKED = 1_000_000  # as a cost: more than any assignment that is possible


class _Target(Struct, frozen=True):
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
        if runs.devices != self.wanted.devices:
            return "it is to serve other GPUs"
        if runs.account != self.wanted.account:
            return "it is to run as another user"
        return "a memory limit can only be taken away by a new daemon"

    def is_held(self, policy: Policy) -> bool:
        """Whether a daemon is to come where a context outside MPS would keep its server out."""
        comes = self.wanted is not None and self.device.mps is None
        return comes and policy.exclusive_mps and outside_mps(self.device.usage).in_use


def concerns_sharing(desired: DesiredGpu, gpu: Gpu) -> bool:
    """Whether anything about sharing is wanted or found; most plans are of MIG alone."""
    if desired.mps or desired.mps_by_device or desired.time_slice or gpu.earlier_time_slice:
        return True
    devices = (device for _, device in gpu.mig_devices())
    if gpu.mps or gpu.earlier_mode or any(one.mps or one.earlier_mode for one in devices):
        return True
    return isinstance(desired.mig, Layout) and any(w.mps for w in desired.mig.instances)


def with_sharing(
    gpu: Gpu, mig: Sequence[Step], end: Gpu, desired: DesiredGpu, policy: Policy
) -> tuple[Step, ...]:
    """The steps `mig`, which lead from `gpu` to `end`, with those for sharing around them.

    The clients of daemons are users of `gpu`'s devices. Raises PlanRefused.
    """
    targets = _targets(end, desired, policy)
    stops = list(_stops(gpu, targets, desired))
    held = (_held(gpu, target, desired) for target in targets if target.is_held(policy))
    problems = (*(problem for _, problem in stops if problem), *held)
    if problems:
        raise PlanRefused(*problems)
    return (
        *(step for step, _ in stops),
        *_restorations(gpu, targets, desired),
        *mig,
        *_time_slice(end, desired),
        *(_own_mode_back(end, desired) if gpu.in_mig_mode else ()),
        *(step for target in targets for step in _starts(gpu, target, policy)),
    )


# --- what each device is to have --------------------------------------------------------------


def _targets(end: Gpu, desired: DesiredGpu, policy: Policy) -> list[_Target]:
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
    devices: Sequence[Device], wanted: Sequence[WantedInstance], policy: Policy
) -> list[WantedMps | None]:
    """Hand daemons out to devices that are alike, so that nothing in use conflicts if possible."""
    if not any(w.mps for w in wanted):
        return [None] * len(devices)

    def cost(number: int, mps: WantedMps | None) -> int:
        target = _Target(devices[number], mps)
        served = bool(target.stops) and target.device.usage.in_use
        return cost_of(target.device.runs, mps) + _BLOCKED * (served or target.is_held(policy))

    seats = [
        Seat(device.instance.profile, device.slices, device.instance.placement.start)
        for device in devices
        if device.instance is not None
    ]
    return assign(seats, wanted, cost)[1]


# --- daemons that go, and what is in the way --------------------------------------------------


def _stops(
    gpu: Gpu, targets: Sequence[_Target], desired: DesiredGpu
) -> Iterator[tuple[StopMps, Problem | None]]:
    """The end of each daemon that must go, with what forbids it."""
    at_the_end = {target.device.uuid: target for target in targets}
    for device in gpu.devices():
        target = at_the_end.get(device.uuid)
        path = desired.path
        if device.mps is None:
            continue
        if target is None or target.device.mps is None:
            why = "its device goes" if device.profile else "the GPU's MIG mode changes"
        elif target.stops:
            why = target.stops
            path = (target.wanted.path if target.wanted else "") or path
        else:
            continue
        if device.mps.runs.devices:  # also on GPUs that no plan may name
            why += f"; it serves {len(device.mps.runs.devices)} GPUs"
        step = StopMps(gpu.uuid, device.uuid, why, device.profile, device.placement)
        yield step, _served(gpu, device, why, path) if device.usage.in_use else None


def _served(gpu: Gpu, device: Device, why: str, path: str) -> Problem:
    return gpu.problem(
        Code.IN_USE,
        "servedByMps",
        path=path,
        device=_name(gpu, device),
        why=why,
        users=device.usage,
        end=in_use_remedy(device.usage),
    )


def _held(gpu: Gpu, target: _Target, desired: DesiredGpu) -> Problem:
    path = (target.wanted.path if target.wanted else "") or desired.path
    others = outside_mps(target.device.usage)
    return gpu.problem(
        Code.IN_USE,
        "outsideMps",
        path=path,
        device=_name(gpu, target.device),
        users=others,
        end=in_use_remedy(others),
    )


def _name(gpu: Gpu, device: Device) -> str:
    if device.placement is None:
        return f"GPU {gpu.index}"
    return f"{device.profile} at slice {device.placement.start} of GPU {gpu.index}"


# --- steps ------------------------------------------------------------------------------------


def _restorations(gpu: Gpu, targets: Sequence[_Target], desired: DesiredGpu) -> Iterator[Step]:
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
    if device.runs == wanted or wanted.is_served_elsewhere(device.uuid):
        return
    runs = device.mps is not None and not target.stops
    why = "its limits or shares change" if runs else f"{wanted.path or 'the plan'} asks for it"
    yield StartMps(gpu.uuid, device.uuid, wanted, why, device.profile, device.placement, runs)
