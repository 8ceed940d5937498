"""What came of a claim's part of a GPU: what is in its way, and who uses what outlives it. Pure."""

from collections.abc import Collection

from nodeagent.claims.model import ClaimedDevice, ClaimRecord
from nodeagent.claims.parts import is_there
from nodeagent.errors import NodeagentError, StillInUse, Transient
from nodeagent.plan.desired import without
from nodeagent.plan.observed import Gpu
from nodeagent.plan.plan import GpuOutcome, Verdict
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.remedies import in_use_remedy
from nodeagent.plan.users import PodName, Usage, as_used
from nodeagent.views.mps import unready_daemons


class NotAdmitted(NodeagentError):
    """The planner or a step refused what a claim needs; `code` is the problem's."""

    def __init__(self, problem: Problem, record: ClaimRecord) -> None:
        super().__init__(f"{record.title}: {problem.message}", remedy=problem.remedy)
        self.code = problem.code


class DaemonNotReady(NotAdmitted, Transient):
    """An MPS daemon of the claim's is being started."""


def require_done(outcome: GpuOutcome, record: ClaimRecord) -> None:
    """Raise what is in the way of the claim: StillInUse or NotAdmitted.

    A warning is in its way as well: a MIG mode that waits for a reset is none yet.
    """
    problems = outcome.problems or outcome.plan.problems
    impossible = outcome.plan.verdict not in (Verdict.IN_SYNC, Verdict.APPLICABLE)
    if impossible or outcome.failed or problems:
        first = problems[0] if problems else Problem(code=Code.STEP_FAILED, message="a step failed")
        if first.code is Code.IN_USE:
            raise StillInUse(f"{record.title}: {first.message}", remedy=first.remedy)
        if first.code is Code.MPS and unready_daemons(outcome.after):  # its start goes on
            raise DaemonNotReady(first, record)
        raise NotAdmitted(first, record)


def require_ready(outcome: GpuOutcome, record: ClaimRecord) -> None:
    """Raise Transient where a device of the claim's on the GPU is not there, as read back, or one
    of its own has no MPS daemon that is Ready yet.

    A daemon that did not start in time needs no step any more: it is tried again by itself. One of
    several GPUs is waited for at its primary.
    """
    gpu, goal = outcome.after, outcome.plan.goal
    for device in record.devices:
        if device.gpu == gpu.uuid and not is_there(device, gpu):
            anew = f"if none has it any more, run {record.reference.schedule_anew}; "
            by_plan = "" if device.is_held else f"the plan makes it; {anew}"
            raise Transient.of(
                "deviceNotThere",
                claim=record,
                device=device.result.device,
                gpu=gpu,
                by_plan=by_plan,
            )
    wanted = record.daemon_on(gpu.uuid)
    if wanted and wanted.is_served_elsewhere(gpu.uuid):
        return
    for problem in unready_daemons(without(gpu, goal.reserved if goal else ())):
        raise DaemonNotReady(problem, record)


# --- who uses what outlives it --------------------------------------------------------------------


def require_lasting_unused(record: ClaimRecord, gpu: Gpu, other_pods: Collection[PodName]) -> None:
    """Raise StillInUse for the users of a claim's device that is there after its release, too: one
    of a plan, the GPU as a whole, or what others may have shares of.

    On a device of which it has a share, a process in one of the `other_pods`
    is not the claim's; any other may be.
    """
    for device in record.devices:
        goes = device.is_made and not device.shared
        if device.gpu != gpu.uuid or goes or device.result.admin_access:
            continue
        usage = usage_of(device, gpu)
        if device.shared:
            usage = usage.without(pods=other_pods)
        if usage.in_use:
            name = f"{device.result.device} of " if device.placement else ""
            what = f"{record.title} is not released: {name}{gpu.title} is in use by {usage}"
            if not device.shared:
                raise StillInUse(what, remedy=in_use_remedy(usage))
            # Which claim's they are may not be known yet.
            files = " ".join(f"/proc/{user.pid}/cgroup" for user in usage.processes if user.pid)
            shows = f" (`cat {files}` shows its pod)" if files else ""
            raise StillInUse.of("shareInUse", what=what, shows=shows)


def usage_of(device: ClaimedDevice, gpu: Gpu) -> Usage:
    """The usage of a MIG device, or of all that is on a GPU. A process on the GPU of which no
    instance is known may be on any.
    """
    used = as_used(gpu)
    usage = used.usage
    for instance in used.instances:
        if device.placement in (None, instance.placement):
            for compute in instance.compute:
                usage = usage.together(compute.usage)
    return usage
