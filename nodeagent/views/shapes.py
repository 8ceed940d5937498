"""What commands and the API answer: each struct is the JSON, and its schema in `/openapi.json`.

Keys are in camelCase, sizes in bytes. A key that has its default is not known and left out. More
keys may be added; those that are there stay.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal

from msgspec import Meta, to_builtins

from nodeagent.plan.plan import StepResult, Verdict
from nodeagent.plan.problems import Problem
from nodeagent.plan.shares import TimeSlice
from nodeagent.plan.users import Pod
from nodeagent.structs import Shape, Struct
from nodeagent.use.advice import Advice

Json = dict[str, Any]


def one_of(*words: str) -> Meta:
    """The values that a text can have."""
    return Meta(extra_json_schema={"enum": list(words)})


Bytes = Annotated[int, Meta(ge=0, description="bytes")]
Time = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
Percent = Annotated[float, Meta(description="percent of the threads")]
Mode = Annotated[str, one_of("enabled", "disabled")]
StepMode = Annotated[
    str,
    one_of("enabled", "disabled", "default", "exclusiveThread", "prohibited", "exclusiveProcess"),
]
RunsAs = Literal["pod", "service", ""]  # the agent, on a cluster's node; "" without a cluster
MpsUser = Annotated[int | Literal["any"], Meta(description="user id, or any")]
FirstSlice = Annotated[int, Meta(description="first memory slice")]
Slices = Annotated[int, Meta(description="memory slices")]
OtherLimits = Annotated[bool, Meta(description="the daemon runs and only gets other limits")]
Respelled = Annotated[
    dict[str, str], Meta(description="profiles as the plan spells them: as the GPU's driver does")
]


def as_json(shape: Struct) -> Json:
    """The value as dictionaries and lists, ready to be written."""
    made: Json = to_builtins(shape)
    return made


class Refused(Shape, frozen=True, kw_only=True):
    # A document that was not accepted.
    digest: str = ""  # absent where the text could not be read
    problems: tuple[Problem, ...]


class ModeState(Shape, frozen=True, kw_only=True):
    current: Mode
    pending: Mode


# --- MPS ------------------------------------------------------------------------------------------


class MpsShare(Shape, frozen=True, kw_only=True):
    count: int | None = None
    memory: Bytes | None = None
    threads: Percent | None = None


class MpsMemory(Shape, frozen=True, kw_only=True):
    used: Bytes | None = None
    limit: Bytes | None = None


# A process that uses a device through MPS. `memory.limit` and `threads` are what it really has,
# `share` and `slot` those of the plan that it was given (`small`, `small-0`).
class MpsClient(Shape, frozen=True, kw_only=True):
    pid: int
    command: str = ""
    script: Annotated[str, Meta(description="the file or module that an interpreter runs")] = ""
    user: int | None = None
    share: str = ""
    slot: str = ""
    memory: MpsMemory | None = None
    threads: Percent | None = None
    pod: Pod | None = None
    container: Annotated[str, Meta(description="short id of a container outside pods")] = ""
    findings: Annotated[tuple[str, ...], Meta(description="what is wrong with it")] = ()

    @property
    def end(self) -> tuple[int, str, str]:
        """What ends it: its pid, or the namespace and name of its pod."""
        return (self.pid, self.pod.namespace, self.pod.name) if self.pod else (self.pid, "", "")


class MpsServer(Shape, frozen=True, kw_only=True):
    pid: int
    user: int | None = None
    status: str  # as the daemon has it: INITIALIZING, ACTIVE, FAULT


class MpsWaiting(Shape, frozen=True, kw_only=True):  # of another user than the server's
    pid: int
    user: int
    command: str = ""


# The control daemon of one device. Where the device lies is added for an answer.
class MpsDaemon(Shape, frozen=True, kw_only=True):
    device: Annotated[str, Meta(description="UUID of a GPU or MIG device")]
    devices: Annotated[
        tuple[str, ...], Meta(description="of several GPUs that it serves, in its clients' order")
    ] = ()
    gpu: Annotated[int, Meta(description="index of the device's GPU")] | None = None
    gpus: Annotated[tuple[int, ...], Meta(description="indices of `devices`")] = ()
    profile: Annotated[str, Meta(description="of a MIG device")] = ""
    start: FirstSlice | None = None
    size: Slices | None = None
    state: Annotated[
        str,
        one_of("Down", "Starting", "Limiting", "Ready", "Draining", "Fault", "Backoff", "Failed"),
    ]
    why: Annotated[str, Meta(description="why it is not Ready")] = ""
    trouble: Annotated[
        str, Meta(description="why it does not answer, or how its server failed")
    ] = ""
    since: Time = ""
    pid: int | None = None
    user: MpsUser | None = None
    restarts: int
    pipe_directory: str = ""
    enforce: Annotated[str, one_of("report", "terminate")] = ""
    shares: dict[str, MpsShare] | None = None
    server: MpsServer | None = None
    clients: tuple[MpsClient, ...]
    waiting: tuple[MpsWaiting, ...] = ()
    last_lines: Annotated[tuple[str, ...], Meta(description="of its log, where it failed")] = ()

    @property
    def serves(self) -> tuple[str, ...]:
        """The UUIDs of all that it serves."""
        return self.devices or (self.device,)

    @property
    def is_ready(self) -> bool:
        return self.state == "Ready"

    @property
    def is_wanted(self) -> bool:
        """Whether anything was ever wanted of it."""
        return self.shares is not None


class Mps(Shape, frozen=True, kw_only=True):
    node: str
    observed_at: Time = ""
    daemons: list[MpsDaemon]


class MpsDone(Shape, frozen=True, kw_only=True):
    device: str
    done: Annotated[str, one_of("restarted", "drained")]
    message: str
    daemon: MpsDaemon


# --- the headline ---------------------------------------------------------------------------------


class HeadlineSeverity(StrEnum):
    """`error`: something does not work. `warning`: something waits or may soon not work."""

    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Headline(Shape, frozen=True):
    """The worst thing about the node: a sentence, and what to do in sentences with commands.

    `gpu` is a UUID, absent where it is of no single GPU. `code` is a problem's code, a cause of
    health in CamelCase, or a phase.
    """

    severity: HeadlineSeverity
    text: str
    remedy: str = ""
    gpu: str = ""
    code: str = ""


class Trouble(Headline, frozen=True):
    evidence: Annotated[str, Meta(description="what was read, with its figures")] = ""
    path: Annotated[str, Meta(description="the place in the plan that it comes from")] = ""


# --- the cluster ----------------------------------------------------------------------------------


class Cluster(Shape, frozen=True, kw_only=True):
    server: Annotated[str, Meta(description="the API server's address")]
    reachable: Annotated[bool, Meta(description="whether the Node can be followed now")]
    registered: Annotated[bool, Meta(description="whether the cluster has a Node of this name")]
    since: Annotated[Time, Meta(description="absent while reachable was never otherwise")] = ""
    problem: Problem | None = None


# --- plans ----------------------------------------------------------------------------------------


class Place(Shape, frozen=True, kw_only=True):
    profile: str
    start: int
    size: int
    uuid: str = ""
    in_use: bool | None = None
    mps: bool | None = None


class Step(Shape, frozen=True, kw_only=True):
    kind: Annotated[
        str,
        one_of(
            *("setMigMode", "resetGpu", "stopMps", "destroyInstance"),
            *("createInstance", "startMps", "setTimeSlice", "setComputeMode"),
        ),
    ]
    scope: Annotated[str, one_of("gpuInstance", "computeInstance")] = ""
    device: Annotated[str, Meta(description="whose MPS or compute mode; absent: not made yet")] = ""
    profile: str = ""
    start: int | None = None
    size: int | None = None
    mode: Annotated[StepMode, Meta(description="MIG mode, or compute mode")] = ""
    time_slice: TimeSlice | None = None
    gi: int | None = None
    ci: int | None = None
    uuid: str = ""
    uuids: list[str] | None = None
    compute: list[int] | None = None
    user: MpsUser | None = None
    shares: dict[str, MpsShare] | None = None
    runs: OtherLimits | None = None
    reason: str
    result: StepResult | None = None
    seconds: float | None = None
    message: str = ""


class ModeChange(Shape, frozen=True, kw_only=True):
    before: ModeState | None
    after: ModeState | None


class OnceFree(Shape, frozen=True, kw_only=True):
    mig: Annotated[ModeState | None, Meta(description="afterwards")] = None
    after: list[Place]
    steps: list[Step]


WhenFree = Annotated[
    OnceFree, Meta(description="of a blocked GPU: what is done when those in its way are gone")
]


class GpuPlan(Shape, frozen=True, kw_only=True):
    index: int
    uuid: str = ""
    name: str = ""
    verdict: Verdict
    mig: ModeChange | None = None
    respelled: Respelled | None = None
    before: list[Place]
    after: list[Place]
    steps: list[Step]
    once_free: WhenFree | None = None
    restored: list[Step] | None = None


class Plan(Shape, frozen=True, kw_only=True):
    verdict: Verdict
    digest: str = ""
    source: str
    gpus: list[GpuPlan]
    problems: list[Problem]


# --- the rest of the API --------------------------------------------------------------------------


class Event(Shape, frozen=True, kw_only=True):
    # One decision of the agent, or what it follows from. `id` grows by one from event to event.
    # What happened `count` times is kept once, as it was last.
    id: int
    time: Time
    type: str
    severity: Annotated[str, one_of("info", "warning")]
    routine: Annotated[bool, Meta(description="as it should be, and one of dozens")] = False
    message: str
    reason: Annotated[str, Meta(description="why, where the message does not say that")] = ""
    gpu: Annotated[str, Meta(description="UUID; absent where no single GPU is meant")] = ""
    device: Annotated[str, Meta(description="UUID of a GPU or MIG device with MPS")] = ""
    claim: Annotated[str, Meta(description="namespace/name")] = ""
    before: Annotated[str, Meta(description="a changed GPU's layout before")] = ""
    after: Annotated[str, Meta(description="and its layout since")] = ""
    facts: Annotated[
        dict[str, Any] | None,
        Meta(description="what belongs to it: seconds, attempt, pause (seconds), digest, ..."),
    ] = None
    count: Annotated[int, Meta(description="how often it happened; absent: once")] = 1
    since: Annotated[Time, Meta(description="when it happened first, with a count")] = ""
    first: Annotated[int, Meta(description="the id that it had then")] = 0


# What a GPU did: a number for each column of time, the oldest first; null where nothing was read.
class GpuSeries(Shape, frozen=True, kw_only=True):
    utilization: Annotated[list[int | None], Meta(description="percent")]
    memory_used: Annotated[list[int | None], Meta(description="bytes")]
    temperature: Annotated[list[int | None], Meta(description="degrees Celsius")]
    power: Annotated[list[int | None], Meta(description="watts")]


class History(Shape, frozen=True, kw_only=True):
    interval: Annotated[float, Meta(description="seconds of a column")]
    end: Annotated[Time, Meta(description="of the last column, which still grows")]
    gpus: Annotated[dict[str, GpuSeries], Meta(description="by UUID, all equally long")]


class Advised(Shape, frozen=True, kw_only=True):
    node: str
    advice: Annotated[tuple[Advice, ...], Meta(description="those that free most first")]


class Alive(Shape, frozen=True, kw_only=True):
    status: Literal["ok", "unavailable"]
    reasons: list[str] | None = None


class Error(Shape, frozen=True, kw_only=True):
    error: str
    remedy: str = ""
