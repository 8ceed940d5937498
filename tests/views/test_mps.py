import json
from collections.abc import Sequence
from typing import Any

import pytest

from nodeagent.plan.observed import Access, DeviceDaemon, HealthLimits, ObservedNode
from nodeagent.plan.plan import NodePlan, Verdict
from nodeagent.plan.problems import Code
from nodeagent.structs import replace
from nodeagent.views.mps import daemon_shapes, mps_answer, mps_problems, unready_daemons
from nodeagent.views.node_state import NodeState, Phase, not_ready, phase_of
from nodeagent.views.shapes import Json, MpsDaemon, as_json
from nodeagent.views.status_report import status_json
from tests.views.daemons import (
    ANY,
    DIVIDED,
    FAILED,
    NODE,
    READY,
    STRAY,
    WAITING,
    WANTED,
    WHOLE,
    as_wanted,
    mps_daemon,
)


def _node(*daemons: MpsDaemon) -> NodeState:
    return NodeState("node-a", "file", observed=NODE, mps=daemons)


def mps_json(
    daemons: Sequence[MpsDaemon],
    observed: ObservedNode = ObservedNode(),  # noqa: B008  # frozen
) -> list[Json]:
    return [json.loads(json.dumps(as_json(one))) for one in daemon_shapes(daemons, observed)]


def test_what_is_not_known_is_absent() -> None:
    assert mps_json([mps_daemon("GPU-0", "Down")]) == [
        {"device": "GPU-0", "state": "Down", "restarts": 0, "clients": []}
    ]
    [report] = mps_json([replace(READY, clients=(STRAY,))])
    assert report["clients"] == [
        {"pid": 4713, "findings": ["it has no share", "it has no memory limit"]}
    ]


def test_a_daemon_in_trouble() -> None:
    [report] = mps_json([replace(FAILED, waiting=(WAITING,))], NODE)
    assert (report["gpu"], report["profile"], report["start"], report["size"]) == (
        1,
        "3g.40gb",
        4,
        4,
    )
    assert report["user"] == "any"
    assert report["why"] == "failed 5 times in a row"
    assert report["lastLines"] == ["first", "no CUDA-capable device is detected"]
    assert report["waiting"] == [{"pid": 99, "user": 1001, "command": "sleepy"}]


NAMES: tuple[tuple[str | None, list[str] | None], ...] = (
    (None, ["GPU-0", "MIG-b", "A-gone"]),  # in the order of devices, the one that is gone last
    *(("a-Gone", ["A-gone"]), ("0", ["GPU-0"]), ("gpu-0", ["GPU-0"]), ("1", ["MIG-b"])),
    *(("GPU-1", ["MIG-b"]), ("1:5", ["MIG-b"]), ("mig-B", ["MIG-b"]), ("1:0", []), ("MIG-a", [])),
    *(("7", None), ("0:0", None), ("1:8", None), ("MIG-c", None), ("", None), ("-1", None)),
    ("\u0660", None),
)


def test_daemons_by_any_name_of_their_device() -> None:
    lost = replace(READY, device="A-gone")
    for device, found in NAMES:
        answer = mps_answer(_node(lost, FAILED, READY), device)
        assert (answer and [d["device"] for d in answer["daemons"]]) == found, device


def test_the_status_has_the_daemons_of_the_gpus_it_shows() -> None:
    state = _node(READY, FAILED)
    devices = {
        gpu: [d["device"] for d in (status_json(state, gpu=gpu) or {})["mps"]]
        for gpu in (None, "GPU-0", "GPU-1")
    }
    assert devices == {None: ["GPU-0", "MIG-b"], "GPU-0": ["GPU-0"], "GPU-1": ["MIG-b"]}


def test_a_failed_daemon_says_why_and_what_it_said_last() -> None:
    [problem] = mps_problems([FAILED], NODE)
    assert (problem.code, problem.gpu) == (Code.MPS, "GPU-1")
    assert problem.message == (
        "the MPS daemon of 3g.40gb at 4 of GPU 1 does not stay up: failed 5 times in a row; "
        "its last message: no CUDA-capable device is detected"
    )
    assert problem.remedy == "mend the cause; to restart it at once: `nodeagent mps restart MIG-b`"


@pytest.mark.parametrize(
    "found", [{"access": Access.LOST}, {"health_limits": HealthLimits(gone=True)}]
)
def test_a_daemon_of_a_lost_gpu_is_no_problem_of_its_own(found: dict[str, Any]) -> None:
    """What the GPU's finding says is all there is to do."""
    lost = replace(NODE, gpus=(NODE.gpus[0], replace(NODE.gpus[1], **found)))
    assert not mps_problems([FAILED], lost)
    cordoned = replace(FAILED, state="Ready", trouble="takes no new clients: it is lost")
    for observed, told in ((NODE, 1), (lost, 0)):
        status = status_json(replace(_node(cordoned), observed=observed)) or {}
        assert sum(trouble["code"] == "Mps" for trouble in status["troubles"]) == told


def test_a_faulted_daemon_names_the_clients_that_have_to_end() -> None:
    [problem] = mps_problems([replace(READY, state="Fault", why="a fatal fault")], NODE)
    assert problem.code is Code.MPS
    assert "4712 (python) of pod ml/train-0" in problem.remedy
    assert "`kubectl delete pod -n ml train-0`" in problem.remedy


def test_a_waiting_client_is_named_with_whom_it_waits_for() -> None:
    problems = mps_problems([replace(READY, waiting=(WAITING,))], NODE)
    [problem] = problems
    assert problem.code is Code.MPS_CLIENT
    for part in ("pid 99 (sleepy) of user 1001", "server 816 serves user 1000", "4712 (python)"):
        assert part in problem.message
    assert problem.remedy == (
        "end it: `kill 99`; run it as user 1000, or set mps.user in the plan to 1001 or any, and "
        "start it again"
    )
    in_sync = NodePlan(Verdict.IN_SYNC)
    assert phase_of(refused=False, plan=in_sync, problems=problems, mps=(READY,)) is Phase.IN_SYNC


def test_each_finding_of_a_client_is_a_problem() -> None:
    reported = mps_problems([replace(READY, clients=(STRAY,))], NODE)
    assert [p.message for p in reported] == [
        "MPS client 4713 on GPU 0: it has no share",
        "MPS client 4713 on GPU 0: it has no memory limit",
    ]
    assert all("end it: `kill 4713` (" in problem.remedy for problem in reported)
    ended = mps_problems([replace(READY, clients=(STRAY,), **as_wanted(ANY))], NODE)
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
    for phase, wanted, expected in PHASES:
        daemons = (mps_daemon("GPU-0", phase, WANTED if wanted else None),)
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
        ("Backoff", "an agent restarts it"),
    ],
)
def test_what_to_do_about_a_daemon_that_is_not_ready(state: str, remedy: str) -> None:
    [problem] = unready_daemons(replace(WHOLE, mps=DeviceDaemon(WANTED, state)))
    assert remedy in problem.remedy
    assert unready_daemons(replace(WHOLE, mps=DeviceDaemon(WANTED, "Ready"))) == ()


def test_readiness_names_each_daemon_that_is_not_ready() -> None:
    unwanted = replace(READY, **as_wanted(None), state="Draining")
    draining = replace(READY, state="Draining", why="drained on request")
    state = NodeState("n", "file", rounds=1, observed=NODE, mps=(READY, unwanted))
    assert not_ready(state) == ()
    assert not_ready(replace(state, mps=(draining, FAILED))) == (
        "the MPS daemon of GPU 0 (GPU-0) is Draining: drained on request",
        "the MPS daemon of 3g.40gb at 4 of GPU 1 (MIG-b) is Failed: failed 5 times in a row",
    )


def test_a_daemon_of_two_gpus_is_shown_once_and_found_by_either() -> None:
    other = replace(WHOLE, index=2, uuid="GPU-2")
    both = replace(READY, devices=("GPU-0", "GPU-2"), state="Fault", why="a fault")
    shown = NodeState("node-a", "file", observed=ObservedNode((WHOLE, DIVIDED, other)), mps=(both,))
    for named in ("0", "2", "GPU-2"):
        answer = mps_answer(shown, named)
        assert answer is not None
        [daemon] = answer["daemons"]
        assert (daemon["device"], daemon["gpus"]) == ("GPU-0", (0, 2))
    assert mps_answer(shown, "1") == {"node": "node-a", "daemons": []}
    [problem] = mps_problems((both,), shown.observed)
    assert "GPU 0 + GPU 2" in problem.message
    for uuid in ("GPU-0", "GPU-2", None):
        status = status_json(shown, uuid)
        assert status is not None
        assert [one["devices"] for one in status["mps"]] == [("GPU-0", "GPU-2")]
    assert status_json(shown, "GPU-1") is not None
    assert not (status_json(shown, "GPU-1") or {})["mps"]
