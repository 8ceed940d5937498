"""The node of docs/annotations.md in each state that the page has to show."""

from nodeagent.documents.reading import read_document
from nodeagent.health.evaluate import evaluate
from nodeagent.health.findings import Moment
from nodeagent.health.readings import GpuReading, NodeReading
from nodeagent.health.state import HealthState
from nodeagent.health.xids import default_table
from nodeagent.plan.observed import Access, Gpu, Memory, ObservedNode
from nodeagent.plan.plan import Policy
from nodeagent.plan.planner import plan
from nodeagent.plan.resolve import resolve
from nodeagent.plan.users import Usage, User
from nodeagent.structs import replace
from nodeagent.views.claims import Claim, ClaimDevice, ClaimPhase
from nodeagent.views.node_state import NodeState, Phase
from nodeagent.views.shapes import Pod
from nodeagent.views.text import time_json
from tests.views.daemons import mps_client
from tests.views.example_node import AT, BLOCKED, DAEMON, FIRST, IN_SYNC, OBSERVED, SECOND, WHOLE

_GIB = 1 << 30
MARKUP = "<img src=x onerror=alert(1)>"  # a process may call itself so
WANTED = "version: v1\ngpus: [{devices: [0], mig: {2g.20gb: 3, 1g.10gb: 1}}]\n"
BESIDE = "version: v1\ngpus: [{devices: [0], mig: {3g.40gb: 1, 2g.20gb: 2}}]\n"  # what is in use

_divided, _shared = OBSERVED.gpus
_idle_node = ObservedNode(
    (
        _divided.with_mig_devices(lambda _, device: replace(device, usage=Usage())),
        replace(_shared, usage=Usage()),
    ),
    OBSERVED.driver_version,
)
IDLE = replace(IN_SYNC, observed=_idle_node, mps=(replace(DAEMON, clients=()),))

_USER = User(4711, MARKUP, memory=9 * _GIB, namespace="ml", pod="train-0", container="main")
_busy_node = ObservedNode(
    (
        _divided.with_mig_devices(
            lambda _, device: replace(
                device,
                usage=Usage((_USER,)) if device.usage.in_use else Usage(),
                memory=Memory(9 * _GIB if device.usage.in_use else 0, 10 * device.slices * _GIB),
            )
        ),
        _shared,
    ),
    OBSERVED.driver_version,
)
_CLIENTS = (
    mps_client(
        4712,
        "python",
        1000,
        "replica",
        "replica-0",
        memory_used=5 * _GIB,
        memory_limit=20 * _GIB,
        threads=25.0,
        namespace="ml",
        pod="serve-0",
        container="main",
    ),
    mps_client(4713, "python", 1000, findings=("it is not assigned to any share",)),
)
_CLAIM = Claim(
    namespace="ml",
    name="notebook",
    uid="6a1b",
    phase=ClaimPhase.READY,
    since="2030-01-02T03:00:00.000Z",
    pods=[Pod(namespace="ml", name="notebook-0", container="main")],
    devices=[
        ClaimDevice(
            request="main",
            pool=f"gpu-node-0/{FIRST.lower()}",
            device="mig-1g-10gb-0",
            gpu=FIRST,
            index=0,
            profile="1g.10gb",
            start=0,
            size=1,
        )
    ],
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
_all_wait = plan(
    resolve(read_document(WHOLE.replace(b"[0]", b"[0, 2, 3, 4, 5, 6, 7]")), _eight),
    _eight,
    Policy(),
)
MANY = replace(
    BLOCKED,
    observed=_eight,
    plan=_all_wait,
    problems=tuple(problem for gpu in _all_wait.gpus for problem in gpu.problems),
)

STATES: dict[str, NodeState] = {
    "idle": IDLE,
    "busy": BUSY,
    "working": WORKING,
    "blocked": replace(BLOCKED, plan=plan(_waits, OBSERVED, Policy())),
    "sick": SICK,
    "lost": LOST,
    "many": MANY,
}
