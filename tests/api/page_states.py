"""The node of docs/annotations.md in each state that the page has to show."""

from typing import Any

from nodeagent.documents.reading import read_document
from nodeagent.health.evaluate import evaluate
from nodeagent.health.findings import Moment
from nodeagent.health.readings import GpuReading, NodeReading, XidEvent, XidSource
from nodeagent.health.state import HealthState
from nodeagent.health.xids import default_table
from nodeagent.plan.observed import Access, ComputeInstance, Gpu, GpuInstance, Memory, ObservedNode
from nodeagent.plan.plan import Policy
from nodeagent.plan.planner import plan
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.resolve import resolve
from nodeagent.plan.users import Pod, Usage, User
from nodeagent.structs import replace
from nodeagent.views.claims import Claim, ClaimDevice, ClaimPhase, ClaimShare
from nodeagent.views.node_state import NodeState, Phase, Reading
from nodeagent.views.text import time_json
from tests.plan.cards import with_instances
from tests.views.daemons import WAITING, mps_client
from tests.views.example_node import AT, BLOCKED, DAEMON, FIRST, IN_SYNC, OBSERVED, SECOND, WHOLE

_GIB = 1 << 30
MARKUP = "<img src=x onerror=alert(1)>"  # a process may call itself so
WANTED = "version: v1\ngpus: [{devices: [0], mig: {2g.20gb: 3, 1g.10gb: 1}}]\n"
BESIDE = "version: v1\ngpus: [{devices: [0], mig: {3g.40gb: 1, 2g.20gb: 2}}]\n"  # what is in use

_divided, _shared = OBSERVED.gpus
_unused = _divided.with_mig_devices(lambda _, device: replace(device, usage=Usage()))
_idle_node = ObservedNode((_unused, replace(_shared, usage=Usage())), OBSERVED.driver_version)
IDLE = replace(IN_SYNC, observed=_idle_node, mps=(replace(DAEMON, clients=()),))

_USER = User(4711, MARKUP, memory=9 * _GIB, namespace="ml", pod="train-0", container="main")


def _measured(_: GpuInstance, device: ComputeInstance) -> ComputeInstance:
    """With a user that is known, if it had any."""
    used = device.usage.in_use
    memory = Memory(9 * _GIB if used else 0, 10 * device.slices * _GIB)
    return replace(device, usage=Usage((_USER,) if used else ()), memory=memory)


_busy_node = replace(OBSERVED, gpus=(_divided.with_mig_devices(_measured), _shared))
_POD: dict[str, Any] = {"namespace": "ml", "pod": "serve-0", "container": "main"}
_CLIENTS = (
    mps_client(4712, "python", 1000, "replica", "replica-0", 5 * _GIB, 20 * _GIB, 25.0, **_POD),
    mps_client(4713, "python", 1000, findings=("it is not assigned to any share",)),
)
_NAMED: dict[str, Any] = {
    "request": "main",
    "pool": f"gpu-node-0/{FIRST.lower()}",
    "device": "mig-1g-10gb-0",
}
_SLICE = ClaimDevice(**_NAMED, gpu=FIRST, index=0, profile="1g.10gb", start=0, size=1)
_WHOSE: dict[str, Any] = {
    "namespace": "ml",
    "name": "notebook",
    "uid": "6a1b",
    "since": "2030-01-02T03:00:00.000Z",
}
_CLAIM = Claim(
    **_WHOSE,
    phase=ClaimPhase.READY,
    pods=[Pod(namespace="ml", name="notebook-0", container="main")],
    devices=[_SLICE],
    problems=[],
)
BUSY = replace(
    IN_SYNC,
    observed=_busy_node,
    mps=(replace(DAEMON, clients=_CLIENTS, restarts=1, since=time_json(AT)),),
    claims=(_CLAIM,),
)

_desired = resolve(read_document(WANTED), _idle_node)
WORKING = replace(IDLE, phase=Phase.WORKING, plan=plan(_desired, _idle_node, Policy()))

_readings = (GpuReading(FIRST, 0, memory_unrepairable=True), GpuReading(SECOND, 1))
_SICK = NodeReading(Moment(10.0, 1e9), "boot", gpus=_readings)
SICK = replace(BUSY, health=evaluate(HealthState(), _SICK, default_table()).state)

_lost = replace(_divided, access=Access.LOST, access_reason="GPU_IS_LOST")
LOST = replace(BUSY, observed=ObservedNode((_lost, _shared), OBSERVED.driver_version))

_waits = resolve(read_document(WHOLE), OBSERVED)


def _busy_gpu(index: int) -> Gpu:
    gpu = replace(_busy_node.gpus[0], index=index, uuid=f"{FIRST[:-1]}{index}")
    return gpu.with_mig_devices(lambda _, old: replace(old, uuid=f"{old.uuid[:-1]}{index}"))


_eight = ObservedNode((*_busy_node.gpus, *map(_busy_gpu, range(2, 8))), OBSERVED.driver_version)
_all = WHOLE.replace(b"[0]", b"[0, 2, 3, 4, 5, 6, 7]")
_all_wait = plan(resolve(read_document(_all), _eight), _eight, Policy())
MANY = replace(
    BLOCKED,
    observed=_eight,
    plan=_all_wait,
    problems=tuple(problem for gpu in _all_wait.gpus for problem in gpu.problems),
)

# --- a full node, and what can be wrong with it ---------------------------------------------------

_NAMES = ("train-0", "train-1", "notebook", "serve-7b", "", "eval", "sweep-12")


def _full_gpu(index: int) -> Gpu:
    gpu = replace(_divided, index=index, uuid=f"{FIRST[:-1]}{index}")

    def used(instance: GpuInstance, device: ComputeInstance) -> ComputeInstance:
        slot = instance.placement.start
        pod = _NAMES[(slot + index) % 7]
        user = User(5000 + 10 * index + slot, "python", namespace="ml", pod=pod, uid=1000)
        usage, memory = Usage((user,)) if pod else Usage(), Memory(slot * _GIB, 10 * _GIB)
        return replace(device, uuid=f"MIG-{index}-{slot}", usage=usage, memory=memory)

    return with_instances(gpu, [("1g.10gb", n) for n in range(7)]).with_mig_devices(used)


_full = ObservedNode(tuple(map(_full_gpu, range(8))), OBSERVED.driver_version)
_READING = Reading(
    *(90.0, 64, 512.5, 60 * _GIB, 87, 700.0), sm_clock=1980, clock_reasons=4, ecc_corrected=2
)
_readings_of_all: dict[tuple[str, int | None], Reading] = {
    (gpu.uuid, None): _READING for gpu in _full.gpus
}
FULL = replace(IN_SYNC, observed=_full, mps=(), started_at=AT, readings=_readings_of_all)
_uuids = [gpu.uuid for gpu in _full.gpus]
_found = NodeReading(
    *(Moment(10.0, 1e9), "boot"),
    gpus=(
        GpuReading(_uuids[0], 0, memory_unrepairable=True),
        GpuReading(_uuids[1], 1, recovery_action=1),
        GpuReading(_uuids[2], 2, inforom_corrupt=True),
        *(GpuReading(_uuids[index], index) for index in range(3, 8)),
    ),
    xids=tuple(
        XidEvent(xid, 9.0, XidSource.NVML, gpu=_uuids[index]) for xid, index in ((95, 1), (13, 3))
    ),
)
FINDINGS = replace(FULL, health=evaluate(HealthState(), _found, default_table()).state)
_fell_off = replace(_full.gpus[5], access=Access.LOST, access_reason="GPU_IS_LOST")
ONE_LOST = replace(FULL, observed=ObservedNode((*_full.gpus[:5], _fell_off, *_full.gpus[6:])))

_users = tuple(
    mps_client(
        *(4712 + number, "python", 1000 + number // 2, "replica", f"replica-{number}"),
        *(number * _GIB, 20 * _GIB, 25.0, ("it has no memory limit",) if number == 11 else ()),
        script="in\u202efer.py",
    )
    for number in range(12)
)
_shared_daemon = replace(DAEMON, clients=_users, waiting=(WAITING,))
_share = ClaimShare(memory=20 * _GIB, used=5 * _GIB, threads=25.0)
_short = "GPU 1 has 4.0 GiB left for claims, not 20.0 GiB"
_refusal = Problem(code=Code.CLAIM_REFUSED, message=_short)
_part = replace(_SLICE, gpu=SECOND, profile="", share=_share, share_id="serve")
_claims = (
    *(_CLAIM, replace(_CLAIM, name="serve", devices=[_part])),
    replace(_CLAIM, name="late", phase=ClaimPhase.WAITING, devices=[], refusal=_refusal),
)
SHARING = replace(BUSY, mps=(_shared_daemon,), claims=_claims)

STATES: dict[str, NodeState] = {
    "idle": IDLE,
    "busy": BUSY,
    "working": WORKING,
    "blocked": replace(BLOCKED, plan=plan(_waits, OBSERVED, Policy())),
    "sick": SICK,
    "lost": LOST,
    "many": MANY,
    "full": FULL,
    "one lost": ONE_LOST,
    "findings": FINDINGS,
    "sharing": SHARING,
    "no plan": replace(IDLE, phase=Phase.NO_PLAN, digest="", plan=None),
    "driver": replace(FULL, driver_error="a call hangs for 30 s"),
    "none": NodeState("gpu-node-0", "file", Phase.NO_PLAN, observed_at=AT),
}
