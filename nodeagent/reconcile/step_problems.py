"""Problems of steps that failed, and which steps were undone.

Everything is judged by what was observed afterwards, not by what a call returned.
"""

from collections.abc import Sequence
from typing import assert_never

from nodeagent.errors import GpuInUse, GpuLost, NodeagentError, error_sentence
from nodeagent.plan import steps
from nodeagent.plan.observed import Device, Gpu, Placement
from nodeagent.plan.plan import StepReport, StepResult
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.remedies import end_commands, in_use_remedy
from nodeagent.plan.shares import WantedMps
from nodeagent.plan.users import Usage
from nodeagent.structs import replace
from nodeagent.views.text import layout_words, step_words, user_words, users


def step_failed(step: steps.Step, error: BaseException, seen: Gpu) -> Problem:
    """Return why a step failed; `seen` is the GPU right after it, for the names of its users."""
    what, why = step_words(step), error_sentence(error)
    remedy = error.remedy if isinstance(error, NodeagentError) else ""
    remedy = remedy.replace("-i GPU", f"-i {seen.pci_bus_id}")  # codes are explained for any GPU
    if isinstance(error, GpuInUse):
        instance = _instance_of(step, seen)
        names = user_words(seen, instance)
        why = f"in use by {names}" if names else why
        found = users(seen, instance)
        commands = end_commands((user.pid, user.namespace, user.pod) for user in found)
        if not remedy:
            remedy = in_use_remedy(Usage(found))
        elif commands not in remedy:
            remedy = f"run {commands}; {remedy}"
        return seen.problem(Code.IN_USE, "step", what=what, why=why, remedy=remedy)
    if isinstance(error, GpuLost):
        return seen.problem(Code.GPU_LOST, "step", what=what, why=why, remedy=remedy)
    if isinstance(step, steps.StartMps | steps.StopMps):
        return seen.problem(Code.MPS, "step", what=what, why=why, remedy=remedy)
    return seen.problem(Code.STEP_FAILED, "step", what=what, why=why, remedy=remedy)


def not_as_planned(
    seen: Gpu, planned: Gpu | None = None, missing: Sequence[steps.Step] = ()
) -> Problem:
    """The problem of a GPU that is not as planned although every step succeeded; `missing` are the
    steps that a new plan would have.
    """
    if planned is None:
        instead = ", which is not as planned"
    elif layout_words(planned) != layout_words(seen):
        instead = f" instead of {layout_words(planned)}"
    else:
        again = "; ".join(map(step_words, missing)) or "what it was to be"
        instead = f", and still it would take: {again}"
    has = f"{layout_words(seen)}{instead}"
    return seen.problem(Code.STEP_FAILED, "notAsPlanned", has=has)


def not_restored(before: Gpu, seen: Gpu, cause: Problem | None) -> Problem:
    """The problem of a rollback that did not restore the layout; `cause`: a step of it failed."""
    now = f"it now has {layout_words(seen)}"
    if not seen.answers:
        now = f"its present layout is not known ({seen.access_reason or seen.access})"
    why, had = cause.message if cause else "", layout_words(before)
    return before.problem(Code.NOT_RESTORED, had=had, now=now, why=why)


def undone_if_gone(report: StepReport, before: Gpu, seen: Gpu) -> StepReport:
    """Mark a step that was done as undone if its effect is no longer there."""
    if report.result is StepResult.DONE and _is_undone(report.step, before, seen):
        return replace(report, result=StepResult.UNDONE)
    return report


def _is_undone(step: steps.Step, before: Gpu, seen: Gpu) -> bool:
    match step:
        case steps.SetMigMode(enabled=enabled):
            return seen.mig is not None and seen.mig.pending != enabled
        case steps.ResetGpu():
            return False
        case steps.DestroyGpuInstance() | steps.DestroyComputeInstance():
            return _devices_at(seen, step.placement) == _devices_at(before, step.placement)
        case steps.CreateGpuInstance() | steps.CreateComputeInstance():
            now = _devices_at(seen, step.placement)
            return step.profile not in now or now == _devices_at(before, step.placement)
        case steps.StopMps():
            return _daemon_of(seen, step) is not None
        case steps.StartMps(wanted=wanted):
            return _daemon_of(seen, step) != wanted
        case steps.SetComputeMode(mode=mode):
            return all(device.compute_mode is not mode for device in _devices_of(seen, step))
        case steps.SetTimeSlice(time_slice=time_slice):
            return seen.time_slice is not time_slice
        case _:
            assert_never(step)


def _daemon_of(gpu: Gpu, step: steps.StopMps | steps.StartMps) -> WantedMps | None:
    """Return what the daemon of the step's device is now, or of a device made in its place."""
    return next((device.runs for device in _devices_of(gpu, step) if device.mps), None)


def _devices_of(
    gpu: Gpu, step: steps.StopMps | steps.StartMps | steps.SetComputeMode
) -> list[Device]:
    """The device itself if it is still there, else all of its kind at its place."""
    meant = (step.placement, step.profile)
    devices = [d for d in gpu.devices() if (d.placement, d.profile) == meant]
    return [device for device in devices if device.uuid == step.device] or devices


def _devices_at(gpu: Gpu, placement: Placement) -> list[str]:
    """Profiles of the GPU instance at `placement` and of the devices in it."""
    return [
        profile
        for instance in gpu.instances
        if instance.placement == placement
        for profile in (instance.profile, *sorted(c.profile for c in instance.compute))
    ]


def _instance_of(step: steps.Step, seen: Gpu) -> int | None:
    match step:
        case (
            steps.DestroyGpuInstance(instance=instance)
            | steps.DestroyComputeInstance(instance=instance)
        ):
            return instance
        case steps.StopMps(device=device):
            return next(
                (d.instance.id for d in seen.devices() if d.instance and d.uuid == device), None
            )
        case _:
            return None
