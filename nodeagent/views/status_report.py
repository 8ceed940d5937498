"""The agent's state as the JSON of `GET /v1/status`, `status -o json` and the event stream."""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from nodeagent import __version__
from nodeagent.health.findings import Finding, Moment, in_order, worst
from nodeagent.health.reporting import of_gpu
from nodeagent.health.state import HealthState
from nodeagent.health.table import BY_CAUSE, GONE, Check, words_of
from nodeagent.plan.layouts import Card, creatable, free_slots
from nodeagent.plan.observed import Access, Gpu, GpuInstance
from nodeagent.plan.users import Usage, User
from nodeagent.structs import replace
from nodeagent.views import status_shapes
from nodeagent.views.claims import with_use
from nodeagent.views.devices import devices_by_uuid, gpu_of
from nodeagent.views.headline import headline, troubles
from nodeagent.views.health_remedies import HealthRemedies
from nodeagent.views.mps import daemon_shapes
from nodeagent.views.node_state import CLOCK_REASONS, NodeState, Reading
from nodeagent.views.plan_report import mode_shape
from nodeagent.views.shapes import Json, as_json
from nodeagent.views.text import time_json


def status_json(state: NodeState, gpu: str | None = None) -> Json | None:
    """The whole state, or that of one GPU by UUID: None when the node has no such GPU."""
    gpus = [g for g in state.observed.gpus if gpu is None or g.uuid == gpu]
    if gpu is not None and not gpus:
        return None
    problems = [p for p in state.problems if gpu is None or p.gpu in ("", gpu)]
    less = [p for p in state.less_offered if gpu is None or p.gpu == gpu]
    devices = devices_by_uuid(state.observed)
    daemons = [
        d for d in state.mps if gpu is None or gpu in (gpu_of(one, devices) for one in d.serves)
    ]
    # Those with a device of the GPU, or none yet of any.
    claims = (
        claim
        for claim in state.claims or ()
        if gpu in (None, *(device.gpu for device in claim.devices)) or not claim.devices
    )
    remedies = HealthRemedies(state.node, state.runs_as, state.observed)
    report = status_shapes.Status(
        node=state.node,
        version=__version__,
        started_at=time_json(state.started_at) if state.started_at else "",
        headline=headline(state),
        troubles=[t for t in troubles(state, remedies) if gpu is None or t.gpu in ("", gpu)],
        phase=state.phase,
        message=state.sentence,
        source=state.source,
        digest=state.digest,
        configuration=state.configuration,
        rejected=state.refusal,
        observed_at=time_json(state.observed_at) if state.observed_at else "",
        driver_version=state.observed.driver_version,
        cluster=state.cluster,
        health=health_shape(of_gpu(state.health, ""), remedies) if state.health else None,
        gpus=[_gpu(g, state, _health(g, state.health, remedies)) for g in gpus],
        mps=daemon_shapes(daemons, state.observed),
        claims=None if state.claims is None else with_use(claims, state.mps),
        less_offered=less or None,
        problems=problems,
    )
    return as_json(report)


# --- GPUs -----------------------------------------------------------------------------------------


_Readings = Mapping[tuple[str, int | None], Reading]
_NOT_READ = Reading()
_FIGURES = (  # that are shown as they were read
    *("temperature", "slowdown_temperature", "power", "power_limit", "sm_clock", "memory_clock"),
    *("ecc_corrected", "ecc_uncorrected"),
)


def _gpu(gpu: Gpu, state: NodeState, health: status_shapes.Health) -> status_shapes.Gpu:
    answers, share = gpu.answers, state.free_shares.get(gpu.uuid)
    found: _Readings = state.readings if answers else {}
    whole = found.get((gpu.uuid, None), _NOT_READ)
    bits = whole.clock_reasons
    seen = gpu.instances if answers else tuple(map(_last_seen, gpu.instances))
    return status_shapes.Gpu(
        index=gpu.index,
        uuid=gpu.uuid,
        name=gpu.name,
        pci_bus_id=gpu.pci_bus_id,
        memory=status_shapes.GpuMemory(total=gpu.memory, used=whole.memory) if gpu.memory else None,
        mig=mode_shape(gpu),
        compute_mode=gpu.compute_mode,
        time_slice=gpu.time_slice,
        numa_node=gpu.numa_node,
        nvlink=nvlink_shape(gpu),
        utilization=utilization(gpu, found),
        **{name: getattr(whole, name) for name in _FIGURES},
        clock_reasons=None
        if bits is None
        else [word for bit, word in enumerate(CLOCK_REASONS) if bits >> bit & 1],
        xids=_xids(state.health, gpu.uuid) if state.health else None,
        slots=Card.of(gpu).slots,
        instances=[
            entry
            for instance in seen
            for entry in _instances(instance, found.get((gpu.uuid, instance.id), _NOT_READ))
        ],
        users=[_user(user) for user in gpu.usage.processes] if answers else [],
        users_unknown=_unknown(gpu.usage) if answers else "",
        free=status_shapes.Free(slots=list(free_slots(gpu)), creatable=creatable(gpu), share=share)
        if answers
        else None,
        health=health,
    )


def _xids(health: HealthState, uuid: str) -> dict[str, int]:
    found = Counter[str]()
    for xid in health.xids:
        if xid.gpu == uuid:
            found[str(xid.xid)] += xid.count
    return dict(found)


def utilization(gpu: Gpu, readings: _Readings) -> float | None:
    """The GPU's own; with MIG, where it has none, what its instances make of all its slices."""
    whole = readings.get((gpu.uuid, None), _NOT_READ).utilization
    if whole is not None or not gpu.instances:
        return whole
    sizes = {profile.name: profile.slices for profile in gpu.profiles}
    used = 0.0
    for instance in gpu.instances:
        busy = readings.get((gpu.uuid, instance.id), _NOT_READ).utilization
        if busy is None or instance.profile not in sizes:
            return None
        used += busy * sizes[instance.profile]
    return round(used / max(sizes.values()), 1)


def nvlink_shape(gpu: Gpu) -> status_shapes.Nvlink | None:
    """The NVLinks of a GPU, as far as they are known."""
    if gpu.nvlink is None:
        return None
    links = gpu.nvlink
    return status_shapes.Nvlink(total=links.total, active=links.active, peers=dict(links.peers))


def _last_seen(instance: GpuInstance) -> GpuInstance:
    """An instance of a GPU that does not answer: who uses it, and how much of it, is not known."""
    unknown = Usage(known=False, reason="the GPU does not answer")
    compute = tuple(replace(device, usage=unknown, memory=None) for device in instance.compute)
    return replace(instance, compute=compute)


def _user(user: User) -> status_shapes.User:
    """Who uses a device; `pid` is absent where only an allocation is known."""
    return status_shapes.User(
        source=user.source,
        pid=user.pid or None,
        command=user.command,
        script=user.script,
        user=user.uid,
        memory=None if user.memory is None else status_shapes.UserMemory(used=user.memory),
        pod=user.in_container,
    )


def _unknown(usage: Usage) -> str:
    """Why it is not known who else uses it; "" where it is."""
    return "" if usage.known else usage.reason or "they could not be read"


def _instances(instance: GpuInstance, reading: Reading) -> list[status_shapes.Instance]:
    """One entry for each device; a half-made GPU instance has one without UUID and `ci`."""
    lies = instance.placement
    place: Json = {"start": lies.start, "size": lies.size, "gi": instance.id}
    return [
        status_shapes.Instance(
            uuid=device.uuid,
            profile=device.profile,
            ci=device.id,
            in_use=device.usage.in_use,
            users=[_user(user) for user in device.usage.processes],
            users_unknown=_unknown(device.usage),
            memory=device.memory,
            compute_mode=device.compute_mode,
            utilization=reading.utilization if len(instance.compute) == 1 else None,
            **place,
        )
        for device in instance.compute
    ] or [status_shapes.Instance(profile=instance.profile, in_use=False, users=[], **place)]


# --- health ---------------------------------------------------------------------------------------


def health_shape(
    findings: Iterable[Finding], remedies: HealthRemedies, gpu: int | None = None
) -> status_shapes.Health:
    """The health of a GPU, by index, or of the node: the status that the findings make, and the
    findings.
    """
    ordered = in_order(findings)
    return status_shapes.Health(
        status=worst(f.severity for f in ordered),
        findings=[_finding(f, remedies.of_finding(f, gpu)) for f in ordered],
    )


def _health(gpu: Gpu, health: HealthState | None, remedies: HealthRemedies) -> status_shapes.Health:
    """What the checks found; and that the driver does not answer, where they know not yet."""
    found = of_gpu(health, gpu.uuid) if health and gpu.uuid else ()
    report = health_shape(found, remedies, gpu.index)
    if gpu.answers or any(f.check == Check.GPU_ACCESS or f.cause in GONE for f in found):
        return report
    row = BY_CAUSE["gpuLost" if gpu.access is Access.LOST else "gpuUnknown"]
    silence = status_shapes.HealthFinding(
        check=row.check.value,
        cause=row.cause,
        severity=row.severity,
        message=row.words,
        evidence=gpu.access_reason or "the driver does not answer for it",
        suggested_action=row.action,
        advice=remedies.of(row.cause, row.action, gpu.index),
    )
    status = worst((report.status, row.severity))
    return replace(report, status=status, findings=[silence, *report.findings])


def _finding(finding: Finding, advice: str) -> status_shapes.HealthFinding:
    place = finding.place
    lies = place.placement
    return status_shapes.HealthFinding(
        check=finding.check,
        cause=finding.cause,
        severity=finding.severity,
        message=words_of(finding),
        evidence=finding.evidence,
        suggested_action=finding.action,
        advice=advice,
        since=_time(finding.since),
        last_seen=_time(finding.last),
        count=finding.count,
        xid=finding.code if finding.check == "xid" else None,
        links=list(finding.parts) or None,
        gi=place.instance,
        ci=place.compute,
        start=lies.start if lies else None,
        size=lies.size if lies else None,
        pid=finding.pid or None,
        pods=list(finding.pods),
    )


def _time(moment: Moment) -> str:
    return time_json(datetime.fromtimestamp(moment.wall, UTC))
