from datetime import UTC, datetime
from typing import Any

from nodeagent.health.evaluate import evaluate
from nodeagent.health.findings import Action, Moment
from nodeagent.health.readings import Answer, GpuReading, NodeReading, Silence
from nodeagent.health.state import HealthState
from nodeagent.health.table import advice
from nodeagent.health.xids import default_table
from nodeagent.plan.observed import (
    Access,
    ComputeInstance,
    Gpu,
    GpuInstance,
    GpuInstanceProfile,
    Memory,
    MigMode,
    ObservedNode,
    Placement,
)
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.users import Usage, User
from nodeagent.structs import replace
from nodeagent.views.claims import Claim, ClaimDevice, ClaimPhase
from nodeagent.views.node_state import NodeState, Phase, Reading
from nodeagent.views.shapes import Json, Refused
from nodeagent.views.status_report import status_json

THREE = GpuInstanceProfile(9, 2, "3g.40gb", 3, 40 << 30, 60, 2, (Placement(0, 4), Placement(4, 4)))
ONE = GpuInstanceProfile(
    19, 0, "1g.10gb", 1, 10 << 30, 16, 7, tuple(Placement(start, 1) for start in range(7))
)
POD_USER = User(4711, "python", memory=5, namespace="ml", pod="train-0", container="main")
DEVICE = ComputeInstance(
    0, "3g.40gb", 3, "MIG-1", usage=Usage((POD_USER,)), memory=Memory(5, 40 << 30)
)
HALF = GpuInstance(7, 19, "1g.10gb", Placement(4, 1))
MIG_GPU = Gpu(
    0,
    "GPU-0",
    name="NVIDIA H100 80GB HBM3",
    pci_bus_id="00000000:1A:00.0",
    mig=MigMode(current=True, pending=True),
    profiles=(THREE, ONE),
    instances=(GpuInstance(1, 9, "3g.40gb", Placement(0, 4), (DEVICE,)), HALF),
)
LOST = Gpu(1, "GPU-1", access=Access.LOST, access_reason="it fell off the bus")


def state(**fields: Any) -> NodeState:
    given = {
        "phase": Phase.IN_SYNC,
        "digest": "sha256:00",
        "observed": ObservedNode((MIG_GPU, LOST), "570.1"),
        "observed_at": datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
        **fields,
    }
    return NodeState("node-a", "file", **given)


def shown(state: NodeState, gpu: str | None = None) -> Json:
    report = status_json(state, gpu)
    assert report is not None
    return report


def test_a_half_made_instance_is_shown_without_uuid() -> None:
    assert shown(state())["gpus"][0]["instances"][1] == {
        "profile": "1g.10gb",
        "start": 4,
        "size": 1,
        "gi": 7,
        "inUse": False,
        "users": [],
    }


def test_a_lost_gpu_is_unhealthy_and_claims_nothing() -> None:
    report = shown(state())
    gpu = report["gpus"][1]
    assert "free" not in gpu
    assert "mig" not in gpu
    nameless = shown(state(observed=ObservedNode((Gpu(0, "", access=Access.LOST),))))
    assert "uuid" not in nameless["gpus"][0]
    assert gpu["health"]["status"] == "unhealthy"
    [finding] = gpu["health"]["findings"]
    assert finding["evidence"] == "it fell off the bus"
    assert "then `systemctl reboot`. " in finding["advice"]


def test_unknown_users_count_as_use() -> None:
    device = ComputeInstance(
        0, "3g.40gb", 3, "MIG-1", usage=Usage(known=False, reason="no permission")
    )
    gpu = Gpu(0, "GPU-0", instances=(GpuInstance(1, 9, "3g.40gb", Placement(0, 4), (device,)),))
    whole = Gpu(1, "GPU-1", usage=Usage(known=False))
    report = shown(state(observed=ObservedNode((gpu, whole))))
    instance = report["gpus"][0]["instances"][0]
    assert (instance["inUse"], instance["usersUnknown"]) == (True, "no permission")
    assert "usersUnknown" not in report["gpus"][0]
    assert report["gpus"][1]["usersUnknown"] == "they could not be read"


def test_nothing_is_idle_on_a_gpu_that_does_not_answer() -> None:
    lost = replace(MIG_GPU, access=Access.LOST, access_reason="it fell off the bus")
    report = shown(state(observed=ObservedNode((lost,))))
    instance = report["gpus"][0]["instances"][0]
    assert (instance["inUse"], instance["users"]) == (True, [])
    assert instance["usersUnknown"] == "the GPU does not answer"
    assert "memory" not in instance


def test_one_gpu_by_its_uuid() -> None:
    problems = (
        Problem(code=Code.IN_USE, message="zero", gpu="GPU-0"),
        Problem(code=Code.GPU_LOST, message="one", gpu="GPU-1"),
        Problem(code=Code.DRIVER, message="node"),
    )
    report = shown(state(problems=problems), gpu="GPU-1")
    assert [gpu["uuid"] for gpu in report["gpus"]] == ["GPU-1"]
    assert [problem["message"] for problem in report["problems"]] == ["one", "node"]
    assert status_json(state(), gpu="GPU-9") is None


def test_claims_are_there_where_they_are_served() -> None:
    report = shown(state())
    assert "claims" not in report
    device = ClaimDevice(request="r", pool="p", device="gpu", gpu="GPU-0")
    known: dict[str, Any] = {"phase": ClaimPhase.WAITING, "pods": [], "problems": []}
    claims = (
        Claim(namespace="ml", name="first", uid="1", devices=[device], **known),
        Claim(namespace="ml", name="second", uid="2", devices=[], **known),
    )
    for gpu, names in (
        (None, ["first", "second"]),
        ("GPU-0", ["first", "second"]),
        ("GPU-1", ["second"]),
    ):
        report = shown(state(claims=claims), gpu)
        assert [claim["name"] for claim in report["claims"]] == names
    report = shown(state(claims=()))
    assert report["claims"] == []


def test_why_gpus_offer_less_to_claims() -> None:
    why = Problem(
        code=Code.RESET_REQUIRED, message="MIG mode is off", remedy="reset it", gpu="GPU-0"
    )
    for gpu, known in ((None, True), ("GPU-0", True), ("GPU-1", False)):
        report = shown(state(claims=(), less_offered=(why,)), gpu)
        assert ("lessOffered" in report) is known
    report = shown(state(claims=(), less_offered=(why,)))
    assert report["lessOffered"] == [
        {
            "code": "ResetRequired",
            "gpu": "GPU-0",
            "message": "MIG mode is off",
            "remedy": "reset it",
        }
    ]
    report = shown(state(claims=()))
    assert "lessOffered" not in report


def test_a_refused_document_is_reported_beside_the_one_in_force() -> None:
    problem = Problem(code=Code.SYNTAX, message="no", path="gpus[0]")
    refusal = Refused(digest="sha256:11", problems=(problem,))
    report = shown(state(phase=Phase.REJECTED, refusal=refusal))
    assert report["digest"] == "sha256:00"
    assert report["rejected"] == {
        "digest": "sha256:11",
        "problems": ({"code": "Syntax", "path": "gpus[0]", "message": "no"},),
    }


def test_what_the_checks_found() -> None:
    there = state()
    first, second = (gpu.uuid for gpu in there.observed.gpus)
    gpus = (
        GpuReading(first, 0, memory_unrepairable=True),
        GpuReading(second, 1, memory_unrepairable=True),
    )
    answer = Answer(Silence.FAILS, reason="no answer")
    reading = NodeReading(Moment(5.0, 1e9), "boot", gpus=gpus, answer=answer)
    health = evaluate(HealthState(), reading, default_table()).state
    report = shown(replace(there, health=health))
    assert report["health"]["status"] == "unknown"
    assert report["health"]["findings"][0]["cause"] == "driverHangs"
    one, other = (gpu["health"] for gpu in report["gpus"])
    assert one == {"status": "unhealthy", "findings": [_UNREPAIRABLE]}
    assert [f["cause"] for f in other["findings"]] == ["gpuLost", "memoryUnrepairable"]
    lost = GpuReading(second, 1, answer=Answer(Silence.LOST, reason="gone"))
    later = evaluate(
        health, NodeReading(Moment(6.0, 1e9), "boot", gpus=(lost,)), default_table()
    ).state
    found = shown(replace(there, health=later))
    causes = [f["cause"] for f in found["gpus"][1]["health"]["findings"]]
    assert causes == ["gpuLost", "memoryUnrepairable"]


_UNREPAIRABLE = {
    "check": "memoryRepair",
    "cause": "memoryUnrepairable",
    "severity": "unhealthy",
    "message": "has memory that cannot be repaired",
    "evidence": "the driver says so",
    "suggestedAction": "inspect hardware",
    "advice": advice("memoryUnrepairable", Action.INSPECT_HARDWARE) + " See `nvidia-smi -q -i 0`.",
    "since": "2001-09-09T01:46:40.000Z",
    "lastSeen": "2001-09-09T01:46:40.000Z",
    "count": 1,
    "pods": [],
}


def _at_work(*read: tuple[str, int | None, Reading]) -> list[dict[str, Any]]:
    """The GPUs of a node with a whole MIG device of which this was read."""
    whole = replace(MIG_GPU, instances=MIG_GPU.instances[:1], memory=80 << 30)
    readings = {(gpu, instance): reading for gpu, instance, reading in read}
    gpus = shown(state(observed=ObservedNode((whole, LOST)), readings=readings))["gpus"]
    assert isinstance(gpus, list)
    return gpus


def test_what_was_sampled_is_shown() -> None:
    of_gpu = Reading(37.5, 64, 412.3, 5 << 30, power_limit=700.0, clock_reasons=0x44)
    gpu, lost = _at_work(
        ("GPU-0", None, of_gpu), ("GPU-0", 1, Reading(90.0)), ("GPU-1", None, of_gpu)
    )
    assert {key: gpu[key] for key in ("utilization", "temperature", "power", "memory")} == {
        "utilization": 37.5,
        "temperature": 64,
        "power": 412.3,
        "memory": {"total": 80 << 30, "used": 5 << 30},
    }
    assert (gpu["powerLimit"], gpu["clockReasons"]) == (700.0, ["power_cap", "hw_thermal"])
    assert gpu["instances"][0]["utilization"] == 90.0
    assert not {"utilization", "temperature", "power", "powerLimit", "memory"} & lost.keys()


def test_with_mig_the_instances_make_the_gpus_utilization() -> None:
    gpu, _ = _at_work(("GPU-0", 1, Reading(70.0)))
    assert gpu["utilization"] == 70.0  # the largest profile of this card has three slices
    assert "utilization" not in _at_work(("GPU-0", None, Reading(temperature=50)))[0]
