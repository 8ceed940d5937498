"""The devices of a GPU at the end of its MIG steps, and which MPS daemon each is to have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nodeagent.plan.desired import DesiredGpu, Layout, MigDisabled, WantedInstance
from nodeagent.plan.mps_assignment import Seat, assign, cost_of
from nodeagent.plan.mps_usage import past_mps, together
from nodeagent.plan.observed import (
    ComputeInstance,
    Gpu,
    GpuInstance,
    MpsDaemon,
    Placement,
    Usage,
)
from nodeagent.plan.plan import Policy
from nodeagent.plan.shares import ComputeMode, WantedMps

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
