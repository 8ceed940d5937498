"""Whom a device's compute mode lets have a context, as CUDA refuses the others.

The mode decides only when a process comes: what is there stays, whatever it is set to. Programs
that draw are not concerned.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from nodeagent.errors import UsageError
from nodeagent.simulation.card import Card
from nodeagent.simulation.state import Process, ProcessKind

MPS_SERVER = "nvidia-cuda-mps-server"
_BUSY = "CUDA would say that all CUDA-capable devices are busy or unavailable"


class ComputeMode(IntEnum):
    """`nvmlComputeMode_t`."""

    DEFAULT = 0
    EXCLUSIVE_THREAD = 1
    PROHIBITED = 2
    EXCLUSIVE_PROCESS = 3


def mode_of(card: Card, instance: int | None, compute: int | None) -> ComputeMode:
    """The mode of a GPU or of a MIG device, by ids."""
    for there, part in card.mig_devices():
        if (there.id, part.id) == (instance, compute):
            return ComputeMode(part.compute_mode)
    return ComputeMode(card.state.compute_mode)


def admit(mode: ComputeMode, who: Process, there: Sequence[Process]) -> None:
    """Raise UsageError when the mode keeps `who` out of a device with those who are `there`.

    To a device that is exclusive, all clients of MPS are one process: their server.
    """
    if who.kind is ProcessKind.GRAPHICS or mode is ComputeMode.DEFAULT:
        return
    if mode is ComputeMode.PROHIBITED:
        raise UsageError(
            f"the device's compute mode is PROHIBITED: {_BUSY}",
            remedy="set another compute mode, or take another device",
        )
    of_mps = _is_of_mps(who)
    others = [p for p in there if p.kind is not ProcessKind.GRAPHICS and p.pid != who.pid]
    in_the_way = [p for p in others if not (of_mps and _is_of_mps(p))]
    if in_the_way:
        holder = in_the_way[0]
        raise UsageError(
            f"the device's compute mode is EXCLUSIVE_PROCESS, and process {holder.pid} "
            f"({holder.command}) has it: {_BUSY}",
            remedy="come as a client of its MPS server" if _is_of_mps(holder) else "end it first",
        )


def _is_of_mps(process: Process) -> bool:
    return process.kind is ProcessKind.MPS or process.command == MPS_SERVER
