"""Handles: opaque tokens for GPUs, instances, MIG devices and event sets.

A token is never used twice. It goes stale with what it stands for, with the driver and with the
last shutdown; then the library refuses it. A token that was never given out is a misuse, and so is
one of an instance that was not used while a thousand others were: those are forgotten.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum

from nodeagent.simulation.codes import SimulatorMisuse

# Above 32 bits, so that a token that passed through a C int is recognised as cut off.
_FIRST = 0x7E57_0A11_0000
_STEP = 0x10
_MOST = 1024  # that are remembered; a node has some hundred at a time


class Kind(Enum):
    """What a handle stands for. A MIG device and a GPU have the same type in C."""

    GPU = "GPU"
    MIG_DEVICE = "MIG device"
    GPU_INSTANCE = "GPU instance"
    COMPUTE_INSTANCE = "compute instance"
    EVENT_SET = "event set"
    SYSTEM_EVENT_SET = "system event set"
    GPM_SAMPLE = "GPM sample"


_COME_AND_GO = frozenset({Kind.MIG_DEVICE, Kind.GPU_INSTANCE, Kind.COMPUTE_INSTANCE})


@dataclass(frozen=True, slots=True)
class Handle:
    """What a token stands for; the numbers that its kind does not need are -1.

    `serial` is that of the GPU instance, of the compute instance for what is a compute instance,
    and the running number of an event set or a GPM sample.
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
    """All tokens that were given out. Safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = _FIRST
        self._by_token: OrderedDict[int, Handle] = OrderedDict()
        self._by_place: dict[tuple[Kind, int, int, int, int], Handle] = {}

    def give(
        self, kind: Kind, session: int, gpu: int = -1, instance: int = -1, serial: int = -1
    ) -> int:
        """A token; the same one as before for the same thing in the same session."""
        key = (kind, session, gpu, instance, serial)
        with self._lock:
            handle = self._by_place.get(key)
            if handle is None:
                handle = Handle(self._next, kind, session, gpu, instance, serial)
                self._next += _STEP
                self._by_place[key] = self._by_token[handle.token] = handle
                if len(self._by_token) > _MOST:
                    self._forget_oldest()
            else:
                self._by_token.move_to_end(handle.token)  # returned again, so it will be used
            return handle.token

    def _forget_oldest(self) -> None:
        """Forget the least recently used token of an instance, or of a GPU of a past session.
        Samples and event sets stay until their caller frees them.
        """
        newest = next(reversed(self._by_token.values())).session
        for token, handle in self._by_token.items():
            past = handle.kind is Kind.GPU and handle.session < newest
            if handle.kind in _COME_AND_GO or past:
                del self._by_token[token]
                del self._by_place[
                    handle.kind, handle.session, handle.gpu, handle.instance, handle.serial
                ]
                return

    def take(self, token: int, where: str) -> Handle:
        """What a token stands for; raises SimulatorMisuse."""
        with self._lock:
            handle = self._by_token.get(token)
            if handle is None:
                cut = any(token == known & 0xFFFF_FFFF for known in self._by_token)
                why = "cut off to 32 bits" if cut else "never given out"
                raise SimulatorMisuse(f"{where}: the handle {token:#x} was {why}")
            self._by_token.move_to_end(token)
            return handle

    def __len__(self) -> int:
        return len(self._by_token)
