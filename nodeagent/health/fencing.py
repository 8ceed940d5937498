"""What is too sick to be used: no new work there, while its siblings go on.

A fence takes nothing away: what runs, runs on, and the plan's devices stay. It says three things.

- **The planner** must not create on fenced slices. `as_plannable` gives it the node without the
  placements there, so that `plan(desired, as_plannable(observed, fences), policy)` keeps sick
  devices that the plan wants (their own placement stays) and puts nothing else on their slices.
- **MPS daemons** of fenced devices stop taking clients (`devices`, by UUID).
- **Driver calls** to some GPUs should wait, since they may never return (`held_calls`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from nodeagent.health.findings import Finding, Severity, in_order
from nodeagent.health.table import BY_CAUSE
from nodeagent.health.xids import BLOCKS_CALLS
from nodeagent.planning.observed import Gpu, GpuInstance, ObservedNode, Placement
from nodeagent.planning.problems import Code, Problem


@dataclass(frozen=True, slots=True)
class Fence:
    """One sick part of a GPU: all of it when `placement` is None, else some memory slices of it.

    `devices` are the UUIDs of what can be used there: MIG devices, or the GPU itself. A sick
    compute instance fences the slices of its GPU instance, but of the devices only its own.
    """

    gpu: str
    placement: Placement | None
    devices: frozenset[str]
    finding: Finding


@dataclass(frozen=True, slots=True)
class Fences:
    """All of them."""

    all: tuple[Fence, ...] = ()

    @property
    def gpus(self) -> frozenset[str]:
        """GPUs that are sick as a whole."""
        return frozenset(f.gpu for f in self.all if f.placement is None)

    @property
    def devices(self) -> frozenset[str]:
        """Whose MPS daemons stop taking clients."""
        return frozenset(device for fence in self.all for device in fence.devices)

    def slices(self, gpu: str) -> int:
        """The fenced memory slices of a GPU as bits; all of them when it is sick as a whole."""
        if gpu in self.gpus:
            return ~0
        mask = 0
        for fence in self.all:
            if fence.gpu == gpu and fence.placement is not None:
                mask |= fence.placement.mask
        return mask

    def allows(self, gpu: str, placement: Placement) -> bool:
        """Whether something new may be placed there."""
        return not self.slices(gpu) & placement.mask


def fences(findings: Iterable[Finding], observed: ObservedNode) -> Fences:
    """One fence for every unhealthy finding that concerns a GPU of the node."""
    found = []
    for finding in in_order(findings):
        gpu = observed.gpu(finding.place.gpu)
        if gpu is not None and finding.severity is Severity.UNHEALTHY:
            found.append(_fence(finding, gpu))
    return Fences(tuple(found))


def _fence(finding: Finding, gpu: Gpu) -> Fence:
    place = finding.place
    if place.instance is None:
        return Fence(gpu.uuid, None, frozenset({gpu.uuid, *_devices(gpu.instances)}), finding)
    sick = place.placement
    if sick is None:
        sick = next((i.placement for i in gpu.instances if i.id == place.instance), None)
    if sick is None:  # nobody knows where it lay: the whole GPU is under suspicion
        return Fence(gpu.uuid, None, frozenset({gpu.uuid, *_devices(gpu.instances)}), finding)
    there = tuple(i for i in gpu.instances if i.placement.mask & sick.mask)
    exact = next((i for i in there if i.id == place.instance and i.placement == sick), None)
    if exact is not None and place.compute is not None:
        devices = {c.uuid for c in exact.compute if c.id == place.compute}
    else:
        devices = set(_devices(there))
    return Fence(gpu.uuid, sick, frozenset(devices), finding)


def _devices(instances: Iterable[GpuInstance]) -> list[str]:
    return [device.uuid for instance in instances for device in instance.compute]


def as_plannable(observed: ObservedNode, fenced: Fences) -> ObservedNode:
    """The node without the placements that touch fenced slices.

    The placement of an instance that is there stays: what fits the plan is kept, sick or not. The
    answer is for planning alone; what is shown is `observed`.

    Nothing is ever placed behind a fence this way, but some layouts that would fit are refused: the
    planner counts a card's media engines by the placements it sees. A planner that knows the mask
    of `Fences.slices` itself need not.
    """
    gpus = (_without(gpu, fenced.slices(gpu.uuid)) for gpu in observed.gpus)
    return replace(observed, gpus=tuple(gpus))


def _without(gpu: Gpu, slices: int) -> Gpu:
    if not slices:
        return gpu
    there = {(i.profile, i.placement) for i in gpu.instances}
    profiles = tuple(
        replace(
            profile,
            placements=tuple(
                p for p in profile.placements if not p.mask & slices or (profile.name, p) in there
            ),
        )
        for profile in gpu.profiles
    )
    return replace(gpu, profiles=profiles)


def held_calls(findings: Iterable[Finding]) -> frozenset[str]:
    """GPUs of which nothing should be asked: calls may never return, or the driver is not bound."""
    return frozenset(
        f.place.gpu
        for f in findings
        if (f.severity is Severity.UNHEALTHY and f.check == "xid" and f.code in BLOCKS_CALLS)
        or f.cause == "gpuUnbound"
    ) - {""}


def problems(fenced: Fences) -> tuple[Problem, ...]:
    """Each fence as a problem of its GPU, for where plans and states are told."""
    return tuple(
        Problem(
            Code.DRIVER,
            f"nothing new is placed on {_where(fence)}: {fence.finding.evidence}",
            BY_CAUSE[fence.finding.cause].advice,
            gpu=fence.gpu,
        )
        for fence in fenced.all
    )


def _where(fence: Fence) -> str:
    if fence.placement is None:
        return "the GPU"
    last = fence.placement.start + fence.placement.size - 1
    return f"memory slices {fence.placement.start} to {last}"
