"""The JSON of plans and outcomes: its keys are what scripts rely on."""

from __future__ import annotations

import json

from nodeagent.plan.desired import DesiredGpu, DesiredNode
from nodeagent.plan.observed import Access, Gpu, ObservedNode
from nodeagent.plan.plan import (
    GpuOutcome,
    GpuPlan,
    NodeOutcome,
    NodePlan,
    Policy,
    StepReport,
    StepResult,
    Verdict,
)
from nodeagent.plan.planner import plan
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.shares import Account, ComputeMode, TimeSlice
from nodeagent.structs import replace
from nodeagent.views.plan_report import outcome_json, plan_json
from nodeagent.views.shapes import Json
from tests.plan.cards import card, devices, divided, wanted, with_instances
from tests.plan.daemons import A, without_mig


def planned(gpu, desired, **policy: bool) -> NodePlan:  # type: ignore[no-untyped-def]  # test shorthand
    """The plan for a node of one GPU."""
    return plan(DesiredNode({gpu.uuid: desired}), ObservedNode((gpu,)), Policy(**policy))


def report(plan: NodePlan, digest: str = "") -> Json:
    """The JSON of a plan that the default policy made."""
    return plan_json(plan, digest=digest, source="file", policy=Policy())


def test_contract_keys() -> None:
    """Every key that the contract names is there, with its meaning."""
    gpu = with_instances(card("h100-80gb"), [("1g.10gb", 0), ("1g.10gb", 4)], used=[1])
    result = report(planned(gpu, wanted(gpu, [("3g.40gb", 1), ("1g.10gb", 1)])), "sha256:1")
    assert {"verdict", "digest", "source", "gpus", "problems"} == set(result)
    (one,) = result["gpus"]
    assert {"index", "uuid", "name", "verdict", "before", "after", "steps"} <= set(one)
    assert one["before"][0] == {
        "profile": "1g.10gb",
        "start": 0,
        "size": 1,
        "uuid": "MIG-0",
        "inUse": False,
    }
    assert one["after"][0] == {"profile": "3g.40gb", "start": 0, "size": 4}
    destroy, create = one["steps"]
    assert {
        "kind": "destroyInstance",
        "profile": "1g.10gb",
        "start": 0,
        "uuid": "MIG-0",
    }.items() <= destroy.items()
    assert {"kind": "createInstance", "profile": "3g.40gb", "start": 0}.items() <= create.items()
    assert destroy["reason"]
    assert create["reason"]
    json.dumps(result)


def test_a_blocked_gpu_shows_what_is_wanted() -> None:
    """Where only users are in the way: the steps that lead there, and what stays in use."""
    gpu = with_instances(card("h100-80gb"), [("1g.10gb", 0), ("1g.10gb", 4)], used=[0, 1])
    blocked = planned(gpu, wanted(gpu, [("3g.40gb", 1), ("1g.10gb", 1)]))
    (one,) = report(blocked)["gpus"]
    assert (one["verdict"], one["steps"], one["after"]) == ("blocked", [], one["before"])
    free = one["onceFree"]
    assert [step["kind"] for step in free["steps"]] == ["destroyInstance", "createInstance"]
    new, kept = sorted(free["after"], key=lambda place: place.get("inUse", False))
    assert (new["profile"], "inUse" in new) == ("3g.40gb", False)
    assert (kept["profile"], kept["inUse"]) == ("1g.10gb", True)
    assert free["mig"] == {"current": "enabled", "pending": "enabled"}
    lost = planned(replace(gpu, access=Access.LOST), wanted(gpu, [("7g.80gb", 1)]))
    assert "onceFree" not in report(lost)["gpus"][0]


def test_divided_instances_are_rows() -> None:
    """Each compute instance is a device of its own; a half-made GPU instance has no uuid."""
    gpu = divided(card("h100-80gb"), "3g.40gb", 0, 1, 1)
    half = with_instances(card("h100-80gb"), [("3g.40gb", 4)]).instances[0]
    gpu = replace(gpu, instances=(*gpu.instances, replace(half, id=2, compute=())))
    result = report(planned(gpu, devices(gpu, ("3g.40gb", 1, 0))))
    before = result["gpus"][0]["before"]
    assert [row["profile"] for row in before] == ["1c.3g.40gb", "1c.3g.40gb", "3g.40gb"]
    assert "uuid" not in before[2]
    scopes = {(s["kind"], s["scope"]) for s in result["gpus"][0]["steps"]}
    assert scopes == {("destroyInstance", "gpuInstance"), ("destroyInstance", "computeInstance")}


def test_a_whole_gpu_and_its_time_slice() -> None:
    """The device is the GPU's own UUID, and there is no place on the card."""
    gpu = without_mig(card("t4"), compute_mode=ComputeMode.EXCLUSIVE_PROCESS)
    anybody = replace(A, account=Account(0, 0, any_user=True))
    (start,) = report(planned(gpu, DesiredGpu(None, "p", mps=anybody)))["gpus"][0]["steps"]
    assert (start["device"], start["user"]) == (gpu.uuid, "any")
    assert "profile" not in start
    slices = DesiredGpu(None, "p", time_slice=TimeSlice.LONG)
    steps = report(planned(gpu, slices))["gpus"][0]["steps"]
    assert [s["kind"] for s in steps] == ["setTimeSlice", "setComputeMode"]
    assert steps[0]["timeSlice"] == "long"
    assert (steps[1]["mode"], steps[1]["device"]) == ("default", gpu.uuid)


def test_outcome() -> None:
    """Each step has its result and seconds; `after` is what was read back."""
    gpu = card("h100-80gb")
    result = planned(gpu, wanted(gpu, [("7g.80gb", 1)]))
    (step,) = result.steps
    problem = Problem(code=Code.STEP_FAILED, message="it did not work", gpu=gpu.uuid)
    outcome = NodeOutcome(
        result,
        (
            GpuOutcome(
                result.gpus[0], (StepReport(step, StepResult.FAILED, 0.25, "no"),), gpu, (problem,)
            ),
        ),
    )
    written = outcome_json(outcome, digest="", source="file")
    (one,) = written["gpus"]
    assert {"result": "failed", "seconds": 0.25, "message": "no"}.items() <= one["steps"][0].items()
    assert one["after"] == []
    assert written["problems"] == [
        {"code": "StepFailed", "gpu": gpu.uuid, "message": "it did not work"}
    ]


def test_what_is_not_known_is_absent() -> None:
    """A GPU that never answered has no UUID, name or mode; a text that was not read no digest."""
    lost = [Gpu(index, "", access=Access.LOST) for index in (0, 1)]
    plans = tuple(GpuPlan(gpu, Verdict.BLOCKED, (), gpu) for gpu in lost)
    outcome = NodeOutcome(
        NodePlan(Verdict.BLOCKED, plans), tuple(GpuOutcome(p, (), p.before) for p in plans)
    )
    written = outcome_json(outcome, digest="", source="file")
    assert "digest" not in written
    assert [gpu["index"] for gpu in written["gpus"]] == [0, 1]
    assert all(not {"uuid", "name", "mig"} & set(gpu) for gpu in written["gpus"])
