"""What a simulated node remembers, as the document that its state file holds.

Members that an earlier version did not write have defaults. A document that does not fit raises
msgspec.ValidationError, one with a wrong switch UsageError.
"""

from enum import StrEnum
from typing import Annotated, Any

import msgspec

from nodeagent.simulation.faults import Fault
from nodeagent.simulation.switches import Switches

ONLY_PARENT = 0xFFFFFFFF  # NVML's "no instance" in process lists and events
WHOLE = 0  # stands where an instance's serial would; serials begin at 1

Number = int | float
Natural = Annotated[int, msgspec.Meta(ge=0)]


class ProcessKind(StrEnum):
    """Which of NVML's process lists shows a process."""

    COMPUTE = "compute"
    GRAPHICS = "graphics"
    MPS = "mps"


class Instance(msgspec.Struct):
    """`start` and `size` in memory slices of the card, or in compute slots of the GPU instance.

    `serial` distinguishes it from every other instance that ever was on the node.
    """

    id: Natural
    profile: Natural
    start: Natural
    size: Natural
    serial: Natural

    @property
    def mask(self) -> int:
        return ((1 << self.size) - 1) << self.start


class ComputeInstance(Instance):
    """`compute_mode` is NVML's number."""

    compute_mode: Natural = 0


class GpuInstance(Instance):
    """`settling`: its last compute instance has just gone."""

    compute: list[ComputeInstance] = msgspec.field(default_factory=list)
    settling: bool = False


class Process(msgspec.Struct, omit_defaults=True):
    """Someone who uses a device.

    `instance` and `compute` are ids, both None for the whole GPU. `memory` in bytes, None when
    the driver does not know. `started` is set for a real process of this machine (clock ticks
    since boot, as in /proc): its end frees the device. `limit`: bytes that its MPS server lets it
    have.
    """

    pid: Natural
    command: str
    kind: ProcessKind
    memory: Natural | None = None
    instance: Natural | None = None
    compute: Natural | None = None
    started: Natural | None = None
    limit: Natural | None = None


class Growing(msgspec.Struct, array_like=True):
    """A quantity that grows by `rate` a second since `since`, when it was `value`."""

    value: float
    since: float
    rate: float = 0.0

    def at(self, now: float) -> float:
        return self.value + self.rate * max(0.0, now - self.since)


class Activity(msgspec.Struct):
    """What a card is doing and suffering: set from outside, and grown since.

    `figures`: what sensors were set to, by name. `loads`: busy share by instance serial.
    `growing`: integrals over time by name. Names of an instance's figures end in `@serial`.
    """

    figures: dict[str, Number] = msgspec.field(default_factory=dict)
    loads: dict[int, float] = msgspec.field(default_factory=dict)
    growing: dict[str, Growing] = msgspec.field(default_factory=dict)

    def forget_instance(self, serial: int) -> None:
        """It is gone, and nothing of it comes back."""
        self.loads.pop(serial, None)
        end = f"@{serial}"
        self.figures = {k: v for k, v in self.figures.items() if not k.endswith(end)}
        self.growing = {k: v for k, v in self.growing.items() if not k.endswith(end)}


def of_instance(name: str, serial: int) -> str:
    """The name of an instance's own figure."""
    return f"{name}@{serial}" if serial else name


class CardState(msgspec.Struct):
    """One GPU. `compute_mode` is NVML's number, `time_slice` nvidia-smi's (0 to 3, default to
    long). `failure` is the code every call on it answers, 0 while it works.
    """

    board: str
    mirrored: bool = False
    mig: bool = False
    pending: bool = False
    persistence: bool = True
    compute_mode: Natural = 0
    time_slice: Natural = 0
    failure: Natural = 0
    instances: list[GpuInstance] = msgspec.field(default_factory=list)
    processes: list[Process] = msgspec.field(default_factory=list)
    activity: Activity = msgspec.field(default_factory=Activity)


class Event(msgspec.Struct, array_like=True):
    """Something the driver reports. `number` grows by one over the life of the node."""

    number: int
    gpu: int
    type: int
    data: int
    instance: int
    compute: int


class NodeState(msgspec.Struct, tag_field="format", tag="nodeagent-simulated-node/1"):
    """`serial`: the last that was given to an instance or a fault. `epoch` grows when the driver
    is loaded anew. `driver_failure`: the code every call answers while the driver is not there.
    `overrides`: the user's own figures, by board.
    """

    gpus: Annotated[list[CardState], msgspec.Meta(min_length=1)]
    serial: int = 0
    epoch: int = 0
    driver_failure: int = 0
    switches: Switches = msgspec.field(default_factory=Switches)
    overrides: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    faults: list[Fault] = msgspec.field(default_factory=list)
    events: list[Event] = msgspec.field(default_factory=list)
