"""Who uses a device through MPS, which share of the plan is theirs, and what is wrong with that.

Pure. What is known of a client is the environment it was started with, which it may have been
given, may have forged, and may have changed since without a trace. So nothing is ended for what is
not certain; the daemon's own limits hold for everybody, whatever they say.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from enum import StrEnum

from nodeagent.catalogue import filled, section
from nodeagent.mps.clients.limits import ClientLimits, limits_in_force, own_limits
from nodeagent.mps.shares import MEMORY_VARIABLE, SLOT_VARIABLE, THREADS_VARIABLE
from nodeagent.plan.shares import ALL_THREADS, MIB, Share, WantedMps, percentage_text, written_bytes
from nodeagent.structs import Struct, field, replace
from nodeagent.views.mps import client_words, plain_number
from nodeagent.views.shapes import MpsClient, MpsMemory

# Device memory is handed out in pages of this size, and NVML counts pages.
PAGE = 2 * MIB


class ClientFacts(Struct, frozen=True):
    """A client process as read: `client` without its share and limits, `start_time` in the kernel's
    clock ticks since boot, `environment` the variables of MPS that it was started with (None: they
    cannot be read), `seen` when it was seen to be a client first, `memory_used`
    in bytes.
    """

    client: MpsClient
    start_time: int
    environment: Mapping[str, str] | None
    seen: float = 0.0
    memory_used: int | None = None

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
    TOGETHER = "memoryTogether"
    COUNT = "count"
    SLOT_TAKEN = "slotTaken"


# What a client is ended for where the plan says so. The rest is not certain, or harmless.
ENDED_FOR = frozenset(
    {
        OffenceKind.NO_SHARE,
        OffenceKind.LOOSER_MEMORY,
        OffenceKind.LOOSER_THREADS,
        OffenceKind.MEMORY,
        OffenceKind.TOGETHER,
        OffenceKind.COUNT,
    }
)

_NO_SHARE = frozenset({OffenceKind.NO_SHARE, OffenceKind.UNCLEAR_SHARE})


class Offence(Struct, frozen=True):
    """One thing that is wrong with a client: `message` is a sentence without its subject, which
    is the client; `outcome` says what came of ending it, once that was tried.
    """

    client: MpsClient
    kind: OffenceKind
    message: str
    outcome: str = ""

    def __str__(self) -> str:
        outcome = f"; to be ended: {self.outcome}" if self.outcome else ""
        return f"MPS client {client_words(self.client)} {self.message}{outcome}"


class Judged(Struct):
    """A client with its share and limits, and all that is wrong with it."""

    facts: ClientFacts
    device: str
    limits: ClientLimits
    share: Share | None = None
    slot: str = ""
    wrongs: list[tuple[OffenceKind, str]] = field(default_factory=list)

    @property
    def state(self) -> MpsClient:
        used, limits = self.facts.memory_used, self.limits
        has_memory = (used, limits.memory) != (None, None)
        return replace(
            self.facts.client,
            share=self.share.name if self.share else "",
            slot=self.slot,
            memory=MpsMemory(used=used, limit=limits.memory) if has_memory else None,
            threads=plain_number(limits.threads) if limits.threads < ALL_THREADS else None,
            findings=tuple(message for _, message in self.wrongs),
        )

    @property
    def offences(self) -> tuple[Offence, ...]:
        state = self.state
        return tuple(Offence(state, kind, message) for kind, message in self.wrongs)

    @property
    def age(self) -> tuple[float, int, int]:
        """That of the older client is less, whichever program is older: one that comes only now
        must not displace one that works.
        """
        return self.facts.seen, self.facts.start_time, self.facts.pid

    @property
    def is_given(self) -> bool:
        """Whether its share is known and has something of the device."""
        given = [device for device, *_ in self.share.by_device] if self.share else []
        return self.share is not None and (self.device in given or not given)

    @property
    def most(self) -> ClientLimits:
        """What its share allows on the device."""
        return _most(self.share, self.device)

    def add(self, kind: OffenceKind, **facts: object) -> None:
        self.wrongs.append((kind, filled(section("offence")[kind], facts)))


def assess(facts: Sequence[ClientFacts], wanted: WantedMps, device: str) -> tuple[Judged, ...]:
    """Find each client's share and limits on `device` (a UUID) of the daemon, and what is wrong
    with it.
    """
    found = tuple(_judged(one, wanted, device) for one in facts)
    for share in wanted.sharing.shares:
        clients = [client for client in found if client.share == share]
        if share.count is not None:
            _judge_crowd(clients, share.name, share.count)
        total = share.total_on(device)
        if total is not None:
            _judge_sum(clients, share.name, total * MIB)
    return found


def on_all(judged: Sequence[Sequence[Judged]]) -> tuple[Judged, ...]:
    """The same clients as they were judged on each of the daemon's devices: as on that of which
    they use most, with all that is wrong. A share that is known by its limits on one is its share.
    """
    found = []
    for one in zip(*judged, strict=True):
        most = max(one, key=lambda client: (client.facts.memory_used or 0, client.is_given))
        no_share = _NO_SHARE if any(client.share for client in one) else frozenset()
        wrongs = dict(wrong for client in (*one, most) for wrong in client.wrongs)
        most.wrongs = [wrong for wrong in wrongs.items() if wrong[0] not in no_share]
        found.append(most)
    return tuple(found)


def _judged(facts: ClientFacts, wanted: WantedMps, device: str) -> Judged:
    sharing, devices = wanted.sharing, wanted.devices_on(device)
    ordinal = devices.index(device)
    own = own_limits(facts.environment, device, ordinal)
    client = Judged(facts, device, limits_in_force(own, sharing, device))
    named = None if facts.environment is None else facts.environment.get(SLOT_VARIABLE)
    slot = next((s for s in sharing.slots if named == f"{devices[0]}/{s.name}"), None)
    if slot is not None:
        client.share, client.slot = slot.share, slot.name
    else:
        if named is not None:
            client.add(OffenceKind.UNKNOWN_SLOT, slot=_shown(named))
        _find_share_by_limits(client, sharing.shares, own != (None, None))
    if client.is_given:  # its limit elsewhere may be that of a device which it has
        _compare_limits(client)
    _compare_memory(client)
    return client


def _find_share_by_limits(client: Judged, shares: Sequence[Share], has_own: bool) -> None:
    environment, limits, device = client.facts.environment, client.limits, client.device
    if len(shares) > 1 and environment is None:
        client.add(OffenceKind.UNREADABLE, limits=limits)
        return
    if len(shares) == 1:  # a client with less than the one share can have no other
        fits = [share for share in shares if limits.within(_most(share, device))]
    elif has_own:
        fits = [share for share in shares if limits.equal(_most(share, device))]
    else:  # was given nothing; that the daemon grants what some share has, says nothing
        fits = []
    if len(fits) == 1:
        client.share = fits[0]
        if fits[0].count is None:
            client.slot = fits[0].slots[0].name
    elif fits:
        names = " and ".join(share.name for share in fits)
        client.add(OffenceKind.UNCLEAR_SHARE, limits=limits, shares=names)
    else:
        client.add(OffenceKind.NO_SHARE, limits=limits)


def _most(share: Share | None, device: str) -> ClientLimits:
    if share is None:
        return ClientLimits.of(None, None)
    return ClientLimits.of(share.memory_on(device), share.threads)


def _compare_limits(client: Judged) -> None:
    has, most, environment = client.limits, client.most, client.facts.environment
    share = client.share.name if client.share else ""
    if has.loose_memory(most):
        client.add(
            OffenceKind.LOOSER_MEMORY,
            limit="all" if has.memory is None else written_bytes(has.memory),
            share=share,
            allowed=written_bytes(most.memory or 0),
            variable=_as_set(MEMORY_VARIABLE, environment),
        )
    if has.loose_threads(most):
        client.add(
            OffenceKind.LOOSER_THREADS,
            limit=percentage_text(has.threads),
            share=share,
            allowed=percentage_text(most.threads),
            variable=_as_set(THREADS_VARIABLE, environment),
        )


def _compare_memory(client: Judged) -> None:
    """What CUDA needs for itself counts towards the limit, so nothing is let pass for it; only
    the last page, which NVML counts as a whole.
    """
    limits = (client.limits.memory, client.most.memory)
    limit = min((known for known in limits if known is not None), default=None)
    used = client.facts.memory_used
    if used is not None and limit is not None and used > -(-limit // PAGE) * PAGE:
        client.add(OffenceKind.MEMORY, used=written_bytes(used), limit=written_bytes(limit))


def _as_set(name: str, environment: Mapping[str, str] | None) -> str:
    if environment is None:
        return "its environment cannot be read"
    return f"{name} is {_shown(environment[name])}" if name in environment else f"{name} is not set"


def _shown(text: str) -> str:
    """Quoted, short, and without anything that could act on a terminal."""
    return ascii(text[:80])


def _judge_crowd(clients: Sequence[Judged], name: str, count: int) -> None:
    """Two in one slot, and more than the share is for.

    Each slot is its first client's. Beyond the count are first those in a taken slot,
    then those without one, then the newest: so a program that forks pushes out only itself.
    """
    by_slot: dict[str, list[Judged]] = defaultdict(list)
    for client in sorted(clients, key=lambda c: c.age):
        by_slot[client.slot].append(client)
    late: set[int] = set()
    for slot, inside in by_slot.items():
        for client in inside[1:] if slot else ():
            late.add(client.facts.pid)
            client.add(OffenceKind.SLOT_TAKEN, slot=slot, pid=inside[0].facts.pid)
    ranked = sorted(clients, key=lambda c: (c.facts.pid in late, not c.slot, c.age))
    for client in ranked[count:]:
        client.add(OffenceKind.COUNT, share=name, count=count, clients=len(clients))


def _judge_sum(clients: Sequence[Judged], name: str, limit: int) -> None:
    """What clients have together, beyond the limit of them all.

    Nobody can tell which of them took the last of it. The newest are the ones beyond, until the
    others fit: a program that starts more processes pushes out those, and not the one that has
    worked so far. One that has too much by itself is no part of the sum.
    """
    used, inside = 0, 0
    for client in sorted(clients, key=lambda c: c.age):
        own = client.facts.memory_used or 0
        if any(kind is OffenceKind.MEMORY for kind, _ in client.wrongs):
            continue
        if used + own <= (-(-limit // PAGE) + inside) * PAGE:  # each one's last page counts whole
            used, inside = used + own, inside + 1
            continue
        client.add(
            OffenceKind.TOGETHER,
            own=written_bytes(own),
            others=written_bytes(used),
            share=name,
            limit=written_bytes(limit),
        )
