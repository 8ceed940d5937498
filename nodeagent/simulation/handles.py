"""Handles: opaque tokens for GPUs, instances, MIG devices and event sets.

A token is never used twice. It goes stale with what it stands for, with the driver and with the
last shutdown; then the library refuses it. A token that was never given out is a misuse.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from nodeagent.simulation.misuse import SimulatorMisuse

# Above 32 bits, so that a token that passed through a C int is recognised as cut off.
_FIRST = 0x7E57_0A11_0000
_STEP = 0x10


class Kind(Enum):
    """What a handle stands for. A MIG device and a GPU have the same type in C."""

    GPU = "GPU"
    MIG_DEVICE = "MIG device"
    GPU_INSTANCE = "GPU instance"
    COMPUTE_INSTANCE = "compute instance"
    EVENT_SET = "event set"


@dataclass(frozen=True, slots=True)
class Handle:
    """What a token stands for; the numbers that its kind does not need are -1.

    `serial` is that of the GPU instance, of the compute instance for what is a compute instance,
    and the running number of an event set.
    """

    token: int
    kind: Kind
    session: int
    gpu: int = -1
    instance: int = -1
    serial: int = -1

    def __str__(self) -> str:
        gpu = f" on GPU {self.gpu}" if self.kind is not Kind.GPU else f" {self.gpu}"
        return f"<{self.kind.value}{gpu if self.gpu >= 0 else ''}>"


class Handles:
    """All tokens that were given out. The library's lock guards it."""

    def __init__(self) -> None:
        self._next = _FIRST
        self._by_token: dict[int, Handle] = {}
        self._by_place: dict[tuple[Kind, int, int, int, int], Handle] = {}

    def give(
        self, kind: Kind, session: int, gpu: int = -1, instance: int = -1, serial: int = -1
    ) -> int:
        """A token; the same one as before for the same thing in the same session."""
        key = (kind, session, gpu, instance, serial)
        handle = self._by_place.get(key)
        if handle is None:
            handle = Handle(self._next, kind, session, gpu, instance, serial)
            self._next += _STEP
            self._by_place[key] = self._by_token[handle.token] = handle
        return handle.token

    def take(self, token: int, where: str) -> Handle:
        """What a token stands for; raises SimulatorMisuse."""
        handle = self._by_token.get(token)
        if handle is None:
            cut = any(token == known & 0xFFFF_FFFF for known in self._by_token)
            why = "cut off to 32 bits" if cut else "never given out"
            raise SimulatorMisuse(f"{where}: the handle {token:#x} was {why}")
        return handle
