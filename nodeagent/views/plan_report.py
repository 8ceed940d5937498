"""A plan, and what came of it, as the JSON of `plan`, `apply`, `/v1/plan` and the preview.

Keys are camelCase, sizes bytes; a key that is absent is not known.
"""

from __future__ import annotations

from typing import Any, assert_never

from nodeagent.plan.observed import Gpu, GpuInstance
from nodeagent.plan.outcome import GpuOutcome, NodeOutcome, StepReport
from nodeagent.plan.plan import GpuPlan, NodePlan, Verdict
from nodeagent.plan.problems import Problem
from nodeagent.plan.steps import (
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    ResetGpu,
    SetComputeMode,
    SetMigMode,
    SetTimeSlice,
    StartMps,
    Step,
    StopMps,
)
from nodeagent.views.mps_report import shares_json, user_json

MODE_WORD = {True: "enabled", False: "disabled"}

Json = dict[str, Any]


def plan_json(plan: NodePlan, *, digest: str, source: str) -> Json:
    """The whole plan."""
    return {
        "verdict": plan.verdict.value,
        **_digest_json(digest),
        "source": source,
        "gpus": [_gpu_plan_json(gpu) for gpu in plan.gpus],
        "problems": [
            problem_json(problem)
            for problems in (plan.problems, *(gpu.problems for gpu in plan.gpus))
            for problem in problems
        ],
    }


def rejection_json(
    problems: tuple[Problem, ...], verdict: Verdict, *, digest: str, source: str
) -> Json:
    """A document that was refused whole, in the same shape."""
    return {
        "verdict": verdict.value,
        **_digest_json(digest),
        "source": source,
        "gpus": [],
        "problems": [problem_json(problem) for problem in problems],
    }


def _digest_json(digest: str) -> Json:
    """Absent where there is no text to speak of."""
    return {"digest": digest} if digest else {}


def outcome_json(outcome: NodeOutcome, *, digest: str, source: str) -> Json:
    """The plan with the result of every step; `after` is what was read back."""
    done = {g.plan.before.key: g for g in outcome.gpus}
    result = plan_json(outcome.plan, digest=digest, source=source)
    for planned, gpu in zip(outcome.plan.gpus, result["gpus"], strict=True):
        came = done.get(planned.before.key)
        if came is not None:
            _add_outcome(gpu, came)
            result["problems"] += [problem_json(p) for p in came.problems]
    return result


def _add_outcome(gpu: Json, came: GpuOutcome) -> None:
    gpu["steps"] = [_report_json(report) for report in came.steps]
    gpu["after"] = devices_json(came.after)
    if came.after.mig is not None:
        gpu.setdefault("mig", {})["after"] = mode_json(came.after)
    if came.restored:
        gpu["restored"] = [_report_json(report) for report in came.restored]


def problem_json(problem: Problem) -> Json:
    """One problem; keys that say nothing are left out."""
    full = {
        "code": problem.code.value,
        "gpu": problem.gpu,
        "path": problem.path,
        "message": problem.message,
        "remedy": problem.remedy,
    }
    return {key: value for key, value in full.items() if value}


def mode_json(gpu: Gpu) -> Json | None:
    """Current and pending MIG mode; None where the GPU has no MIG."""
    if gpu.mig is None:
        return None
    return {"current": MODE_WORD[gpu.mig.current], "pending": MODE_WORD[gpu.mig.pending]}


def _gpu_plan_json(plan: GpuPlan) -> Json:
    known = {"uuid": plan.before.uuid, "name": plan.before.name}
    report: Json = {
        "index": plan.before.index,
        **{key: value for key, value in known.items() if value},
        "verdict": plan.verdict.value,
    }
    modes = {"before": mode_json(plan.before), "after": mode_json(plan.after)}
    if plan.before.mig is not None:
        report["mig"] = modes
    return {
        **report,
        "before": devices_json(plan.before),
        "after": devices_json(plan.after),
        "steps": [step_json(step) for step in plan.steps],
    }


def devices_json(gpu: Gpu) -> list[Json]:
    """Every MIG device, and every half-made GPU instance (which has no `uuid`), by slice."""
    ordered = sorted(gpu.instances, key=lambda i: (i.placement, i.id))
    return [row for instance in ordered for row in _instance_json(instance)]


def _instance_json(instance: GpuInstance) -> list[Json]:
    place = {"start": instance.placement.start, "size": instance.placement.size}
    if not instance.compute:
        return [{"profile": instance.profile, **place, "inUse": instance.in_use}]
    rows = []
    for device in instance.compute:
        row = {"profile": device.profile, **place, "uuid": device.uuid}
        if not device.uuid:  # not created yet
            del row["uuid"]
        else:
            row["inUse"] = device.usage.in_use
        if device.mps is not None:
            row["mps"] = True
        rows.append(row)
    return rows


def step_json(step: Step) -> Json:
    """One step. `scope` tells whether a GPU instance or only a compute instance is meant."""
    match step:
        case SetMigMode(enabled=enabled):
            body: Json = {"kind": "setMigMode", "mode": MODE_WORD[enabled]}
        case ResetGpu():
            body = {"kind": "resetGpu"}
        case DestroyGpuInstance(devices=devices):
            body = {"kind": "destroyInstance", "scope": "gpuInstance", **_place(step)}
            body["gi"] = step.instance
            if devices:
                body["uuid"] = devices[0]
            if len(devices) > 1:
                body["uuids"] = list(devices)
        case DestroyComputeInstance():
            body = {"kind": "destroyInstance", "scope": "computeInstance", **_place(step)}
            body |= {"gi": step.instance, "ci": step.compute, "uuid": step.device}
        case CreateGpuInstance(compute=compute):
            body = {"kind": "createInstance", "scope": "gpuInstance", **_place(step)}
            body["compute"] = list(compute)
        case CreateComputeInstance():
            body = {"kind": "createInstance", "scope": "computeInstance", **_place(step)}
            body["gi"] = step.instance
        case StopMps() | StartMps() | SetComputeMode() | SetTimeSlice():
            body = _sharing_step_json(step)
        case _:
            assert_never(step)
    return {**body, "reason": step.reason}


def _sharing_step_json(step: StopMps | StartMps | SetComputeMode | SetTimeSlice) -> Json:
    match step:
        case StopMps():
            return {"kind": "stopMps", **_device(step)}
        case StartMps(wanted=wanted, runs=runs):
            body = {"kind": "startMps", **_device(step), "user": user_json(wanted.account)}
            return {**body, "shares": shares_json(wanted.sharing), "runs": runs}
        case SetComputeMode(mode=mode):
            return {"kind": "setComputeMode", **_device(step), "mode": mode.value}
        case SetTimeSlice(time_slice=time_slice):
            return {"kind": "setTimeSlice", "timeSlice": time_slice.value}
        case _:
            assert_never(step)


def _place(
    step: DestroyGpuInstance | DestroyComputeInstance | CreateGpuInstance | CreateComputeInstance,
) -> Json:
    return {
        "profile": step.profile,
        "start": step.placement.start,
        "size": step.placement.size,
    }


def _device(step: StopMps | StartMps | SetComputeMode) -> Json:
    """A MIG device that is not made yet has its place only."""
    body: Json = {"device": step.device} if step.device else {}
    if step.placement is not None:
        place = {"start": step.placement.start, "size": step.placement.size}
        body |= {"profile": step.profile, **place}
    return body


def _report_json(report: StepReport) -> Json:
    result = {
        **step_json(report.step),
        "result": report.result.value,
        "seconds": round(report.seconds, 4),
    }
    return {**result, "message": report.message} if report.message else result
