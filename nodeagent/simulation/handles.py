"""Handles: opaque tokens for GPUs, instances, MIG devices and what a process allocates.

A token is never used twice. It goes stale with what it stands for, with the driver and with the
last shutdown; then the library refuses it. A token that was never given out is a misuse, and so is
one of an instance that was not used while a thousand others were: those are forgotten.
"""

import threading
from collections import OrderedDict
from enum import StrEnum
from typing import NamedTuple

from nodeagent.simulation.codes import SimulatorMisuse

# Above 32 bits, so that a token that passed through a C int is recognised as cut off.
_FIRST = 0x7E57_0A11_0000
_STEP = 0x10
_MAX_HANDLES = 1024  # that are remembered; a node has some hundred at a time


class Kind(StrEnum):
    """What a handle stands for. A MIG device and a GPU have the same type in C."""

    GPU = "GPU"
    MIG_DEVICE = "MIG device"
    GPU_INSTANCE = "GPU instance"
    COMPUTE_INSTANCE = "compute instance"
    EVENT_SET = "event set"
    SYSTEM_EVENT_SET = "system event set"
    GPM_SAMPLE = "GPM sample"


_COME_AND_GO = frozenset({Kind.MIG_DEVICE, Kind.GPU_INSTANCE, Kind.COMPUTE_INSTANCE})


class Handle(NamedTuple):
    """What a token stands for; the numbers that its kind does not need are -1.

    `serial` is that of the GPU instance, of the compute instance for what is a compute instance,
    and the running number of an event set or a GPM sample.
    """

    kind: Kind
    session: int
    gpu: int = -1
    serial: int = -1

    def __str__(self) -> str:
        gpu = f" on GPU {self.gpu}" if self.kind is not Kind.GPU else f" {self.gpu}"
        return f"<{self.kind.value}{gpu if self.gpu >= 0 else ''}>"


class Handles:
    """All tokens that were given out. Safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = _FIRST
        self._handles: OrderedDict[int, Handle] = OrderedDict()  # by token, the latest used last
        self._tokens: dict[Handle, int] = {}

    def give(self, handle: Handle) -> int:
        """A token; the same one as before for the same thing in the same session."""
        with self._lock:
            token = self._tokens.get(handle)
            if token is None:
                token = self._tokens[handle] = self._next
                self._next += _STEP
                self._handles[token] = handle
                if len(self._handles) > _MAX_HANDLES:
                    self._forget_oldest()
            else:
                self._handles.move_to_end(token)  # returned again, so it will be used
            return token

    def _forget_oldest(self) -> None:
        """Forget the least recently used token of an instance, or of a GPU of a past session.
        Samples and event sets stay.
        """
        newest = next(reversed(self._handles.values())).session
        for token, handle in self._handles.items():
            past = handle.kind is Kind.GPU and handle.session < newest
            if handle.kind in _COME_AND_GO or past:
                del self._handles[token], self._tokens[handle]
                return

    def take(self, token: int, where: str) -> Handle:
        """What a token stands for; raises SimulatorMisuse."""
        with self._lock:
            handle = self._handles.get(token)
            if handle is None:
                cut = any(token == known & 0xFFFF_FFFF for known in self._handles)
                why = "cut off to 32 bits" if cut else "never given out"
                raise SimulatorMisuse(f"{where}: the handle {token:#x} was {why}")
            self._handles.move_to_end(token)
            return handle
