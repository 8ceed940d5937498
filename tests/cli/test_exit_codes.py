"""What the exit code of a command reports to a script."""

from __future__ import annotations

import pytest

from nodeagent.cli.exit_codes import ExitCode, most_severe, of_plan
from nodeagent.plan.observed import Gpu
from nodeagent.plan.plan import GpuPlan, NodePlan, Verdict
from nodeagent.plan.problems import Code, Problem

_GPU = Gpu(index=0, uuid="GPU-0")


def _gpu(verdict: Verdict, *codes: Code) -> GpuPlan:
    return GpuPlan(_GPU, verdict, (), _GPU, tuple(Problem(code=code, message="") for code in codes))


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        (_gpu(Verdict.IN_SYNC), 0),
        (_gpu(Verdict.APPLICABLE), 0),
        (_gpu(Verdict.APPLICABLE, Code.RESET_REQUIRED), 0),
        (_gpu(Verdict.BLOCKED, Code.IN_USE), 3),
        (_gpu(Verdict.BLOCKED, Code.RESET_REQUIRED), 1),
        (_gpu(Verdict.BLOCKED, Code.RESET_REQUIRED, Code.IN_USE), 3),
        (_gpu(Verdict.BLOCKED, Code.GPU_LOST), 1),
        (_gpu(Verdict.BLOCKED, Code.GPU_UNKNOWN), 1),
        (_gpu(Verdict.UNSATISFIABLE, Code.DOES_NOT_FIT), 1),
    ],
)
def test_code_of_one_gpu(gpu: GpuPlan, expected: int) -> None:
    """The code is 3 only where the end of a process or pod would help."""
    assert of_plan(NodePlan(gpu.verdict, (gpu,))) == expected


@pytest.mark.parametrize(
    ("verdict", "expected"), [(Verdict.INVALID, 2), (Verdict.UNSATISFIABLE, 1)]
)
def test_code_of_a_document_refused_whole(verdict: Verdict, expected: int) -> None:
    """2 for what the node does not have, 1 for what it can never be."""
    assert (
        of_plan(NodePlan(verdict, problems=(Problem(code=Code.UNKNOWN_DEVICE, message=""),)))
        == expected
    )


def test_a_gpu_that_is_gone_is_a_failure() -> None:
    """A named GPU that vanished is not in use by anybody."""
    gone = Problem(code=Code.GPU_LOST, message="")
    plan = NodePlan(Verdict.BLOCKED, (_gpu(Verdict.IN_SYNC),), problems=(gone,))
    assert of_plan(plan) == 1


def test_precedence() -> None:
    """2 before 1 before 3 before 0, so 3 means that trying again later is enough."""
    done, failed, bad, blocked = ExitCode(0), ExitCode(1), ExitCode(2), ExitCode(3)
    assert most_severe([done, blocked, failed, bad]) is bad
    assert most_severe([done, blocked, failed]) is failed
    assert most_severe([done, blocked]) is blocked
    assert most_severe([]) is done
    mixed = NodePlan(
        Verdict.UNSATISFIABLE,
        (_gpu(Verdict.BLOCKED, Code.IN_USE), _gpu(Verdict.UNSATISFIABLE, Code.NOT_MIG_CAPABLE)),
    )
    assert of_plan(mixed) == 1
