"""What commands and the API answer: each struct is the JSON, and its schema in `/openapi.json`.

Keys are in camelCase, sizes in bytes; a key that is UNSET is not known and left out. More may be
added; those that are there stay.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, to_builtins

from nodeagent.health.findings import Action, Severity
from nodeagent.plan.plan import StepResult, Verdict
from nodeagent.plan.shares import ComputeMode, TimeSlice
from nodeagent.views.node_state import Phase

Json = dict[str, Any]


def one_of(*words: str) -> Meta:
    """The values that a text can have."""
    return Meta(extra_json_schema={"enum": list(words)})


Maybe = UnsetType  # in a union: the key may be absent

Bytes = Annotated[int, Meta(ge=0, description="bytes")]
Time = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
Percent = Annotated[float, Meta(description="percent of the threads")]
Mode = Annotated[str, one_of("enabled", "disabled")]
StepMode = Annotated[
    str,
    one_of("enabled", "disabled", "default", "exclusiveThread", "prohibited", "exclusiveProcess"),
]
MpsUser = Annotated[int | Literal["any"], Meta(description="user id, or any")]
FirstSlice = Annotated[int, Meta(description="first memory slice")]
Slices = Annotated[int, Meta(description="memory slices")]


class Shape(Struct, frozen=True, kw_only=True, rename="camel"):
    """One object of an answer."""


def as_json(shape: Shape) -> Json:
    """The shape as dictionaries and lists, ready to be written."""
    made: Json = to_builtins(shape)
    return made


class Problem(Shape, frozen=True, kw_only=True):
    code: str
    gpu: str | Maybe = UNSET
    path: str | Maybe = UNSET
    message: str
    remedy: str | Maybe = UNSET


class Pod(Shape, frozen=True, kw_only=True):
    namespace: str
    name: str
    container: str


class ModeState(Shape, frozen=True, kw_only=True):
    current: Mode
    pending: Mode


# --- health ---------------------------------------------------------------------------------------


class HealthFinding(Shape, frozen=True, kw_only=True):
    check: Annotated[str, Meta(description="what was looked at")]
    cause: str
    severity: Severity
    message: Annotated[str, Meta(description="the cause in words")]
    evidence: Annotated[str, Meta(description="what was read, with its figures")]
    suggested_action: Action
    advice: str
    since: Time | Maybe = UNSET
    last_seen: Time | Maybe = UNSET
    count: Annotated[int, Meta(description="how often it was seen")] | Maybe = UNSET
    xid: int | Maybe = UNSET
    link: Annotated[int, Meta(description="of NVLink")] | Maybe = UNSET
    gi: Annotated[int, Meta(description="the GPU instance it hit")] | Maybe = UNSET
    ci: Annotated[int, Meta(description="the compute instance it hit")] | Maybe = UNSET
    start: FirstSlice | Maybe = UNSET
    size: Slices | Maybe = UNSET
    pid: int | Maybe = UNSET
    pods: Annotated[list[Pod], Meta(description="who used the place then")] | Maybe = UNSET


class Health(Shape, frozen=True, kw_only=True):
    status: Annotated[Severity, Meta(description="of its worst finding")]
    findings: list[HealthFinding]


# --- MPS ------------------------------------------------------------------------------------------


class MpsShare(Shape, frozen=True, kw_only=True):
    count: int | Maybe = UNSET
    memory: Bytes | Maybe = UNSET
    threads: Percent | Maybe = UNSET


class MpsMemory(Shape, frozen=True, kw_only=True):
    used: Bytes | Maybe = UNSET
    limit: Bytes | Maybe = UNSET


class MpsClient(Shape, frozen=True, kw_only=True):
    pid: int
    command: str | Maybe = UNSET
    user: int | Maybe = UNSET
    share: str | Maybe = UNSET
    slot: str | Maybe = UNSET
    memory: MpsMemory | Maybe = UNSET
    threads: Percent | Maybe = UNSET
    pod: Pod | Maybe = UNSET
    findings: Annotated[list[str], Meta(description="what is wrong with it")] | Maybe = UNSET


class MpsServer(Shape, frozen=True, kw_only=True):
    pid: int
    user: int | Maybe = UNSET
    status: str


class MpsWaiting(Shape, frozen=True, kw_only=True):
    pid: int
    user: int
    command: str | Maybe = UNSET


class MpsDaemon(Shape, frozen=True, kw_only=True):
    device: Annotated[str, Meta(description="UUID of a GPU or MIG device")]
    gpu: Annotated[int, Meta(description="index of the device's GPU")] | Maybe = UNSET
    profile: Annotated[str, Meta(description="of a MIG device")] | Maybe = UNSET
    start: FirstSlice | Maybe = UNSET
    size: Slices | Maybe = UNSET
    state: Annotated[
        str,
        one_of("Down", "Starting", "Limiting", "Ready", "Draining", "Fault", "Backoff", "Failed"),
    ]
    why: Annotated[str, Meta(description="why it is not Ready")] | Maybe = UNSET
    trouble: (
        Annotated[str, Meta(description="why it cannot be asked, or how its last server failed")]
        | Maybe
    ) = UNSET
    since: Time | Maybe = UNSET
    pid: int | Maybe = UNSET
    user: MpsUser | Maybe = UNSET
    restarts: int
    pipe_directory: str | Maybe = UNSET
    enforce: Annotated[str, one_of("report", "terminate")] | Maybe = UNSET
    shares: dict[str, MpsShare] | Maybe = UNSET
    server: MpsServer | Maybe = UNSET
    clients: list[MpsClient]
    waiting: list[MpsWaiting] | Maybe = UNSET
    last_lines: Annotated[list[str], Meta(description="of its log, where it failed")] | Maybe = (
        UNSET
    )


class Mps(Shape, frozen=True, kw_only=True):
    node: str
    observed_at: Time | Maybe = UNSET
    daemons: list[MpsDaemon]


class MpsDone(Shape, frozen=True, kw_only=True):
    device: str
    done: Annotated[str, one_of("restarted", "drained")]
    message: str
    daemon: MpsDaemon


# --- the status -----------------------------------------------------------------------------------


class HeadlineSeverity(StrEnum):
    """`error`: something does not work. `warning`: something waits or may soon not work."""

    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Headline(Shape, frozen=True, omit_defaults=True):
    """The worst thing about the node: a sentence, and what to do in sentences with commands.

    `gpu` is a UUID, absent where it is of no single GPU. `code` is a problem's code, a cause of
    health in CamelCase, or a phase.
    """

    severity: HeadlineSeverity
    text: str
    remedy: str = ""
    gpu: str = ""
    code: str = ""


class ClusterProblem(Shape, frozen=True, kw_only=True):
    message: str
    remedy: str


class Cluster(Shape, frozen=True, kw_only=True):
    server: Annotated[str, Meta(description="the API server's address")]
    reachable: Annotated[bool, Meta(description="whether the Node can be followed now")]
    registered: Annotated[bool, Meta(description="whether the cluster has a Node of this name")]
    since: (
        Annotated[Time, Meta(description="absent while reachable was never otherwise")] | Maybe
    ) = UNSET
    problem: ClusterProblem | Maybe = UNSET


class Refused(Shape, frozen=True, kw_only=True):
    digest: str | Maybe = UNSET
    problems: list[Problem]


class UserMemory(Shape, frozen=True, kw_only=True):
    used: Bytes


class User(Shape, frozen=True, kw_only=True):
    source: Annotated[str, one_of("process", "mps", "capability", "kubelet")]
    pid: int | Maybe = UNSET
    command: str | Maybe = UNSET
    memory: UserMemory | Maybe = UNSET
    pod: Pod | Maybe = UNSET


class InstanceMemory(Shape, frozen=True, kw_only=True):
    used: Bytes
    total: Bytes


class Instance(Shape, frozen=True, kw_only=True):
    uuid: Annotated[str, Meta(description="absent while it is half-made")] | Maybe = UNSET
    profile: str
    start: FirstSlice
    size: Slices
    gi: int
    ci: int | Maybe = UNSET
    in_use: bool
    users: list[User]
    users_unknown: Annotated[str, Meta(description="why it counts as in use")] | Maybe = UNSET
    memory: InstanceMemory | Maybe = UNSET
    compute_mode: ComputeMode | Maybe = UNSET


class GpuMemory(Shape, frozen=True, kw_only=True):
    total: Bytes


class Nvlink(Shape, frozen=True, kw_only=True):
    total: Annotated[int, Meta(description="links of the card")]
    active: Annotated[int, Meta(description="those that are up")]
    peers: Annotated[
        dict[str, int], Meta(description="how many lead to a GPU, by UUID, or to nvswitch")
    ]


class Free(Shape, frozen=True, kw_only=True):
    slots: list[int]
    creatable: dict[str, int]


class Gpu(Shape, frozen=True, kw_only=True):
    index: int
    uuid: Annotated[str, Meta(description="absent while it never answered")] | Maybe = UNSET
    name: str | Maybe = UNSET
    pci_bus_id: str | Maybe = UNSET
    memory: GpuMemory | Maybe = UNSET
    mig: ModeState | Maybe = UNSET
    compute_mode: ComputeMode | Maybe = UNSET
    time_slice: TimeSlice | Maybe = UNSET
    numa_node: Annotated[int, Meta(description="whose processors are nearest")] | Maybe = UNSET
    nvlink: Nvlink | Maybe = UNSET
    slots: Annotated[int, Meta(description="memory slices of the card")]
    instances: list[Instance]
    users: list[User]
    free: Free | Maybe = UNSET
    health: Health


class Status(Shape, frozen=True, kw_only=True):
    node: str
    headline: Headline
    phase: Phase
    message: Annotated[str, Meta(description="the state in one sentence")]
    source: str
    digest: Annotated[str, Meta(description="of the plan in force")] | Maybe = UNSET
    configuration: str | Maybe = UNSET
    rejected: Refused | Maybe = UNSET
    observed_at: Time | Maybe = UNSET
    driver_version: str | Maybe = UNSET
    cluster: Cluster | Maybe = UNSET
    health: Annotated[Health, Meta(description="of the node itself")] | Maybe = UNSET
    gpus: list[Gpu]
    mps: list[MpsDaemon]
    problems: list[Problem]


# --- plans ----------------------------------------------------------------------------------------


class Place(Shape, frozen=True, kw_only=True):
    profile: str
    start: int
    size: int
    uuid: str | Maybe = UNSET
    in_use: bool | Maybe = UNSET
    mps: bool | Maybe = UNSET


class Step(Shape, frozen=True, kw_only=True):
    kind: Annotated[
        str,
        one_of(
            *("setMigMode", "resetGpu", "stopMps", "destroyInstance"),
            *("createInstance", "startMps", "setTimeSlice", "setComputeMode"),
        ),
    ]
    scope: Annotated[str, one_of("gpuInstance", "computeInstance")] | Maybe = UNSET
    device: (
        Annotated[
            str, Meta(description="whose MPS or compute mode; absent while it is not made yet")
        ]
        | Maybe
    ) = UNSET
    profile: str | Maybe = UNSET
    start: int | Maybe = UNSET
    size: int | Maybe = UNSET
    mode: Annotated[StepMode, Meta(description="MIG mode, or compute mode")] | Maybe = UNSET
    time_slice: TimeSlice | Maybe = UNSET
    gi: int | Maybe = UNSET
    ci: int | Maybe = UNSET
    uuid: str | Maybe = UNSET
    uuids: list[str] | Maybe = UNSET
    compute: list[int] | Maybe = UNSET
    user: MpsUser | Maybe = UNSET
    shares: dict[str, MpsShare] | Maybe = UNSET
    runs: (
        Annotated[bool, Meta(description="the daemon is there and only gets other limits")] | Maybe
    ) = UNSET
    reason: str
    result: StepResult | Maybe = UNSET
    seconds: float | Maybe = UNSET
    message: str | Maybe = UNSET


class ModeChange(Shape, frozen=True, kw_only=True):
    before: ModeState | None
    after: ModeState | None


class GpuPlan(Shape, frozen=True, kw_only=True):
    index: int
    uuid: str | Maybe = UNSET
    name: str | Maybe = UNSET
    verdict: Verdict
    mig: ModeChange | Maybe = UNSET
    before: list[Place]
    after: list[Place]
    steps: list[Step]
    restored: list[Step] | Maybe = UNSET


class Plan(Shape, frozen=True, kw_only=True):
    verdict: Verdict
    digest: str | Maybe = UNSET
    source: str
    gpus: list[GpuPlan]
    problems: list[Problem]


# --- the rest of the API --------------------------------------------------------------------------


class Event(Shape, frozen=True, kw_only=True):
    id: int
    time: Time
    type: str
    message: str
    gpu: str | Maybe = UNSET


class Alive(Shape, frozen=True, kw_only=True):
    status: Literal["ok", "unavailable"]
    reasons: list[str] | Maybe = UNSET


class Error(Shape, frozen=True, kw_only=True):
    error: str
    remedy: str | Maybe = UNSET


ANSWERS = (Status, Plan, Mps, MpsDone, Event, Alive, Error)
