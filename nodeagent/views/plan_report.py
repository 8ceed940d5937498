"""A plan, and what came of it, as the JSON of `plan`, `apply`, `/v1/plan` and the preview."""

from collections.abc import Iterable, Mapping

from nodeagent.plan import steps
from nodeagent.plan.observed import Gpu
from nodeagent.plan.plan import (
    GpuOutcome,
    GpuPlan,
    NodeOutcome,
    NodePlan,
    Policy,
    StepReport,
    Verdict,
)
from nodeagent.plan.planner import once_free
from nodeagent.plan.problems import Problem
from nodeagent.structs import replace
from nodeagent.views import shapes
from nodeagent.views.devices import mig_devices
from nodeagent.views.mps import share_shapes, user_id
from nodeagent.views.shapes import Json, as_json
from nodeagent.views.text import MODE_WORD


def plan_json(plan: NodePlan, *, digest: str, source: str, policy: Policy) -> Json:
    """The whole plan, and what blocked GPUs come to when they are free by the `policy` that it was
    made by. Of a blocked GPU that takes one plan more for each of its devices.
    """
    problems = (*plan.problems, *(p for gpu in plan.gpus for p in gpu.problems))
    gpus = (replace(_gpu_plan(gpu), once_free=_once_free(gpu, policy)) for gpu in plan.gpus)
    return _answer(plan.verdict, gpus, problems, digest=digest, source=source)


def _once_free(plan: GpuPlan, policy: Policy) -> shapes.OnceFree | None:
    """What would be done without the users; None where not users alone block the plan."""
    free = once_free(plan, policy)
    if free is None:
        return None
    return shapes.OnceFree(
        mig=mode_shape(free.after), after=_places(free.after), steps=list(map(_step, free.steps))
    )


def outcome_json(outcome: NodeOutcome, *, digest: str, source: str) -> Json:
    """The plan with the result of every step; `after` is what was read back."""
    came = {gpu.plan.before.key: gpu for gpu in outcome.gpus}
    planned = outcome.plan
    gpus = [_gpu_plan(gpu, came.get(gpu.before.key)) for gpu in planned.gpus]
    problems = (
        *planned.problems,
        *(problem for gpu in planned.gpus for problem in gpu.problems),
        *(problem for gpu in outcome.gpus for problem in gpu.problems),
    )
    return _answer(planned.verdict, gpus, problems, digest=digest, source=source)


def _answer(
    verdict: Verdict, gpus: Iterable[shapes.GpuPlan], problems: Iterable[Problem], **named: str
) -> Json:
    return as_json(shapes.Plan(verdict=verdict, gpus=list(gpus), problems=list(problems), **named))


def mode_shape(gpu: Gpu) -> shapes.ModeState | None:
    """Current and pending MIG mode; None where the GPU has no MIG."""
    if gpu.mig is None:
        return None
    return shapes.ModeState(current=MODE_WORD[gpu.mig.current], pending=MODE_WORD[gpu.mig.pending])


def _gpu_plan(plan: GpuPlan, came: GpuOutcome | None = None) -> shapes.GpuPlan:
    before, after = plan.before, came.after if came else plan.after
    mode = mode_shape(after) or mode_shape(plan.after)  # where it was not read back, as planned
    return shapes.GpuPlan(
        index=before.index,
        uuid=before.uuid,
        name=before.name,
        verdict=plan.verdict,
        mig=shapes.ModeChange(before=mode_shape(before), after=mode) if before.mig else None,
        respelled=plan.respelled or None,
        before=_places(before),
        after=_places(after),
        steps=[_result(r) for r in came.steps] if came else [_step(s) for s in plan.steps],
        restored=[_result(r) for r in came.restored] or None if came else None,
    )


def _result(report: StepReport) -> shapes.Step:
    return replace(
        _step(report.step),
        result=report.result,
        seconds=round(report.seconds, 4),
        message=report.message,
    )


def _places(gpu: Gpu) -> list[shapes.Place]:
    """Every MIG device, and every half-made GPU instance, by slice."""
    return [
        shapes.Place(
            profile=(device or instance).profile,
            start=instance.placement.start,
            size=instance.placement.size,
            uuid=device.uuid if device else "",
            # None: not created yet
            in_use=None if device and not device.uuid else bool(device and device.usage.in_use),
            mps=True if device and device.mps else None,
        )
        for instance, device in mig_devices(gpu)
    ]


STEP_KINDS: Mapping[type[steps.Step], str] = {
    steps.SetMigMode: "setMigMode",
    steps.ResetGpu: "resetGpu",
    steps.DestroyGpuInstance: "destroyInstance",
    steps.DestroyComputeInstance: "destroyInstance",
    steps.CreateGpuInstance: "createInstance",
    steps.CreateComputeInstance: "createInstance",
    steps.StopMps: "stopMps",
    steps.StartMps: "startMps",
    steps.SetComputeMode: "setComputeMode",
    steps.SetTimeSlice: "setTimeSlice",
}


def step_kind(step: steps.Step) -> str:
    """The `kind` of a step."""
    return STEP_KINDS[type(step)]


def _step(step: steps.Step) -> shapes.Step:
    """One step. `scope` says whether a GPU instance or only a compute instance is meant."""
    more: Json = {}
    match step:
        case steps.SetMigMode():
            more = {"mode": MODE_WORD[step.enabled]}
        case steps.DestroyGpuInstance(devices=devices):
            more = {"scope": "gpuInstance", "gi": step.instance}
            more["uuid"] = devices[0] if devices else ""
            more["uuids"] = list(devices) if len(devices) > 1 else None
        case steps.DestroyComputeInstance():
            more = {"scope": "computeInstance", "gi": step.instance, "ci": step.compute}
            more["uuid"] = step.device
        case steps.CreateGpuInstance():
            more = {"scope": "gpuInstance", "compute": list(step.compute)}
        case steps.CreateComputeInstance():
            more = {"scope": "computeInstance", "gi": step.instance}
        case steps.StartMps(wanted=wanted):
            more = {"user": user_id(wanted.account), "runs": step.runs}
            more["shares"] = share_shapes(wanted.sharing)
        case steps.SetComputeMode():
            more = {"mode": step.mode.value}
        case steps.SetTimeSlice():
            more = {"time_slice": step.time_slice}
    return shapes.Step(kind=step_kind(step), reason=step.reason, **_place(step), **more)


def _place(step: steps.Step) -> Json:
    """Name where the step acts; a MIG device that is not made yet has its place only."""
    if isinstance(step, steps.SetMigMode | steps.ResetGpu | steps.SetTimeSlice):
        return {}
    body: Json = {}
    if isinstance(step, steps.StopMps | steps.StartMps | steps.SetComputeMode):
        body["device"] = step.device
    if step.placement is not None:
        place = step.placement
        body |= {"profile": step.profile, "start": place.start, "size": place.size}
    return body
