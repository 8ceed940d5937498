"""What a client may use, from what its environment says and what its daemon grants.

Pure. A limit of the client's own counts only in the forms that CUDA documents, and wherever
something can be read in two ways the looser one is taken: a client that counts as limited, is.
The daemon's own ceiling holds for everybody, whatever they say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from nodeagent.mps.shares import MEMORY_VARIABLE, THREADS_VARIABLE
from nodeagent.plan.shares import (
    ALL_THREADS,
    MIB,
    Share,
    Sharing,
    percentage_text,
    written_bytes,
)

_OTHER_ORDINAL = re.compile(r"[1-9][0-9]?")
_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]+")
_LIMIT = re.compile(r"([^=,]+)=([0-9]{1,12})([GMK])B?", re.IGNORECASE)
_PERCENTAGE = re.compile(r"[0-9]{1,3}(\.[0-9]{1,6})?")
# Kibibytes are documented, but drivers up to 555 take every unit but G for M.
_UNITS = {"G": 1024 * MIB, "M": MIB, "K": MIB}
_SAME = 0.005  # percent; a plan has two decimals


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may use: bytes (None: all there is) and percent of the threads."""

    memory: int | None
    threads: float

    def within(self, share: Share) -> bool:
        """Whether nothing is looser than in the share."""
        return not self.loose_memory(share) and not self.loose_threads(share)

    def equal(self, share: Share) -> bool:
        """Whether they are just those of the share."""
        return self.memory == bytes_of(share) and abs(self.threads - threads_of(share)) < _SAME

    def loose_memory(self, share: Share) -> bool:
        """Whether more memory may be used than the share has."""
        most = bytes_of(share)
        return most is not None and (self.memory is None or self.memory > most)

    def loose_threads(self, share: Share) -> bool:
        """Whether more threads may be used than the share has."""
        return self.threads > threads_of(share) + _SAME

    def __str__(self) -> str:
        memory = "all" if self.memory is None else written_bytes(self.memory)
        return f"{memory} of the memory, {percentage_text(self.threads)}% of the threads"


def limits_in_force(environment: Mapping[str, str] | None, sharing: Sharing, device: str) -> Limits:
    """The tighter of the client's own limits and the daemon's."""
    own = environment or {}
    ceiling = sharing.memory_ceiling
    memory = [
        limit
        for limit in (
            own_memory_limit(own.get(MEMORY_VARIABLE, ""), device),
            None if ceiling is None else ceiling * MIB,
        )
        if limit is not None
    ]
    threads = own_threads(own.get(THREADS_VARIABLE, ""))
    return Limits(
        min(memory, default=None),
        min(ALL_THREADS if threads is None else threads, sharing.thread_ceiling),
    )


def sets_limits(environment: Mapping[str, str] | None, device: str) -> bool:
    """Whether the client has any limit of its own."""
    own = environment or {}
    memory = own_memory_limit(own.get(MEMORY_VARIABLE, ""), device)
    return memory is not None or own_threads(own.get(THREADS_VARIABLE, "")) is not None


def own_memory_limit(text: str, device: str) -> int | None:
    """Bytes of the one device from `0=1G,1=512MB` or `UUID=1G`; None: no limit that is sure."""
    found: list[int] = []
    for item in filter(None, text.split(",")):
        key = item.partition("=")[0]
        if _is_another(key, device):
            continue
        match = _LIMIT.fullmatch(item)
        if match is None or match[1] not in {"0", device} or int(match[2]) == 0:
            return None  # not understood for certain; and 0 takes a limit away
        found.append(int(match[2]) * _UNITS[match[3].upper()])
    return max(found, default=None)  # which of several counts, is not documented


def _is_another(key: str, device: str) -> bool:
    """Whether it certainly means a device that the client does not have."""
    if _OTHER_ORDINAL.fullmatch(key):
        return True
    return _UUID.fullmatch(key) is not None and not device.startswith(key)


def own_threads(text: str) -> float | None:
    """Percent; None: no limit that is sure."""
    if _PERCENTAGE.fullmatch(text) and 0 < float(text) <= ALL_THREADS:
        return float(text)
    return None


def bytes_of(share: Share) -> int | None:
    """What a client of it may use; None: all there is."""
    return None if share.memory is None else share.memory * MIB


def threads_of(share: Share) -> float:
    """What a client of it may use, in percent."""
    return ALL_THREADS if share.threads is None else share.threads
