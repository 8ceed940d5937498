"""Desired and observed in, an ordered list of steps out. Pure, exact, deterministic.

Rules, in this order:

1. A GPU that the document does not name, that the driver does not answer for, or that is lost by
   what health says, is not touched.
2. What already fits is kept in place; what is in use is a fixed point. Not knowing is in use.
   Where a GPU is unhealthy nothing new comes; what is there stays, but for what was made for a
   claim that is over.
3. Nothing is destroyed unless the whole new layout is known to fit at known placements.
4. Per GPU: stop MPS daemons, destroy, set the mode, reset if it is needed and allowed, create the
   largest first, start daemons.
5. A plan that is refused has no steps and names what is in the way.

For every cut of the steps, planning again from what is then observed leads to the same end.
"""

from collections.abc import Collection, Mapping, Sequence

from nodeagent.plan.desired import (
    DesiredGpu,
    DesiredNode,
    Layout,
    MigDisabled,
    WantedInstance,
    WhenInUse,
    in_the_way,
    without,
)
from nodeagent.plan.mig import mig_steps, reset_required, unhealthy_slices
from nodeagent.plan.mps import concerns_sharing, with_sharing
from nodeagent.plan.observed import Access, DeviceDaemon, Gpu, ObservedNode, Place
from nodeagent.plan.plan import GpuPlan, NodePlan, Policy, Verdict, worst
from nodeagent.plan.problems import Code, PlanRefused, Problem
from nodeagent.plan.remedies import silent_remedy
from nodeagent.plan.shares import WantedMps
from nodeagent.plan.steps import ResetGpu, SetMigMode, Step, after
from nodeagent.plan.users import IDLE, as_used
from nodeagent.structs import replace

_DEFAULT_POLICY = Policy()
_EVICTED = "the agent evicts its pods, or says what keeps it from that"
_BROKEN = frozenset({Code.GPU_LOST, Code.GPU_UNKNOWN, Code.GPU_UNHEALTHY})
# What no waiting changes; any other refusal is one of the moment.
_UNSATISFIABLE = frozenset({Code.NOT_MIG_CAPABLE, Code.UNKNOWN_PROFILE, Code.DOES_NOT_FIT})


def plan(
    desired: DesiredNode, observed: ObservedNode, policy: Policy = _DEFAULT_POLICY
) -> NodePlan:
    """The steps for every GPU that `desired` names, in the node's GPU order."""
    gpus = tuple(
        plan_gpu(desired.gpus[gpu.key], gpu, policy)
        for gpu in observed.gpus
        if gpu.key in desired.gpus
    )
    planned = {one.before.key: one for one in gpus}
    gpus = tuple(_beside_members(one, planned) for one in gpus)
    here = {gpu.key for gpu in observed.gpus}
    gone = tuple(_vanished(key, desired.gpus[key]) for key in desired.gpus if key not in here)
    verdicts = {g.verdict for g in gpus} | ({Verdict.BLOCKED} if gone else set())
    return NodePlan(verdict=worst(verdicts), gpus=gpus, problems=gone, digest=desired.digest)


def plan_gpu(desired: DesiredGpu, gpu: Gpu, policy: Policy = _DEFAULT_POLICY) -> GpuPlan:
    """The steps for one GPU."""
    try:
        steps = _steps(desired, gpu, policy)
    except PlanRefused as refused:
        problems = refused.problems
        if any(problem.code in _UNSATISFIABLE for problem in problems):
            return GpuPlan(gpu, Verdict.UNSATISFIABLE, (), gpu, problems, desired)
        if policy.evicts and desired.when_in_use is WhenInUse.EVICT:
            problems = tuple(
                replace(p, remedy=_EVICTED) if p.code is Code.IN_USE else p for p in problems
            )
        return GpuPlan(gpu, Verdict.BLOCKED, (), gpu, problems, desired)
    if not steps:
        return GpuPlan(gpu, Verdict.IN_SYNC, (), gpu, (), desired)
    end = after(gpu, steps)
    if desired.mps and desired.mps.is_served_elsewhere(gpu.uuid):
        end = replace(end, mps=DeviceDaemon(desired.mps, "Starting"))  # when another GPU starts it
    warnings = _waiting_for_reset(desired, end, policy)
    return GpuPlan(gpu, Verdict.APPLICABLE, steps, end, warnings, desired)


def _beside_members(own: GpuPlan, planned: Mapping[str, GpuPlan]) -> GpuPlan:
    """Its plan, but blocked while another GPU is not ready that one daemon is to serve with it:
    nothing is taken away on one of them for a daemon that cannot come.
    """
    goal = own.goal
    if goal is None or goal.mps is None or not own.steps:
        return own
    found: list[Problem] = []
    for device in goal.mps.devices:
        if device not in planned:
            found.append(_vanished(device, goal))
        elif device != own.before.key:
            found += _in_the_way_of(planned[device], goal.mps)
    if not found:
        return own
    return GpuPlan(own.before, Verdict.BLOCKED, (), own.before, of_another(own, found), goal)


def of_another(own: GpuPlan, found: Sequence[Problem]) -> tuple[Problem, ...]:
    """What is wrong on a GPU that its daemon is to serve, too, as problems of this one."""
    said = "one MPS daemon is to serve it with others: "
    return tuple(replace(one, gpu=own.before.uuid, message=said + one.message) for one in found)


def _in_the_way_of(member: GpuPlan, wanted: WantedMps) -> Sequence[Problem]:
    """Why the GPU cannot be served by one daemon with others."""
    if member.verdict not in (Verdict.IN_SYNC, Verdict.APPLICABLE):
        return member.problems
    whole = [r for r in member.goal.reserved if r.placement is None] if member.goal else []
    impossible = f"MPS cannot come on {member.before.title}"
    return [in_the_way(member.before, whole, impossible, wanted.path)] if whole else ()


def once_free(blocked: GpuPlan, policy: Policy = _DEFAULT_POLICY) -> GpuPlan | None:
    """What a blocked plan comes to when those in its way are gone, to be shown; None where it is
    blocked by something else too. Of the devices in use as few as possible are taken for free.
    """
    goal, gpu = blocked.goal, blocked.before
    if blocked.verdict is not Verdict.BLOCKED or goal is None or not gpu.answers:
        return None
    if not _BROKEN.isdisjoint(problem.code for problem in blocked.problems):  # or another GPU is
        return None
    free = frozenset(device.uuid for device in gpu.devices())
    found = plan_gpu(goal, _freed(gpu, free), policy)
    for uuid in sorted(free):
        fewer = free - {uuid}
        tried = plan_gpu(goal, _freed(gpu, fewer), policy)
        if tried.verdict is Verdict.APPLICABLE:
            free, found = fewer, tried
    return found if found.verdict is Verdict.APPLICABLE else None


def _freed(gpu: Gpu, uuids: Collection[str]) -> Gpu:

    def free(device: Place) -> Place:
        if device.uuid not in uuids:
            return device
        daemon = device.mps and replace(device.mps, clients=IDLE)
        return replace(device, usage=IDLE, mps=daemon)

    return free(gpu).with_mig_devices(lambda _, device: free(device))


def _steps(desired: DesiredGpu, gpu: Gpu, policy: Policy) -> tuple[Step, ...]:
    if not gpu.answers:
        raise PlanRefused(inaccessible(gpu, desired))
    if gpu.health_limits.gone and not desired.ends:
        raise PlanRefused(_gone(gpu, desired.path))
    used = without(as_used(gpu), desired.reserved)
    steps = mig_steps(desired, used, policy)
    if concerns_sharing(desired, used):
        end = after(used, steps)
        try:
            steps = with_sharing(used, steps, end, desired, policy)
        except PlanRefused as refused:
            warnings = _waiting_for_reset(desired, end, policy)
            raise PlanRefused(*refused.problems, *warnings) from refused
    comes = desired.mps is not None and used.mps is None  # perhaps by another GPU's steps
    if (steps or comes) and not desired.ends:  # a sick GPU is reset once nothing is on it
        _require_health(gpu, steps, desired.path)
    if steps:
        whole = [r for r in desired.reserved if r.placement is None]
        if whole:
            raise PlanRefused(
                in_the_way(gpu, whole, f"nothing can be changed on {gpu.title}", desired.path)
            )
    return steps


def _waiting_for_reset(desired: DesiredGpu, end: Gpu, policy: Policy) -> tuple[Problem, ...]:
    """A warning of a mode that is set and not current at the end."""
    if not (desired.mig and end.mig and end.mode_change_needs_reset):
        return ()
    if end.mig.current == end.mig.pending:
        return ()
    return (reset_required(end, desired.mig.path, policy, enable=end.mig.pending),)


def _require_health(gpu: Gpu, steps: Sequence[Step], path: str) -> None:
    """Raise PlanRefused where the steps would work on unhealthy parts."""
    if gpu.health_limits.whole:
        limits = gpu.health_limits
        raise PlanRefused(
            gpu.problem(
                Code.GPU_UNHEALTHY, "whole", path=path, why=limits.why, remedy=limits.remedy
            )
        )
    # MIG mode off would hand out unhealthy slices too, unless a reset mends them.
    off = any(isinstance(step, SetMigMode) and not step.enabled for step in steps)
    if gpu.health_limits.slices and off and not any(isinstance(s, ResetGpu) for s in steps):
        raise PlanRefused(unhealthy_slices(gpu, path))


def layout_of(gpu: Gpu, goal: DesiredGpu | None = None) -> DesiredGpu:
    """What the GPU is now, as something that can be desired: every device where it lies, with the
    daemon it has. Compute modes follow from that. What `goal` had to leave alone is left alone.
    """
    reserved = goal.reserved if goal else ()
    gpu = without(gpu, reserved)
    path = f"GPU {gpu.index} as it was"
    if not gpu.in_mig_mode:
        return DesiredGpu(
            mig=None if gpu.mig is None else MigDisabled(path),
            path=path,
            mps=gpu.mps.runs if gpu.mps else None,
            time_slice=gpu.time_slice if _takes_turns(gpu) else None,
            reserved=reserved,
        )
    wanted = tuple(
        WantedInstance(i.profile, c.slices, i.placement.start, path, c.mps.runs if c.mps else None)
        for i, c in gpu.mig_devices()
    )
    return DesiredGpu(mig=Layout(wanted, path), path=path, reserved=reserved)


def _takes_turns(gpu: Gpu) -> bool:
    """Whether the agent made it so; a time slice that it did not set comes back by itself.

    Where that was the same before, only the compute mode shows it, changed without a daemon.
    """
    return gpu.earlier_time_slice is not None or (gpu.mps is None and gpu.earlier_mode is not None)


# --- refusals ---------------------------------------------------------------------------------


def _vanished(key: str, wanted: DesiredGpu) -> Problem:
    named = wanted.path
    return Problem.of(Code.GPU_LOST, "vanished", gpu=key, path=named, uuid=key, named=named)


def _gone(gpu: Gpu, path: str) -> Problem:
    limits = gpu.health_limits
    return gpu.problem(Code.GPU_LOST, "gone", path=path, why=limits.why, remedy=limits.remedy)


def inaccessible(gpu: Gpu, goal: DesiredGpu | None) -> Problem:
    """The driver does not answer for the GPU, before or after its steps."""
    why, path = gpu.access_reason or "no reason is known", goal.path if goal else ""
    if gpu.access is Access.LOST:
        return gpu.problem(Code.GPU_LOST, "silent", path=path, why=why, remedy=silent_remedy(gpu))
    return gpu.problem(Code.GPU_UNKNOWN, "silent", path=path, why=why, remedy=silent_remedy(gpu))
