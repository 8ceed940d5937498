"""What of MPS needs somebody, and what that makes of the node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeagent.plan.observed import MpsDaemon
from nodeagent.plan.plan import NodePlan, Verdict
from nodeagent.plan.problems import Code
from nodeagent.views.mps_problems import mps_problems, unready_daemons
from nodeagent.views.mps_state import DaemonState
from nodeagent.views.node_state import NodeState, Phase, not_ready, phase_of
from tests.views.daemons import ANY, FAILED, NODE, READY, STRAY, WAITING, WANTED, WHOLE


def test_a_daemon_that_is_well_is_no_problem() -> None:
    """Nor is one that is on its way, or that somebody drained."""
    ways = ("Starting", "Limiting", "Ready", "Backoff", "Draining", "Down")
    assert mps_problems([replace(READY, phase=phase) for phase in ways], NODE) == ()


def test_a_failed_daemon_says_why_and_what_it_said_last() -> None:
    """With its GPU, and how to have it tried again."""
    [problem] = mps_problems([FAILED], NODE)
    assert (problem.code, problem.gpu) == (Code.MPS, "GPU-1")
    assert problem.message == (
        "the MPS daemon of 3g.40gb at 4 of GPU 1 does not stay up: failed 5 times in a row; "
        "the last it said: no CUDA-capable device is detected"
    )
    assert problem.remedy == "mend the cause; to try at once: nodeagent mps restart MIG-b"


def test_a_faulted_daemon_names_the_clients_that_have_to_end() -> None:
    """Its server takes nobody until they are gone."""
    [problem] = mps_problems([replace(READY, phase="Fault", why="a fatal fault")], NODE)
    assert problem.code is Code.MPS
    assert "4712 (python) of pod ml/train-0" in problem.remedy


def test_a_waiting_client_is_named_with_whom_it_waits_for() -> None:
    """Who waits, who holds the server, and what to do; the node is as planned all the same."""
    problems = mps_problems([replace(READY, waiting=(WAITING,))], NODE)
    [problem] = problems
    assert problem.code is Code.MPS_CLIENT
    for part in ("pid 99 (sleepy) of user 1001", "server 816 serves user 1000", "4712 (python)"):
        assert part in problem.message
    assert "run it as user 1000" in problem.remedy
    in_sync = NodePlan(Verdict.IN_SYNC)
    assert phase_of(refused=False, plan=in_sync, problems=problems, mps=(READY,)) is Phase.IN_SYNC


def test_each_finding_of_a_client_is_a_problem() -> None:
    """With what to do, unless the plan has it ended anyway."""
    reported = mps_problems([replace(READY, clients=(STRAY,))], NODE)
    assert [p.message for p in reported] == [
        "MPS client 4713 on GPU 0: it has no share",
        "MPS client 4713 on GPU 0: it has no memory limit",
    ]
    assert all(problem.remedy for problem in reported)
    ended = mps_problems([replace(READY, clients=(STRAY,), wanted=ANY)], NODE)
    assert [problem.remedy for problem in ended] == ["", ""]


PHASES: tuple[tuple[str, bool, Phase], ...] = (
    ("Ready", True, Phase.IN_SYNC),
    ("Starting", True, Phase.WORKING),
    ("Limiting", True, Phase.WORKING),
    ("Backoff", True, Phase.WORKING),
    ("Starting", False, Phase.IN_SYNC),
    ("Down", True, Phase.IN_SYNC),
    ("Draining", True, Phase.IN_SYNC),
    ("Failed", True, Phase.FAILED),
    ("Fault", True, Phase.FAILED),
)


def test_the_phase_of_the_node() -> None:
    """A daemon on its way is work, one that is of no use a failure, and a drain somebody's wish."""
    for phase, wanted, expected in PHASES:
        daemons = (DaemonState("GPU-0", phase, WANTED if wanted else None),)
        problems = mps_problems(daemons, NODE)
        in_sync = NodePlan(Verdict.IN_SYNC)
        assert phase_of(refused=False, plan=in_sync, problems=problems, mps=daemons) is expected, (
            phase
        )


@pytest.mark.parametrize(
    ("state", "remedy"),
    [
        ("Down", "nodeagent mps restart GPU-0"),
        ("Failed", "nodeagent mps restart GPU-0"),
        ("Backoff", "an agent starts it again by itself"),
    ],
)
def test_what_to_do_about_a_daemon_that_is_not_ready(state: str, remedy: str) -> None:
    """One that was drained or given up does not come back by itself."""
    [problem] = unready_daemons(replace(WHOLE, mps=MpsDaemon(WANTED, state)))
    assert remedy in problem.remedy
    assert unready_daemons(replace(WHOLE, mps=MpsDaemon(WANTED, "Ready"))) == ()


def test_readiness_names_each_daemon_that_is_not_ready() -> None:
    """Down, draining or failed, with its device and why; one that nobody wants does not count."""
    unwanted = replace(READY, wanted=None, phase="Draining")
    draining = replace(READY, phase="Draining", why="drained on request")
    state = NodeState("n", "file", rounds=1, observed=NODE, mps=(READY, unwanted))
    assert not_ready(state) == ()
    assert not_ready(replace(state, mps=(draining, FAILED))) == (
        "the MPS daemon of GPU 0 (GPU-0) is Draining: drained on request",
        "the MPS daemon of 3g.40gb at 4 of GPU 1 (MIG-b) is Failed: failed 5 times in a row",
    )
