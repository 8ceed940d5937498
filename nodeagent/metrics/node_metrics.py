"""What the agent says of its node in metrics: the plan, MIG's layout and room, what MPS serves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from nodeagent.metrics import agent_metrics
from nodeagent.metrics.agent_metrics import AgentSample
from nodeagent.plan.layouts import creatable, free_slots
from nodeagent.plan.observed import Access, ComputeInstance, Gpu, GpuInstance
from nodeagent.views.mps_state import ClientState, DaemonState
from nodeagent.views.node_state import NodeState, Phase

Labels = tuple[str, ...]


def node_samples(state: NodeState) -> Iterator[AgentSample]:
    """All of it. GPUs that do not answer are left out: what is known of them is old."""
    yield from _plan(state)
    for gpu in state.observed.gpus:
        if gpu.access is Access.OK and gpu.mig is not None and gpu.mig.current:
            yield from _layout(gpu)
    devices = _devices(state)
    for daemon in state.mps:
        yield from _daemon(daemon, devices.get(daemon.device) or _unseen(daemon.device))


def _plan(state: NodeState) -> Iterator[AgentSample]:
    if state.digest:
        yield AgentSample(agent_metrics.PLAN_APPLIED, int(state.phase is Phase.IN_SYNC))
    for phase in Phase:
        yield AgentSample(agent_metrics.PHASE, int(phase is state.phase), (phase.value,))


# --- MIG ------------------------------------------------------------------------------------------


def _layout(gpu: Gpu) -> Iterator[AgentSample]:
    labels = _gpu(gpu)
    counts = Counter(instance.profile for instance in gpu.instances)
    for profile, count in sorted(counts.items()):
        yield AgentSample(agent_metrics.MIG_INSTANCES, count, (*labels, profile))
    room = creatable(gpu)
    free = free_slots(gpu)
    for profile, count in room.items():
        yield AgentSample(agent_metrics.MIG_CREATABLE, count, (*labels, profile))
    yield AgentSample(agent_metrics.MIG_SLOTS_FREE, len(free), labels)
    usable = _usable(gpu, frozenset(free), frozenset(room))
    largest = max(map(len, usable), default=0)
    yield AgentSample(agent_metrics.MIG_LARGEST_CREATABLE, largest, labels)
    if free:
        reached = len(frozenset[int]().union(*usable))
        yield AgentSample(agent_metrics.MIG_UNUSABLE, 1 - reached / len(free), labels)
    slots = _slots(gpu)
    for instance in gpu.instances:
        for device in instance.compute:
            yield AgentSample(
                agent_metrics.MIG_DEVICE_INFO, 1, _device_info(gpu, instance, device, slots)
            )


def _usable(gpu: Gpu, free: frozenset[int], creatable: frozenset[str]) -> list[frozenset[int]]:
    """The sets of free slices that an instance of some creatable profile could take."""
    places = (
        frozenset(range(place.start, place.start + place.size))
        for profile in gpu.profiles
        if profile.name in creatable
        for place in profile.placements
    )
    return [place for place in places if place <= free]


def _slots(gpu: Gpu) -> int:
    ends = (place.start + place.size for p in gpu.profiles for place in p.placements)
    return max(ends, default=0)


def _device_info(gpu: Gpu, instance: GpuInstance, device: ComputeInstance, slots: int) -> Labels:
    place = instance.placement
    share = f"{place.size / slots:.4g}" if slots else ""
    return (
        *_device(gpu, instance, device),
        device.profile,
        str(place.start),
        str(place.size),
        share,
    )


# --- MPS ------------------------------------------------------------------------------------------


def _daemon(daemon: DaemonState, labels: Labels) -> Iterator[AgentSample]:
    yield AgentSample(agent_metrics.MPS_DAEMON_UP, int(daemon.is_ready), labels)
    yield AgentSample(agent_metrics.MPS_RESTARTS, daemon.restarts, labels)
    if daemon.server is not None:
        yield AgentSample(
            agent_metrics.MPS_SERVER_ACTIVE, int(daemon.server.status == "ACTIVE"), labels
        )
    yield AgentSample(agent_metrics.MPS_CLIENTS, len(daemon.clients), labels)
    intruders = sum(bool(client.findings) for client in daemon.clients)
    yield AgentSample(agent_metrics.MPS_INTRUDERS, intruders, labels)
    yield AgentSample(agent_metrics.MPS_WAITING, len(daemon.waiting), labels)
    for client in daemon.clients:
        yield from _client(client, labels)


def _client(client: ClientState, device: Labels) -> Iterator[AgentSample]:
    whose = (client.container, client.namespace, client.pod)
    labels = (*device, str(client.pid), client.slot or client.share, *whose)
    if client.memory_used is not None:
        yield AgentSample(agent_metrics.MPS_CLIENT_MEMORY, client.memory_used, labels)
    if client.memory_limit is not None:
        yield AgentSample(agent_metrics.MPS_CLIENT_MEMORY_LIMIT, client.memory_limit, labels)
    if client.threads is not None:
        yield AgentSample(agent_metrics.MPS_CLIENT_THREADS, client.threads, labels)


# --- labels ---------------------------------------------------------------------------------------


def _gpu(gpu: Gpu) -> Labels:
    return (str(gpu.index), gpu.uuid)


def _device(gpu: Gpu, instance: GpuInstance, device: ComputeInstance) -> Labels:
    return (*_gpu(gpu), instance.profile, str(instance.id), str(device.id), device.uuid)


def _unseen(device: str) -> Labels:
    """Of a device that was not seen, its UUID is all that is known."""
    return ("", "", "", "", "", device) if device.startswith("MIG-") else ("", device, *[""] * 4)


def _devices(state: NodeState) -> dict[str, Labels]:
    """The labels of each device that a daemon can be for, by UUID."""
    found: dict[str, Labels] = {}
    for gpu in state.observed.gpus:
        found[gpu.uuid] = (*_gpu(gpu), "", "", "", "")
        for instance in gpu.instances:
            for device in instance.compute:
                found[device.uuid] = _device(gpu, instance, device)
    return found
