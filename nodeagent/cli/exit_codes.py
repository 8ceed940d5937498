"""The exit codes of the commands."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import TYPE_CHECKING, assert_never

if TYPE_CHECKING:  # every command has an exit code, but not each has a plan
    from nodeagent.plan.plan import NodePlan, Verdict
    from nodeagent.plan.problems import Problem


class ExitCode(IntEnum):
    """DONE also means matches, or nothing to do. INTERRUPTED is the shell's 128 + SIGINT."""

    DONE = 0
    FAILED = 1
    BAD_DOCUMENT = 2
    BLOCKED = 3
    INTERRUPTED = 130


# When GPUs end differently. BLOCKED says "try again when they are free", so it yields to what
# trying again will not mend.
_PRECEDENCE = (ExitCode.BAD_DOCUMENT, ExitCode.FAILED, ExitCode.BLOCKED)


def most_severe(codes: Iterable[ExitCode]) -> ExitCode:
    """The code for several GPUs together: 2 before 1 before 3 before 0."""
    found = set(codes)
    return next((code for code in _PRECEDENCE if code in found), ExitCode.DONE)


def of_plan(plan: NodePlan) -> ExitCode:
    """The exit code of a plan that may or may not be carried out."""
    whole = [of_verdict(plan.verdict, plan.problems)] if plan.problems or not plan.gpus else []
    return most_severe([*(of_verdict(gpu.verdict, gpu.problems) for gpu in plan.gpus), *whole])


def of_verdict(verdict: Verdict, problems: Iterable[Problem]) -> ExitCode:
    """The code if there were nothing else."""
    from nodeagent.plan.plan import Verdict
    from nodeagent.plan.problems import Code

    match verdict:
        case Verdict.IN_SYNC | Verdict.APPLICABLE:
            return ExitCode.DONE
        case Verdict.BLOCKED:
            # Where a reset must come first, or a GPU does not answer, no user's end helps.
            in_use = any(problem.code is Code.IN_USE for problem in problems)
            return ExitCode.BLOCKED if in_use else ExitCode.FAILED
        case Verdict.UNSATISFIABLE:
            return ExitCode.FAILED
        case Verdict.INVALID:
            return ExitCode.BAD_DOCUMENT
        case _ as never:
            assert_never(never)
