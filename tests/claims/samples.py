"""A claim's object as the API server has it, and records, with what a test changes of them."""

from typing import Any

from msgspec import json

from nodeagent.claims.capacity import Consumed
from nodeagent.claims.model import ClaimedDevice, ClaimRecord, RecordPhase, Result
from nodeagent.claims.offering.gpu_rules import Planned
from nodeagent.claims.serving.allocation import read_allocation
from nodeagent.claims.serving.claim_object import ClaimObject, read_claim
from nodeagent.plan.observed import Placement
from nodeagent.plan.shares import WantedMps
from nodeagent.structs import replace

UID = "0b8f6a3e-1c2d-4e5f-8a9b-0c1d2e3f4a5b"
DRIVER = "gpu.nodeagent.io"
GPU = "GPU-4711"
POOL = "node-1/gpu-4711"
EIGHT = Consumed(8 << 30, 0, 1)
MIG_DEVICE = "mig-1g-10gb-4"
Json = dict[str, Any]


def result_json(**changes: Any) -> Json:
    """One allocated device; None takes a key away."""
    found = {"request": "gpu", "driver": DRIVER, "pool": POOL, "device": MIG_DEVICE, **changes}
    return {key: value for key, value in found.items() if value is not None}


def config_json(parameters: Any, source: str = "FromClaim", **changes: Any) -> Json:
    opaque = {"driver": changes.pop("driver", DRIVER), "parameters": parameters}
    return {"source": source, "opaque": opaque, **changes}


def device_config(**keys: Any) -> Json:
    return {"apiVersion": "gpu.nodeagent.io/v1", "kind": "DeviceConfig", **keys}


def nvidia_config(kind: str = "GpuConfig", **sharing: Any) -> Json:
    found: Json = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind}
    return found | ({"sharing": sharing} if sharing else {})


def claim_json(*results: Json, config: list[Json] | None = None, uid: str = UID) -> Json:
    """A ResourceClaim that was allocated; with one device where none are given."""
    devices: Json = {"results": list(results) or [result_json()]}
    if config is not None:
        devices["config"] = config
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"uid": uid, "namespace": "team", "name": "trainer", "resourceVersion": "7"},
        "spec": {"devices": {"requests": [{"name": "gpu"}]}},
        "status": {"allocation": {"devices": devices}, "reservedFor": [{"name": "pod"}]},
    }


def claim_object(claim: object) -> ClaimObject:
    return read_claim(json.encode(claim))


def reserved(uid: str, *pods: str) -> ClaimObject:
    consumers = [{"resource": "pods", "name": name, "uid": f"uid-{name}"} for name in pods]
    return claim_object({"metadata": {"uid": uid}, "status": {"reservedFor": consumers}})


def allocation(claim: object, *, uid: str = UID, nvidia: bool = False) -> tuple[Result, ...]:
    found = claim_object(claim)
    return read_allocation(found, namespace="team", name="trainer", uid=uid, nvidia=nvidia)


def mig_result(**changes: Any) -> Result:
    return Result(**{"request": "gpu", "pool": POOL, "device": MIG_DEVICE, **changes})


def mig_device(**changes: Any) -> ClaimedDevice:
    known = {
        "result": mig_result(),
        "gpu": GPU,
        "cdi_id": f"nodeagent.io/claim={UID}-1",
        "profile": "1g.10gb",
        "placement": Placement(4, 1),
    }
    return ClaimedDevice(**{**known, **changes})


def whole_device(
    gpu: str = GPU, mps: WantedMps | None = None, *, fixed: bool = False, **result: Any
) -> ClaimedDevice:
    found = mig_result(**{"device": "gpu", **result})
    return mig_device(result=found, gpu=gpu, profile="", placement=None, fixed=fixed, mps=mps)


def share_of_gpu(
    gpu: str = GPU,
    mps: WantedMps | None = None,
    *,
    consumed: Consumed = EIGHT,
    share_id: str = "share-1",
) -> ClaimedDevice:
    whole = whole_device(gpu, mps, share_id=share_id, consumed=consumed)
    return replace(whole, shared=True)


def share_json(memory: str = "8Gi", threads: int = 0, clients: int = 1, **changes: Any) -> Json:
    amounts = {"gpu.nvidia.com/memory": memory, "threads": f"{threads}", "clients": f"{clients}"}
    known = {"device": "gpu", "shareID": UID, "consumedCapacity": amounts}
    return result_json(**{**known, **changes})


def record(
    *devices: ClaimedDevice, phase: RecordPhase = RecordPhase.READY, **changes: Any
) -> ClaimRecord:
    known = {"uid": UID, "namespace": "team", "name": "trainer", "boot_id": "boot-1"}
    own = devices or (mig_device(),)
    return ClaimRecord(**{**known, "phase": phase, "devices": own, **changes})


def with_goal(planned: Planned, **changes: Any) -> Planned:
    """What the plan says of a GPU, with these changes of its goal."""
    return replace(planned, goal=replace(planned.goal, **changes))
