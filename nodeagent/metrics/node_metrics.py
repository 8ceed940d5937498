"""What the agent says of its node in metrics: plan, MIG, MPS, claims and health."""

from collections import Counter
from collections.abc import Iterator
from functools import reduce
from operator import or_

from nodeagent.health.findings import Severity, worst
from nodeagent.health.state import HealthState
from nodeagent.health.table import ROWS
from nodeagent.metrics.agent_metrics import AgentSample
from nodeagent.plan.layouts import Card, creatable, fragmentation, free_slots
from nodeagent.plan.observed import ComputeInstance, Gpu, GpuInstance
from nodeagent.views.claims import Claim, ClaimDevice, ClaimPhase, with_use
from nodeagent.views.node_state import NodeState, Phase
from nodeagent.views.shapes import MpsClient, MpsDaemon, MpsMemory

Labels = tuple[str, ...]


def node_samples(state: NodeState) -> Iterator[AgentSample]:
    """All of it. GPUs that do not answer are left out: what is known of them is old."""
    if state.digest:
        yield AgentSample("nodeagent_plan_applied", int(state.phase is Phase.IN_SYNC))
    for phase in Phase:
        yield AgentSample("nodeagent_phase", int(phase is state.phase), (phase.value,))
    for gpu in state.observed.gpus:
        if gpu.answers and gpu.in_mig_mode:
            yield from _layout(gpu)
    devices = _devices(state)
    for daemon in state.mps:
        yield from _daemon(daemon, devices.get(daemon.device) or _unseen(daemon.device))
    yield from claim_samples(state)


# --- MIG ------------------------------------------------------------------------------------------


def _layout(gpu: Gpu) -> Iterator[AgentSample]:
    labels = _gpu(gpu)
    counts = Counter(instance.profile for instance in gpu.instances)
    for profile, count in sorted(counts.items()):
        yield AgentSample("nodeagent_mig_instances", count, (*labels, profile))
    room = creatable(gpu)
    free = free_slots(gpu)
    card, taken = Card.of(gpu), ~sum(1 << slot for slot in free)
    for profile in card.profiles:
        yield AgentSample("nodeagent_mig_creatable", room.get(profile, 0), (*labels, profile))
    yield AgentSample("nodeagent_mig_slots_free", len(free), labels)
    masks = (mask for name in room for mask in card.profiles[name].masks.values())
    usable = [mask for mask in masks if not mask & taken]  # that some creatable profile could take
    largest = max((mask.bit_count() for mask in usable), default=0)
    yield AgentSample("nodeagent_mig_largest_creatable_slots", largest, labels)
    if free:
        reached = reduce(or_, usable, 0).bit_count()
        yield AgentSample("nodeagent_mig_slots_unusable_ratio", 1 - reached / len(free), labels)
    fragmented = fragmentation(gpu)
    if fragmented is not None:
        yield AgentSample("nodeagent_mig_fragmentation_ratio", fragmented, labels)
    for instance, device in gpu.mig_devices():
        info = _device_info(gpu, instance, device, card.slots)
        yield AgentSample("nodeagent_mig_device_info", 1, info)


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


# --- claims of pods -------------------------------------------------------------------------------

_HOLDING = frozenset({ClaimPhase.READY, ClaimPhase.RELEASING})


def claim_samples(state: NodeState) -> Iterator[AgentSample]:
    """Claims by phase, and the memory slices that they have; nothing where none are served."""
    if state.claims is None:
        return
    counts = Counter(claim.phase for claim in state.claims)
    for phase in ClaimPhase:
        yield AgentSample("nodeagent_claims", counts[phase], (phase.value,))
    slots = {gpu.uuid: Card.of(gpu).slots for gpu in state.observed.gpus}
    for claim in with_use(state.claims, state.mps):
        if claim.phase in _HOLDING:
            for device in claim.devices:
                yield from _held(claim, device, slots.get(device.gpu, 0))
    for gpu in state.observed.gpus:
        if free := state.free_shares.get(gpu.uuid):
            yield AgentSample("nodeagent_shares_free_memory_bytes", free.memory, _gpu(gpu))
            if free.threads is not None:
                yield AgentSample(
                    "nodeagent_shares_free_thread_percentage", free.threads, _gpu(gpu)
                )


def _held(claim: Claim, device: ClaimDevice, slots: int) -> Iterator[AgentSample]:
    """A share has no slices of its own, and an administrator's device is another's."""
    size = device.size if device.size is not None else slots or 1
    if device.admin_access:
        return
    index = "" if device.index is None else str(device.index)
    instance = "" if device.gi is None else str(device.gi)
    pod = claim.pods[0].name if len(claim.pods) == 1 else ""
    where = (index, device.gpu, device.profile, instance)
    whose = (claim.namespace, claim.name, pod)
    if share := device.share:
        labels = (*where, claim.namespace, claim.name, device.request, pod)
        yield AgentSample("nodeagent_claim_share_memory_limit_bytes", share.memory, labels)
        if share.used is not None:
            yield AgentSample("nodeagent_claim_share_memory_used_bytes", share.used, labels)
        if share.threads is not None:
            yield AgentSample(
                "nodeagent_claim_share_active_thread_percentage", share.threads, labels
            )
        return
    yield AgentSample("nodeagent_claim_slices", size, (*where, *whose))


# --- MPS ------------------------------------------------------------------------------------------


def _daemon(daemon: MpsDaemon, labels: Labels) -> Iterator[AgentSample]:
    yield AgentSample("nodeagent_mps_daemon_up", int(daemon.is_ready), labels)
    yield AgentSample("nodeagent_mps_restarts_total", daemon.restarts, labels)
    if daemon.server is not None:
        yield AgentSample(
            "nodeagent_mps_server_active", int(daemon.server.status == "ACTIVE"), labels
        )
    yield AgentSample("nodeagent_mps_clients", len(daemon.clients), labels)
    intruders = sum(bool(client.findings) for client in daemon.clients)
    yield AgentSample("nodeagent_mps_intruders", intruders, labels)
    yield AgentSample("nodeagent_mps_waiting_clients", len(daemon.waiting), labels)
    for client in daemon.clients:
        yield from _client(client, labels)


def _client(client: MpsClient, device: Labels) -> Iterator[AgentSample]:
    pod, memory = client.pod, client.memory or MpsMemory()
    whose = (pod.container, pod.namespace, pod.name) if pod else (client.container, "", "")
    labels = (*device, str(client.pid), client.slot or client.share, *whose)
    if memory.used is not None:
        yield AgentSample("nodeagent_mps_client_memory_bytes", memory.used, labels)
    if memory.limit is not None:
        yield AgentSample("nodeagent_mps_client_memory_limit_bytes", memory.limit, labels)
    if client.threads is not None:
        yield AgentSample(
            "nodeagent_mps_client_active_thread_percentage", float(client.threads), labels
        )


# --- health ---------------------------------------------------------------------------------------

# A check's figure: 1 is well. There is none for what is not known, or cannot be read.
_FIGURES = {Severity.HEALTHY: 1.0, Severity.DEGRADED: 0.5, Severity.UNHEALTHY: 0.0}
_CHECKS = {name: n for n, name in enumerate(dict.fromkeys(row.check.value for row in ROWS))}


def health_samples(state: HealthState) -> Iterator[AgentSample]:
    """Samples of each GPU's checks, of findings and of XIDs."""
    yield from check_samples(state)
    for finding in state.findings:
        place = finding.place
        labels = (
            *_known_gpu(state, place.gpu),
            *map(_number, (place.instance, place.compute)),
            finding.check,
            finding.cause,
            "" if finding.code < 0 else str(finding.code),
            finding.severity.value,
            finding.action.value,
        )
        yield AgentSample("nodeagent_gpu_finding", 1.0, labels)
    events = Counter(dict.fromkeys(state.gpus, 0))
    for count in state.xids:
        events[count.gpu] += count.count
    for gpu in sorted(events):
        labels = _known_gpu(state, gpu)
        yield AgentSample("nodeagent_gpu_xid_events_total", float(events[gpu]), labels)
    for count in sorted(state.xids, key=lambda c: (c.gpu, c.xid, _number(c.instance))):
        labels = (str(count.xid), *_known_gpu(state, count.gpu), _number(count.instance))
        yield AgentSample("nodeagent_gpu_xid_total", float(count.count), labels)
        yield AgentSample("nodeagent_gpu_xid_last_timestamp_seconds", count.last.wall, labels)


def check_samples(state: HealthState) -> Iterator[AgentSample]:
    """A figure for each check of each GPU."""
    status: dict[tuple[str, str], list[Severity]] = {
        (uuid, check): [] for uuid, past in state.gpus.items() for check in past.checked
    }
    for finding in state.findings:
        status.setdefault((finding.place.gpu, finding.check), []).append(finding.severity)
    for gpu, check in sorted(status, key=lambda known: (known[0], _CHECKS[known[1]])):
        figure = _FIGURES.get(worst(status[gpu, check]))
        if figure is not None:
            labels = (check, *_known_gpu(state, gpu))
            yield AgentSample("nodeagent_gpu_health", figure, labels)


def _known_gpu(state: HealthState, uuid: str) -> Labels:
    known = state.gpus.get(uuid)
    return (str(known.index) if known else "", uuid)


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


# --- labels ---------------------------------------------------------------------------------------


def _gpu(gpu: Gpu) -> Labels:
    return (str(gpu.index), gpu.uuid)


def _device(gpu: Gpu, instance: GpuInstance, device: ComputeInstance) -> Labels:
    return (*_gpu(gpu), instance.profile, str(instance.id), str(device.id), device.uuid)


def _unseen(device: str) -> Labels:
    """The labels of a device that was not seen, of which only the UUID is known."""
    return ("", "", "", "", "", device) if device.startswith("MIG-") else ("", device, *[""] * 4)


def _devices(state: NodeState) -> dict[str, Labels]:
    """The labels of each device that a daemon can be for, by UUID."""
    found: dict[str, Labels] = {}
    for gpu in state.observed.gpus:
        found[gpu.uuid] = (*_gpu(gpu), "", "", "", "")
        for instance, device in gpu.mig_devices():
            found[device.uuid] = _device(gpu, instance, device)
    return found
