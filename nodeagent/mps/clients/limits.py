"""What limits a client has: its own, as its environment sets them, and the daemon's.

Pure. A limit of the client's own counts only in the forms that CUDA documents, and wherever
something can be read in two ways the looser one is taken: a client that counts as limited, is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from nodeagent.mps.shares import MEMORY_VARIABLE, THREADS_VARIABLE
from nodeagent.plan.shares import ALL_THREADS, MIB, Sharing, percentage_text, written_bytes
from nodeagent.structs import Struct

_ORDINAL = re.compile(r"0|[1-9][0-9]?")
_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]+")
_LIMIT = re.compile(r"([^=,]+)=([0-9]{1,12})([GMK])B?", re.IGNORECASE)
_PERCENTAGE = re.compile(r"[0-9]{1,3}(\.[0-9]{1,6})?")
# Kibibytes are documented, but drivers up to 555 take every unit but G for M.
_UNITS = {"G": 1024 * MIB, "M": MIB, "K": MIB}
_SAME = 0.005  # percent; a plan has two decimals


class ClientLimits(Struct, frozen=True):
    """What a client may use: bytes (None: all there is) and percent of the threads."""

    memory: int | None
    threads: float

    @classmethod
    def of(cls, memory: int | None, threads: float | None) -> ClientLimits:
        """The limits of a share or daemon, from MiB and percent; None: no limit."""
        return cls(
            None if memory is None else memory * MIB, ALL_THREADS if threads is None else threads
        )

    def within(self, most: ClientLimits) -> bool:
        return not self.loose_memory(most) and not self.loose_threads(most)

    def equal(self, other: ClientLimits) -> bool:
        return self.memory == other.memory and abs(self.threads - other.threads) < _SAME

    def loose_memory(self, most: ClientLimits) -> bool:
        return most.memory is not None and (self.memory is None or self.memory > most.memory)

    def loose_threads(self, most: ClientLimits) -> bool:
        return self.threads > most.threads + _SAME

    def __str__(self) -> str:
        memory = "all" if self.memory is None else written_bytes(self.memory)
        return f"{memory} of the memory, {percentage_text(self.threads)}% of the threads"


def limits_in_force(
    own: tuple[int | None, float | None], sharing: Sharing, device: str
) -> ClientLimits:
    """The tighter of the client's own limits and the daemon's."""
    memory, threads = own
    ceiling = ClientLimits.of(sharing.memory_ceiling(device), sharing.thread_ceiling)
    known = [limit for limit in (memory, ceiling.memory) if limit is not None]
    return ClientLimits(min(known, default=None), min(threads or ALL_THREADS, ceiling.threads))


def own_limits(
    environment: Mapping[str, str] | None, device: str, ordinal: int = 0
) -> tuple[int | None, float | None]:
    """Bytes and percent that the client itself sets; None: no limit that is sure."""
    own = environment or {}
    memory = own_memory_limit(own.get(MEMORY_VARIABLE, ""), device, ordinal)
    return memory, own_threads(own.get(THREADS_VARIABLE, ""))


def own_memory_limit(text: str, device: str, ordinal: int = 0) -> int | None:
    """Bytes of one device from `0=1G,1=512MB` or `UUID=1G`; None: no limit that is sure."""
    found: list[int] = []
    for item in filter(None, text.split(",")):
        key = item.partition("=")[0]
        if _is_another(key, device, ordinal):
            continue
        match = _LIMIT.fullmatch(item)
        if match is None or match[1] not in {str(ordinal), device} or int(match[2]) == 0:
            return None  # not understood for certain; and 0 takes a limit away
        found.append(int(match[2]) * _UNITS[match[3].upper()])
    return max(found, default=None)  # which of several counts, is not documented


def _is_another(key: str, device: str, ordinal: int) -> bool:
    """Whether it certainly means another device."""
    if _ORDINAL.fullmatch(key):
        return int(key) != ordinal
    return _UUID.fullmatch(key) is not None and not device.startswith(key)


def own_threads(text: str) -> float | None:
    """Percent; None: no limit that is sure."""
    if _PERCENTAGE.fullmatch(text) and 0 < float(text) <= ALL_THREADS:
        return float(text)
    return None
