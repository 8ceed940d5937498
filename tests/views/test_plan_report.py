from nodeagent.plan.desired import DesiredGpu, DesiredNode
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.plan import NodePlan, Policy
from nodeagent.plan.planner import plan
from nodeagent.plan.shares import Account, ComputeMode, TimeSlice
from nodeagent.structs import replace
from nodeagent.views.plan_report import plan_json
from nodeagent.views.shapes import Json
from tests.plan.cards import card, devices, divided, with_instances
from tests.plan.daemons import A, without_mig


def planned(gpu, desired, **policy: bool) -> NodePlan:  # type: ignore[no-untyped-def]  # test shorthand
    return plan(DesiredNode({gpu.uuid: desired}), ObservedNode((gpu,)), Policy(**policy))


def report(plan: NodePlan, digest: str = "") -> Json:
    return plan_json(plan, digest=digest, source="file", policy=Policy())


def test_divided_instances_are_rows() -> None:
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
