"""What `GET /v1/status` and `nodeagent status` answer."""

from typing import Annotated

from msgspec import Meta

from nodeagent.health.findings import Action, Severity
from nodeagent.plan.observed import Memory
from nodeagent.plan.problems import Problem
from nodeagent.plan.shares import ComputeMode, TimeSlice
from nodeagent.plan.users import Pod
from nodeagent.structs import Shape
from nodeagent.views import shapes
from nodeagent.views.claims import Claim, FreeShare
from nodeagent.views.node_state import Phase

Reasons = Annotated[
    list[Problem],
    Meta(description="why GPUs offer less to claims than they could; absent: they do not"),
]
Utilization = Annotated[float, Meta(description="percent of the time in which it worked")]

# --- health ---------------------------------------------------------------------------------------


class HealthFinding(Shape, frozen=True, kw_only=True):
    check: Annotated[str, Meta(description="what was looked at")]
    cause: str
    severity: Severity
    message: Annotated[str, Meta(description="the cause in words")]
    evidence: Annotated[str, Meta(description="what was read, with its figures")]
    suggested_action: Action
    advice: str
    since: shapes.Time = ""
    last_seen: shapes.Time = ""
    count: Annotated[int, Meta(description="how often it was seen")] | None = None
    xid: int | None = None
    links: Annotated[list[int], Meta(description="the NVLinks concerned")] | None = None
    gi: Annotated[int, Meta(description="the GPU instance it hit")] | None = None
    ci: Annotated[int, Meta(description="the compute instance it hit")] | None = None
    start: shapes.FirstSlice | None = None
    size: shapes.Slices | None = None
    pid: int | None = None
    pods: Annotated[list[Pod], Meta(description="who used the place then")] | None = None


class Health(Shape, frozen=True, kw_only=True):
    status: Annotated[Severity, Meta(description="of its worst finding")]
    findings: list[HealthFinding]


# --- the status -----------------------------------------------------------------------------------


class UserMemory(Shape, frozen=True, kw_only=True):
    used: shapes.Bytes


class User(Shape, frozen=True, kw_only=True):
    source: Annotated[str, shapes.one_of("process", "mps", "capability", "kubelet")]
    pid: int | None = None
    command: str = ""
    script: Annotated[str, Meta(description="the file or module that an interpreter runs")] = ""
    user: Annotated[int, Meta(description="user id")] | None = None
    memory: UserMemory | None = None
    pod: Pod | None = None


class Instance(Shape, frozen=True, kw_only=True):
    uuid: Annotated[str, Meta(description="absent while it is half-made")] = ""
    profile: str
    start: shapes.FirstSlice
    size: shapes.Slices
    gi: int
    ci: int | None = None
    in_use: bool
    users: list[User]
    users_unknown: Annotated[str, Meta(description="why it counts as in use")] = ""
    memory: Memory | None = None
    compute_mode: ComputeMode | None = None
    utilization: Utilization | None = None


class GpuMemory(Shape, frozen=True, kw_only=True):
    total: shapes.Bytes
    used: shapes.Bytes | None = None


class Nvlink(Shape, frozen=True, kw_only=True):
    total: Annotated[int, Meta(description="links of the card")]
    active: Annotated[int, Meta(description="those that are up")]
    peers: Annotated[
        dict[str, int], Meta(description="how many lead to a GPU, by UUID, or to nvswitch")
    ]


class Free(Shape, frozen=True, kw_only=True):
    slots: list[int]
    creatable: dict[str, int]
    share: FreeShare | None = None


class Gpu(Shape, frozen=True, kw_only=True):
    index: int
    uuid: Annotated[str, Meta(description="absent while it never answered")] = ""
    name: str = ""
    pci_bus_id: str = ""
    memory: GpuMemory | None = None
    mig: shapes.ModeState | None = None
    compute_mode: ComputeMode | None = None
    time_slice: TimeSlice | None = None
    numa_node: Annotated[int, Meta(description="whose processors are nearest")] | None = None
    nvlink: Nvlink | None = None
    utilization: Utilization | None = None
    temperature: Annotated[float, Meta(description="degrees Celsius")] | None = None
    power: Annotated[float, Meta(description="watts")] | None = None
    slowdown_temperature: Annotated[float, Meta(description="where it slows down")] | None = None
    power_limit: Annotated[float, Meta(description="watts, the one in force")] | None = None
    sm_clock: Annotated[float, Meta(description="MHz")] | None = None
    memory_clock: Annotated[float, Meta(description="MHz")] | None = None
    clock_reasons: Annotated[list[str], Meta(description="why clocks are lower")] | None = None
    ecc_corrected: Annotated[int, Meta(description="since the driver's load")] | None = None
    ecc_uncorrected: Annotated[int, Meta(description="since the driver's load")] | None = None
    xids: Annotated[dict[str, int], Meta(description="how often, by number")] | None = None
    slots: Annotated[int, Meta(description="memory slices of the card")]
    instances: list[Instance]
    users: list[User]
    users_unknown: Annotated[str, Meta(description="why it counts as in use")] = ""
    free: Free | None = None
    health: Health


class Status(Shape, frozen=True, kw_only=True):
    node: str
    version: Annotated[str, Meta(description="the agent's")]
    started_at: Annotated[shapes.Time, Meta(description="when the agent started")] = ""
    headline: shapes.Headline
    troubles: Annotated[
        list[shapes.Trouble], Meta(description="all that needs a hand, the worst first")
    ]
    phase: Phase
    message: Annotated[str, Meta(description="the state in one sentence")]
    source: str
    digest: Annotated[str, Meta(description="of the plan in force")] = ""
    configuration: str | None = None
    rejected: shapes.Refused | None = None
    observed_at: shapes.Time = ""
    driver_version: str = ""
    cluster: shapes.Cluster | None = None
    health: Annotated[Health, Meta(description="of the node itself")] | None = None
    gpus: list[Gpu]
    mps: list[shapes.MpsDaemon]
    claims: Annotated[list[Claim], Meta(description="absent where none are served")] | None = None
    less_offered: Reasons | None = None
    problems: list[Problem]
