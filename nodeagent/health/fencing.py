"""What is unhealthy and gets no new work, while its siblings go on.

A fence takes nothing away: what runs, runs on, and the plan's devices stay. It says three things.

- **The planner** must not create on fenced slices. `as_fenced` marks them: it keeps
  unhealthy devices that the plan wants and puts nothing else on their slices.
- **MPS daemons** of fenced devices stop taking clients (`reasons`, by UUID).
- **Driver calls** to some GPUs should wait, since they may never return (`held_calls`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from nodeagent.health import limits
from nodeagent.health.findings import End, Finding, Severity, in_order
from nodeagent.health.table import BY_CAUSE, GONE, words_of
from nodeagent.health.xids import BLOCKS_CALLS
from nodeagent.plan.observed import (
    HEALTHY,
    ComputeInstance,
    Gpu,
    GpuInstance,
    HealthLimits,
    ObservedNode,
    Placement,
    mask_of,
    users_of,
)
from nodeagent.plan.users import User
from nodeagent.structs import Struct, replace


class Fence(Struct, frozen=True):
    """An unhealthy part of a GPU: all of it if `placement` is None, else some of its memory slices.

    `devices` are the UUIDs of what can be used there: MIG devices, or the GPU itself.
    An unhealthy compute instance fences the slices of its GPU instance, but of the devices only
    its own.
    """

    gpu: str
    placement: Placement | None
    devices: frozenset[str]
    finding: Finding


class Fences(Struct, frozen=True):
    """All fences of the node."""

    all: tuple[Fence, ...] = ()

    @property
    def gpus(self) -> frozenset[str]:
        return frozenset(f.gpu for f in self.all if f.placement is None)

    @property
    def reasons(self) -> Mapping[str, str]:
        """The devices whose MPS daemons stop taking clients, each with why: the first finding that
        says so.
        """
        return {
            device: f"it {words(fence.finding)}"
            for fence in reversed(self.all)
            for device in fence.devices
        }

    def slices(self, gpu: str) -> int:
        """The fenced memory slices of a GPU as bits; all of them where the whole GPU is fenced."""
        if gpu in self.gpus:
            return ~0
        return mask_of(f.placement for f in self.all if f.gpu == gpu and f.placement)


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
    divided = gpu.in_mig_mode
    unhealthy = None
    if place.instance is not None and divided:  # without MIG nothing keeps work off some slices
        now = (i.placement for i in gpu.instances if i.id == place.instance)
        unhealthy = place.placement or next(now, None)
    # Also where it is not known where it lay: the whole GPU is under suspicion.
    if unhealthy is None:
        return Fence(gpu.uuid, None, frozenset({gpu.uuid, *_devices(gpu.instances)}), finding)
    instances = tuple(i for i in gpu.instances if i.placement.mask & unhealthy.mask)
    exact = next(
        (i for i in instances if i.id == place.instance and i.placement == unhealthy), None
    )
    if exact is not None and place.compute is not None:
        devices = {c.uuid for c in exact.compute if c.id == place.compute}
    else:
        devices = set(_devices(instances))
    return Fence(gpu.uuid, unhealthy, frozenset(devices), finding)


def _devices(instances: Iterable[GpuInstance]) -> list[str]:
    return [device.uuid for instance in instances for device in instance.compute]


def as_fenced(
    observed: ObservedNode, fenced: Fences, advice: Callable[[Finding, int], str]
) -> ObservedNode:
    """The node with its fences as the planner's health limits; `advice` says what to do about a
    finding of the GPU with this index.
    """
    gpus = tuple(
        replace(gpu, health_limits=_health_limits(gpu, fenced, advice)) for gpu in observed.gpus
    )
    return replace(observed, gpus=gpus)


def _health_limits(gpu: Gpu, fenced: Fences, advice: Callable[[Finding, int], str]) -> HealthLimits:
    mine = [fence for fence in fenced.all if fence.gpu == gpu.uuid]
    if not mine:
        return HEALTHY
    whole = gpu.uuid in fenced.gpus
    # Of a GPU that is unhealthy as a whole, the finding that makes it so.
    causes = [fence.finding for fence in mine if fence.placement is None or not whole]
    why = next((f for f in causes if f.cause in GONE), causes[0])
    slices, gone = 0 if whole else fenced.slices(gpu.uuid), why.cause in GONE
    return HealthLimits(slices, whole, f"it {words(why)}", advice(why, gpu.index), gone)


def words(finding: Finding) -> str:
    """Describe a finding without figures that change while it lasts: `has ... errors (XID 95)`."""
    said = words_of(finding)
    return f"{said} (XID {finding.code})" if finding.check == "xid" else said


def held_calls(findings: Iterable[Finding]) -> frozenset[str]:
    """GPUs of which nothing should be asked: calls may never return, or the driver is not bound."""
    return frozenset(
        f.place.gpu
        for f in findings
        if (f.severity is Severity.UNHEALTHY and f.check == "xid" and f.code in BLOCKS_CALLS)
        or f.cause == "gpuUnbound"
    ) - {""}


# --- the pods that a finding hit ---


def with_pods(finding: Finding, observed: ObservedNode, uptime: float) -> Finding:
    """The finding with the pods that used what it hit, as far as they are seen soon enough.

    A finding of a known process hits that process' pod and no other. Pods are never taken away:
    one that was hit and is gone since stays in the finding until it ends; of many the newest.
    """
    gpu = observed.gpu(finding.place.gpu)
    measured = End.GONE in BY_CAUSE[finding.cause].ends  # again and again, so `last` is always now
    hit = finding.since if measured else finding.last
    if gpu is None or uptime - hit.uptime > limits.HIT_SEEN:
        return finding
    users = (user for user in _users(gpu, finding) if finding.pid in (0, user.pid))
    pods = {pod for user in users if (pod := user.in_container)}
    kept = (*sorted(pods), *(pod for pod in finding.pods if pod not in pods))[: limits.PODS_NAMED]
    return replace(finding, pods=tuple(sorted(kept)))


def _users(gpu: Gpu, finding: Finding) -> Iterator[User]:
    place = finding.place
    holders: list[Gpu | ComputeInstance] = [gpu] if place.instance is None else []
    holders += [
        device
        for instance, device in gpu.mig_devices()
        if place.instance in (None, instance.id)
        and place.placement in (None, instance.placement)
        and place.compute in (None, device.id)
    ]
    for holder in holders:
        yield from users_of(holder)
