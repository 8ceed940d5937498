"""What a simulated node remembers, as plain data that a file can hold.

`from_json` functions raise KeyError, TypeError or ValueError on anything that does not fit;
the state file turns those into a sentence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from nodeagent.simulation.activity import Activity

Json = dict[str, Any]

ONLY_PARENT = 0xFFFFFFFF  # NVML's "no instance" in process lists and events


class ProcessKind(StrEnum):
    """Which of NVML's process lists shows a process."""

    COMPUTE = "compute"
    GRAPHICS = "graphics"
    MPS = "mps"


@dataclass(slots=True)
class ComputeInstance:
    """`serial` distinguishes it from every other instance that ever was on the node."""

    id: int
    profile: int
    start: int
    size: int
    serial: int
    compute_mode: int = 0

    def to_json(self) -> Json:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, stored: Json) -> ComputeInstance:
        return cls(*(_number(stored, name) for name in cls.__slots__))


@dataclass(slots=True)
class GpuInstance:
    """`settling`: its last compute instance has just gone."""

    id: int
    profile: int
    start: int
    size: int
    serial: int
    compute: list[ComputeInstance] = field(default_factory=list)
    settling: bool = False

    @property
    def mask(self) -> int:
        return ((1 << self.size) - 1) << self.start

    def to_json(self) -> Json:
        stored: Json = {
            "id": self.id,
            "profile": self.profile,
            "start": self.start,
            "size": self.size,
            "serial": self.serial,
            "compute": [instance.to_json() for instance in self.compute],
        }
        if self.settling:
            stored["settling"] = True
        return stored

    @classmethod
    def from_json(cls, stored: Json) -> GpuInstance:
        return cls(
            id=_number(stored, "id"),
            profile=_number(stored, "profile"),
            start=_number(stored, "start"),
            size=_number(stored, "size"),
            serial=_number(stored, "serial"),
            compute=[ComputeInstance.from_json(c) for c in list_of(stored, "compute")],
            settling=bool(stored.get("settling", False)),
        )


@dataclass(slots=True)
class Process:
    """Someone who uses a device.

    `instance` and `compute` are ids, both None for the whole GPU. `memory` in bytes, None when
    the driver does not know. `started` is set for a real process of this machine (clock ticks
    since boot, as in /proc): its end frees the device.
    """

    pid: int
    command: str
    memory: int | None
    kind: ProcessKind
    instance: int | None = None
    compute: int | None = None
    started: int | None = None

    def to_json(self) -> Json:
        stored: Json = {"pid": self.pid, "command": self.command, "kind": self.kind.value}
        for name in ("memory", "instance", "compute", "started"):
            if (value := getattr(self, name)) is not None:
                stored[name] = value
        return stored

    @classmethod
    def from_json(cls, stored: Json) -> Process:
        optional = {
            name: _number(stored, name) if name in stored else None
            for name in ("memory", "instance", "compute", "started")
        }
        return cls(
            pid=_number(stored, "pid"),
            command=str(stored["command"]),
            kind=ProcessKind(stored["kind"]),
            **optional,
        )


@dataclass(slots=True)
class CardState:
    """One GPU. `compute_mode` is NVML's number, `time_slice` nvidia-smi's (0 to 3, default to
    long). `failure` is the code every call on it answers, 0 while it works.
    """

    board: str
    mirrored: bool = False
    mig: bool = False
    pending: bool = False
    persistence: bool = True
    accounting: bool = False
    compute_mode: int = 0
    time_slice: int = 0
    failure: int = 0
    instances: list[GpuInstance] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    activity: Activity = field(default_factory=Activity)

    def to_json(self) -> Json:
        stored: Json = {
            "board": self.board,
            "mirrored": self.mirrored,
            "mig": self.mig,
            "pending": self.pending,
            "persistence": self.persistence,
            "accounting": self.accounting,
            "compute_mode": self.compute_mode,
            "time_slice": self.time_slice,
            "failure": self.failure,
            "instances": [instance.to_json() for instance in self.instances],
            "processes": [process.to_json() for process in self.processes],
        }
        if self.activity:
            stored["activity"] = self.activity.to_json()
        return stored

    @classmethod
    def from_json(cls, stored: Json) -> CardState:
        return cls(
            board=str(stored["board"]),
            mirrored=_flag(stored, "mirrored"),
            mig=_flag(stored, "mig"),
            pending=_flag(stored, "pending"),
            persistence=_flag(stored, "persistence"),
            accounting=_flag(stored, "accounting"),
            compute_mode=_number(stored, "compute_mode"),
            time_slice=_number(stored, "time_slice") if "time_slice" in stored else 0,
            failure=_number(stored, "failure"),
            instances=[GpuInstance.from_json(i) for i in list_of(stored, "instances")],
            processes=[Process.from_json(p) for p in list_of(stored, "processes")],
            activity=Activity.from_json(stored["activity"]) if "activity" in stored else Activity(),
        )


@dataclass(slots=True)
class Event:
    """Something the driver reports. `number` grows by one over the life of the node."""

    number: int
    gpu: int
    type: int
    data: int = 0
    instance: int = ONLY_PARENT
    compute: int = ONLY_PARENT

    def to_json(self) -> list[int]:
        return [self.number, self.gpu, self.type, self.data, self.instance, self.compute]

    @classmethod
    def from_json(cls, stored: list[int]) -> Event:
        if len(stored) != len(cls.__slots__) or not all(type(n) is int for n in stored):
            raise ValueError(f"an event cannot be {stored!r}")
        return cls(*stored)


def _number(stored: Json, name: str) -> int:
    value = stored[name]
    if type(value) is not int or value < 0:
        raise TypeError(f"{name} cannot be {value!r}")
    return value


def _flag(stored: Json, name: str) -> bool:
    value = stored[name]
    if not isinstance(value, bool):
        raise TypeError(f"{name} cannot be {value!r}")
    return value


def list_of(stored: Json, name: str, *, least: int = 0) -> list[Json]:
    """A member that has to be a list of objects, of a `least` length."""
    value = stored[name]
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise TypeError(f"{name} is not a list of objects")
    if len(value) < least:
        raise ValueError(f"{name} has {len(value)} items")
    return value
