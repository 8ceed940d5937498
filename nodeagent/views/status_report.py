"""The agent's state as the JSON of `GET /v1/status`, `status -o json` and the event stream."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nodeagent.health.findings import Severity, worst
from nodeagent.health.reporting import health_json, of_gpu
from nodeagent.health.state import HealthState
from nodeagent.health.table import BY_CAUSE, Check
from nodeagent.plan.layout import creatable, free_slots
from nodeagent.plan.observed import (
    Access,
    ComputeInstance,
    Gpu,
    GpuInstance,
    Memory,
    Usage,
    User,
)
from nodeagent.views.cluster_state import cluster_json
from nodeagent.views.devices import places
from nodeagent.views.headline import headline, headline_json
from nodeagent.views.mps_report import mps_json
from nodeagent.views.mps_state import DaemonState
from nodeagent.views.node_state import NodeState
from nodeagent.views.plan_report import mode_json, problem_json
from nodeagent.views.times import time_json

Json = dict[str, Any]


def status_json(state: NodeState, *, gpu: str | None = None) -> Json | None:
    """The whole state, or that of one GPU by UUID: None when the node has no such GPU."""
    gpus = [g for g in state.observed.gpus if gpu is None or g.uuid == gpu]
    if gpu is not None and not gpus:
        return None
    problems = [p for p in state.problems if gpu is None or p.gpu in ("", gpu)]
    report: Json = {
        "node": state.node,
        "headline": headline_json(headline(state, in_cluster=state.cluster is not None)),
        "phase": state.phase.value,
        "message": state.sentence,
        "source": state.source,
    }
    if state.digest:
        report["digest"] = state.digest
    if state.configuration is not None:
        report["configuration"] = state.configuration
    if state.refusal:
        report["rejected"] = {
            **({"digest": state.refusal.digest} if state.refusal.digest else {}),
            "problems": [problem_json(p) for p in state.refusal.problems],
        }
    if state.observed_at:
        report["observedAt"] = time_json(state.observed_at)
    if state.observed.driver_version:
        report["driverVersion"] = state.observed.driver_version
    if state.cluster:
        report["cluster"] = cluster_json(state.cluster)
    if state.health:
        report["health"] = health_json(of_gpu(state.health, ""))
    report["gpus"] = [gpu_json(g, state.health) for g in gpus]
    report["mps"] = mps_json(_daemons(state, gpu), state.observed)
    report["problems"] = [problem_json(p) for p in problems]
    return report


def _daemons(state: NodeState, gpu: str | None) -> tuple[DaemonState, ...]:
    """All daemons, or those of one GPU and of the MIG devices on it."""
    if gpu is None:
        return state.mps
    there = {place.device for place in places(state.observed) if place.gpu.uuid == gpu}
    return tuple(daemon for daemon in state.mps if daemon.device in there)


def gpu_json(gpu: Gpu, health: HealthState | None = None) -> Json:
    """One GPU with its instances; what is not known is left out."""
    report: Json = {"index": gpu.index}
    if gpu.uuid:
        report["uuid"] = gpu.uuid
    if gpu.name:
        report["name"] = gpu.name
    if gpu.pci_bus_id:
        report["pciBusId"] = gpu.pci_bus_id
    if gpu.memory:
        report["memory"] = {"total": gpu.memory}
    if gpu.mig:
        report["mig"] = mode_json(gpu)
    report |= _modes(gpu)
    report |= place_json(gpu)
    report["slots"] = slots(gpu)
    answers = gpu.access is Access.OK
    seen = gpu.instances if answers else tuple(map(_last_seen, gpu.instances))
    report["instances"] = [entry for instance in seen for entry in _instances(instance)]
    report["users"] = [user_json(user) for user in gpu.usage.processes] if answers else []
    if answers:
        report["free"] = {"slots": list(free_slots(gpu)), "creatable": creatable(gpu)}
    report["health"] = _health(gpu, health)
    return report


def place_json(gpu: Gpu) -> Json:
    """Where the GPU is in the machine, as far as it is known."""
    report: Json = {}
    if gpu.numa_node is not None:
        report["numaNode"] = gpu.numa_node
    if gpu.nvlink is not None:
        links = gpu.nvlink
        report["nvlink"] = {
            "total": links.total,
            "active": links.active,
            "peers": dict(links.peers),
        }
    return report


def _last_seen(instance: GpuInstance) -> GpuInstance:
    """An instance of a GPU that does not answer: who uses it, and how much of it, is not known."""
    unknown = Usage(known=False, reason="the GPU does not answer")
    compute = tuple(replace(device, usage=unknown, memory=None) for device in instance.compute)
    return replace(instance, compute=compute)


def user_json(user: User) -> Json:
    """Who uses a device; `pid` is absent where only an allocation is known."""
    report: Json = {"source": user.source}
    if user.pid:
        report["pid"] = user.pid
    if user.command:
        report["command"] = user.command
    if user.memory is not None:
        report["memory"] = {"used": user.memory}
    if user.pod:
        report["pod"] = {
            "namespace": user.namespace,
            "name": user.pod,
            "container": user.container,
        }
    return report


def slots(gpu: Gpu) -> int:
    """How many memory slices the card is divided into; 0 without MIG."""
    ends = (p.start + p.size for profile in gpu.profiles for p in profile.placements)
    return max(ends, default=0)


def _instances(instance: GpuInstance) -> list[Json]:
    """One entry for each device; a half-made GPU instance has one without UUID and `ci`."""
    place: Json = {
        "start": instance.placement.start,
        "size": instance.placement.size,
        "gi": instance.id,
    }
    if not instance.compute:
        return [{"profile": instance.profile, **place, "inUse": False, "users": []}]
    return [_device(device, place) for device in instance.compute]


def _device(device: ComputeInstance, place: Json) -> Json:
    report: Json = {"uuid": device.uuid, "profile": device.profile, **place, "ci": device.id}
    report["inUse"] = device.usage.in_use
    report["users"] = [user_json(user) for user in device.usage.processes]
    if not device.usage.known:
        report["usersUnknown"] = device.usage.reason or "it could not be found out"
    if device.memory:
        report["memory"] = _memory(device.memory)
    return {**report, **_modes(device)}


def _modes(holder: Gpu | ComputeInstance) -> Json:
    """Who may have a context, and for how long at a time; a MIG device has no time slice."""
    report: Json = {}
    if holder.compute_mode is not None:
        report["computeMode"] = holder.compute_mode.value
    if isinstance(holder, Gpu) and holder.time_slice is not None:
        report["timeSlice"] = holder.time_slice.value
    return report


def _memory(memory: Memory) -> Json:
    return {"used": memory.used, "total": memory.total}


def _health(gpu: Gpu, health: HealthState | None) -> Json:
    """What the checks found; and that the driver does not answer, where they know not yet."""
    found = of_gpu(health, gpu.uuid) if health and gpu.uuid else ()
    report = health_json(found)
    if gpu.access is Access.OK or any(f.check == Check.GPU_ACCESS for f in found):
        return report
    row = BY_CAUSE["gpuLost" if gpu.access is Access.LOST else "gpuUnknown"]
    silence: Json = {
        "check": row.check.value,
        "cause": row.cause,
        "severity": row.severity.value,
        "message": row.words,
        "evidence": gpu.access_reason or "the driver does not answer for it",
        "suggestedAction": row.action.value,
        "advice": row.advice,
    }
    status = worst((Severity(report["status"]), row.severity))
    return {"status": status.value, "findings": [silence, *report["findings"]]}
