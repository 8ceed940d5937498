"""A device that several claims have together, a GPU or a MIG device: how it can be parted, and what
one of them consumes.

Kubernetes calls it consumable capacity. The device allows several allocations, each of which
consumes of its capacities; a request that says nothing consumes the default, which is all of the
memory, so that it gets the whole device. Capacities are counted by the scheduler, and once more by
`admission`.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from nodeagent.plan.desired import SharedBy
from nodeagent.plan.observed import Gpu, GpuInstanceProfile
from nodeagent.plan.resolve_mps import max_clients
from nodeagent.plan.shares import ALL_THREADS, MIB, MIN_THREADS, written_bytes
from nodeagent.structs import Struct

MEMORY: Final = "gpu.nvidia.com/memory"  # bytes; as NVIDIA's driver names it
THREADS: Final = "threads"  # percent
CLIENTS: Final = "clients"  # places for MPS contexts

STEP: Final = 256 * MIB


class RequestPolicy(Struct, frozen=True):
    """What requests consume of a capacity: `least`, or as many steps more as they need; `default`
    where they say nothing.
    """

    default: int
    least: int
    step: int


class Consumed(Struct, frozen=True):
    """What an allocation consumes of a device: bytes, percent of the threads (0: none were
    requested) and places for clients.
    """

    memory: int
    threads: int = 0
    clients: int = 0

    def is_whole(self, memory: int) -> bool:
        """Whether nobody else has room beside it on a device with so many bytes."""
        return memory - self.memory < STEP

    def thread_limit(self, memory: int) -> float:
        """The percentage that its processes may have on a device with so many bytes: what was
        requested, else in proportion to the memory, cut down to what MPS can express.
        """
        in_proportion = max(10_000 * self.memory // memory / 100, MIN_THREADS)
        return float(self.threads) if self.threads else in_proportion

    def __str__(self) -> str:
        """`8Gi, 20% of the threads, 2 clients`, without what is not worth a word."""
        parts = [written_bytes(self.memory)] if self.memory else []
        parts += [f"{self.threads}% of the threads"] if self.threads else []
        if self.clients > 1 or not parts:
            parts.append(f"{self.clients} client{'s'[: self.clients - 1]}")
        return ", ".join(parts)


def policies(memory: int, shared_by: SharedBy) -> Mapping[str, RequestPolicy]:
    """How requests are met of a device with so many bytes; empty: it goes as a whole."""
    step = memory // shared_by // MIB * MIB if isinstance(shared_by, int) else STEP
    if shared_by == "off" or memory < 2 * step or step < STEP:
        return {}
    of_memory = {MEMORY: RequestPolicy(memory // step * step, step, step)}
    if shared_by == "time":
        return of_memory
    return {**of_memory, THREADS: RequestPolicy(0, 0, 1), CLIENTS: RequestPolicy(1, 1, 1)}


def capacity_of(gpu: Gpu, profile: GpuInstanceProfile | None) -> Consumed:
    """All that there is of the GPU, or of a MIG device of the `profile`."""
    memory, slices = (profile.memory, profile.slices) if profile else (gpu.memory, 0)
    return Consumed(memory, int(ALL_THREADS), max_clients(gpu, slices))


def excess(all_of_it: Consumed, consumed: Iterable[Consumed]) -> Consumed | None:
    """What these together have more than all of it; None: nothing."""
    everything = tuple(consumed)
    over = Consumed(
        max(0, sum(one.memory for one in everything) - all_of_it.memory),
        max(0, sum(one.threads for one in everything) - all_of_it.threads),
        max(0, sum(one.clients for one in everything) - all_of_it.clients),
    )
    return over if over != Consumed(0) else None
