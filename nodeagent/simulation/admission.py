"""Which processes a simulated device admits: by its compute mode, as CUDA does, and its memory.

The compute mode decides only when a process comes: what is there stays, whatever it is set to.
Graphics processes are exempt from it.
"""

from enum import IntEnum

from nodeagent.errors import UsageError
from nodeagent.simulation.card import MIB, Card
from nodeagent.simulation.places import Place
from nodeagent.simulation.state import GpuInstance, Process, ProcessKind

MPS_SERVER = "nvidia-cuda-mps-server"
_BUSY = "CUDA would say that all CUDA-capable devices are busy or unavailable"


class ComputeMode(IntEnum):
    """`nvmlComputeMode_t`."""

    DEFAULT = 0
    EXCLUSIVE_THREAD = 1
    PROHIBITED = 2
    EXCLUSIVE_PROCESS = 3


def admit(process: Process, place: Place, named: str | int) -> None:
    """Raise UsageError where the device refuses the process or has no room; `named` is its name as
    the caller gave it.
    """
    card, instance, compute = place
    present = card.processes(instance, compute)
    if any(p.pid == process.pid and p.instance == instance for p in present):
        raise UsageError(f"process {process.pid} is on {named} already")
    mode = card.state.compute_mode
    part = None if instance is None else card.instance(instance)
    if part is not None and compute is not None:
        mode = card.compute_instance(part, compute).compute_mode
    _admit_by_mode(ComputeMode(mode), process, present)
    if process.memory is not None:
        require_room(process.memory, process, place, named)


def require_room(memory: int, process: Process, place: Place, named: str | int) -> None:
    """Raise UsageError where the process cannot have so many bytes in all: the device has not so
    much left, or its MPS server gives it less.
    """
    card, instance, _ = place
    total, used = memory_of(card, None if instance is None else card.instance(instance))
    free = total - used + sum(process.memory or 0 for p in card.state.processes if p is process)
    if process.limit is not None:
        free = min(free, process.limit)
    if not 0 <= memory <= free:
        raise UsageError(f"{named} has {free // MIB} MiB free and not {memory // MIB} MiB")


def memory_of(card: Card, instance: GpuInstance | None = None) -> tuple[int, int]:
    """Bytes (total, used) of a GPU instance, or of the card without what it reserves."""
    state, total = card.state, card.board.memory_mib
    parts = state.instances if instance is None else [instance]
    if instance is not None:
        total = card.profile(instance.profile).memory_mib
    # Seen idle: 37 MiB on a 3g and 49 MiB on a 4g of an A100; 11 to 64 MiB elsewhere.
    idle = sum(12 * card.profile(i.profile).slices + 1 for i in parts if i.compute)
    present = [p for p in state.processes if instance is None or p.instance == instance.id]
    return total * MIB, idle * MIB + sum(p.memory or 0 for p in present)


def _admit_by_mode(mode: ComputeMode, new: Process, present: list[Process]) -> None:
    """An exclusive device takes all MPS clients for one process: their server."""
    if new.kind is ProcessKind.GRAPHICS or mode is ComputeMode.DEFAULT:
        return
    if mode is ComputeMode.PROHIBITED:
        raise UsageError(
            f"the device's compute mode is PROHIBITED: {_BUSY}",
            remedy="set another compute mode, or take another device",
        )
    of_mps = _is_of_mps(new)
    others = [p for p in present if p.kind is not ProcessKind.GRAPHICS and p.pid != new.pid]
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
