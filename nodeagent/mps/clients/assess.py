"""Who uses a device through MPS, which share of the plan is theirs, and what is wrong with that.

Pure. What is known of a client is the environment it was started with, which it may have been
given, may have forged, and may have changed since without a trace. So nothing is ended for what is
not certain; the daemon's own limits hold for everybody, whatever they say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from nodeagent.mps.clients.limits import (
    Limits,
    bytes_of,
    limits_in_force,
    sets_limits,
    threads_of,
)
from nodeagent.mps.shares import MEMORY_VARIABLE, SLOT_VARIABLE, THREADS_VARIABLE
from nodeagent.plan.shares import (
    ALL_THREADS,
    MIB,
    Share,
    Sharing,
    WantedMps,
    percentage_text,
    written_bytes,
)
from nodeagent.views.mps_state import ClientState

# Device memory is handed out in pages of this size, and NVML counts pages.
PAGE = 2 * MIB


@dataclass(frozen=True, slots=True)
class ClientFacts:
    """A client process as read: `client` without its share and limits, `start_time` in the kernel's
    clock ticks since boot, `environment` the variables of MPS that it was started with (None: they
    cannot be read).
    """

    client: ClientState
    start_time: int
    environment: Mapping[str, str] | None

    @property
    def pid(self) -> int:
        return self.client.pid


class OffenceKind(StrEnum):
    """What is wrong with a client."""

    NO_SHARE = "noShare"
    UNCLEAR_SHARE = "unclearShare"
    UNKNOWN_SLOT = "unknownSlot"
    UNREADABLE = "unreadable"
    LOOSER_MEMORY = "looserMemoryLimit"
    LOOSER_THREADS = "looserThreadLimit"
    MEMORY = "memory"
    COUNT = "count"
    SLOT_TAKEN = "slotTaken"


# What a client is ended for where the plan says so. The rest is not certain, or harmless.
ENDED_FOR = frozenset(
    {
        OffenceKind.NO_SHARE,
        OffenceKind.LOOSER_MEMORY,
        OffenceKind.LOOSER_THREADS,
        OffenceKind.MEMORY,
        OffenceKind.COUNT,
    }
)


@dataclass(frozen=True, slots=True)
class Offence:
    """One thing that is wrong with a client: `message` is a sentence without its subject, which
    is the client; `outcome` says what came of ending it, once that was tried.
    """

    client: ClientState
    kind: OffenceKind
    message: str
    outcome: str = ""

    def __str__(self) -> str:
        """The whole sentence, with who it is."""
        client = self.client
        command = f" ({client.command})" if client.command else ""
        pod = f" of pod {client.namespace}/{client.pod}" if client.pod else ""
        outcome = f"; to be ended: {self.outcome}" if self.outcome else ""
        return f"MPS client {client.pid}{command}{pod} {self.message}{outcome}"


def assess(clients: Sequence[ClientFacts], wanted: WantedMps, device: str) -> tuple[Judged, ...]:
    """Each client of `device` (a UUID) with its share, its limits, and what is wrong with it."""
    found = tuple(Judged(facts, wanted.sharing, device) for facts in clients)
    for share in wanted.sharing.shares:
        if share.count is not None:
            _judge_crowd([c for c in found if c.share == share], share.name, share.count)
    return found


# --- one client -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Judged:
    """A client with its share and limits, and all that is wrong with it."""

    facts: ClientFacts
    sharing: Sharing
    device: str
    limits: Limits = field(init=False)
    share: Share | None = field(init=False, default=None)
    slot: str = field(init=False, default="")
    wrongs: list[tuple[OffenceKind, str]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.limits = limits_in_force(self.facts.environment, self.sharing, self.device)
        self._find_share()
        if self.share is not None:
            self._compare_limits(self.share)
        self._compare_memory()

    @property
    def state(self) -> ClientState:
        return replace(
            self.facts.client,
            share=self.share.name if self.share else "",
            slot=self.slot,
            memory_limit=self.limits.memory,
            threads=self.limits.threads if self.limits.threads < ALL_THREADS else None,
            findings=tuple(message for _, message in self.wrongs),
        )

    @property
    def offences(self) -> tuple[Offence, ...]:
        state = self.state
        return tuple(Offence(state, kind, message) for kind, message in self.wrongs)

    def add(self, kind: OffenceKind, message: str) -> None:
        self.wrongs.append((kind, message))

    def _find_share(self) -> None:
        named = self._variable(SLOT_VARIABLE)
        for slot in self.sharing.slots:
            if named == f"{self.device}/{slot.name}":
                self.share, self.slot = slot.share, slot.name
                return
        if named is not None:
            self.add(
                OffenceKind.UNKNOWN_SLOT,
                f"names the slot {_shown(named)}, which this device does not have",
            )
        self._find_share_by_limits()

    def _find_share_by_limits(self) -> None:
        shares = self.sharing.shares
        if len(shares) > 1 and self.facts.environment is None:
            self.add(
                OffenceKind.UNREADABLE,
                "the environment it was started with cannot be read, so its share is not known, "
                f"nor are its limits beyond the daemon's own ({self.limits})",
            )
            return
        if len(shares) == 1:  # a client with less than the one share can have no other
            fits = [share for share in shares if self.limits.within(share)]
        elif sets_limits(self.facts.environment, self.device):
            fits = [share for share in shares if self.limits.equal(share)]
        else:  # was given nothing; that the daemon grants what some share has, says nothing
            fits = []
        if len(fits) == 1:
            self.share = fits[0]
            if fits[0].count is None:
                self.slot = fits[0].slots[0].name
        elif fits:
            names = " and ".join(share.name for share in fits)
            self.add(
                OffenceKind.UNCLEAR_SHARE,
                f"it is not clear which share it has: its limits ({self.limits}) are those of "
                f"{names}, and {SLOT_VARIABLE} does not say",
            )
        else:
            self.add(
                OffenceKind.NO_SHARE,
                f"has no share of the plan: it has no slot, and what it may use ({self.limits}) "
                "was not given to it by any share",
            )

    def _compare_limits(self, share: Share) -> None:
        if self.limits.loose_memory(share):
            has, most = self.limits.memory, bytes_of(share) or 0
            self.add(
                OffenceKind.LOOSER_MEMORY,
                f"may use {'all' if has is None else written_bytes(has)} of the memory, but its "
                f"share {share.name} allows {written_bytes(most)} "
                f"({self._as_set(MEMORY_VARIABLE)})",
            )
        if self.limits.loose_threads(share):
            self.add(
                OffenceKind.LOOSER_THREADS,
                f"may use {percentage_text(self.limits.threads)}% of the threads, but its share "
                f"{share.name} allows {percentage_text(threads_of(share))}% "
                f"({self._as_set(THREADS_VARIABLE)})",
            )

    def _compare_memory(self) -> None:
        """What CUDA needs for itself counts towards the limit, so nothing is let pass for it; only
        the last page, which NVML counts as a whole.
        """
        limits = [self.limits.memory, bytes_of(self.share) if self.share else None]
        known = [limit for limit in limits if limit is not None]
        used = self.facts.client.memory_used
        if used is None or not known:
            return
        limit = min(known)
        if used > -(-limit // PAGE) * PAGE:
            self.add(
                OffenceKind.MEMORY,
                f"uses {written_bytes(used)} of memory, but its limit is {written_bytes(limit)}",
            )

    def _variable(self, name: str) -> str | None:
        return None if self.facts.environment is None else self.facts.environment.get(name)

    def _as_set(self, name: str) -> str:
        if self.facts.environment is None:
            return "its environment cannot be read"
        value = self._variable(name)
        return f"{name} is not set" if value is None else f"{name} is {_shown(value)}"


def _shown(text: str) -> str:
    """Quoted, short, and without anything that could act on a terminal."""
    return ascii(text[:80])


# --- all of one share -----------------------------------------------------------------------------


def _judge_crowd(clients: Sequence[Judged], name: str, count: int) -> None:
    """Two in one slot, and more than the share is for.

    Each slot is its first client's. Beyond the count are first those in a taken slot,
    then those without one, then the newest: so a program that forks pushes out only itself.
    """
    by_slot: dict[str, list[Judged]] = defaultdict(list)
    for client in sorted(clients, key=_age):
        by_slot[client.slot].append(client)
    late: set[int] = set()
    for slot, inside in by_slot.items():
        for client in inside[1:] if slot else ():
            late.add(client.facts.pid)
            client.add(
                OffenceKind.SLOT_TAKEN,
                f"is in slot {slot}, which pid {inside[0].facts.pid} has already",
            )
    ranked = sorted(clients, key=lambda c: (c.facts.pid in late, not c.slot, _age(c)))
    for client in ranked[count:]:
        client.add(
            OffenceKind.COUNT,
            f"is one too many: share {name} is for {count}, and there are {len(clients)}",
        )


def _age(client: Judged) -> tuple[int, int]:
    """The older one first."""
    return client.facts.start_time, client.facts.pid
