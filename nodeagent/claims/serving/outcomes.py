"""What came of a change of a GPU, for the claim that it was made for. Pure."""

from __future__ import annotations

from nodeagent.claims.model import ClaimRecord
from nodeagent.errors import NodeagentError, StillInUse, Transient
from nodeagent.plan.plan import GpuOutcome, Verdict
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.reserved import without
from nodeagent.views.mps_problems import unready_daemons


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


def require_daemons(outcome: GpuOutcome, record: ClaimRecord) -> None:
    """Raise DaemonNotReady while a daemon of the claim's own devices is not Ready.

    One that did not start in time needs no step any more: it is tried again by itself.
    """
    goal = outcome.plan.goal
    for problem in unready_daemons(without(outcome.after, goal.reserved if goal else ())):
        raise DaemonNotReady(problem, record)
