"""What an entry's `mps` means on one GPU: limits and accounts.

Nothing is ever rounded up: equal shares are cut down to what the limits can express, and what was
written but cannot be expressed is refused with the nearest value below.
"""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import assert_never

from nodeagent.plan.desired import MpsEntry, Replicas, ShareEntry, Shares
from nodeagent.plan.observed import Gpu
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.shares import (
    ALL_THREADS,
    ANY_USER,
    MIB,
    MIN_THREADS,
    Account,
    Host,
    Share,
    Sharing,
    WantedMps,
    percentage_text,
    user_ids,
    written_bytes,
)
from nodeagent.structs import Struct

REPLICA = "replica"  # the name of the one share that `replicas` means

VOLTA = (7, 0)  # the compute capability from which MPS can limit clients
# Clients of one device at once (NVIDIA's MPS guide).
_CONTEXTS = 60
_CONTEXTS_BEFORE_CUDA_13_1 = 48
_CONTEXTS_BEFORE_VOLTA = 16


class OnGpu(Struct, frozen=True):
    """A GPU for which an entry is resolved, and the problems of the document found so far."""

    gpu: Gpu
    host: Host
    problems: list[Problem]

    def refuse(self, code: Code, case: str, path: str, **facts: object) -> None:
        self.problems.append(self.gpu.problem(code, case, path=path, **facts))


def wanted_mps(
    on: OnGpu, entry: MpsEntry, *, memory: int, device: str = "", slices: int = 0
) -> WantedMps | None:
    """Resolve the MPS of the GPU, or of a MIG `device` (its name) with so many compute slices; what
    has problems is not to be used.
    """
    account = _account(on, entry)
    sharing = share_out(on, entry, memory)
    if sharing is not None:
        name = f"a {device} of GPU {on.gpu.index}" if device else f"GPU {on.gpu.index}"
        _check_capability(on, entry, sharing, name, slices)
    return WantedMps(sharing, account, entry.path) if sharing and account else None


def mps_by_device(on: OnGpu, entry: MpsEntry) -> Mapping[str, WantedMps]:
    """Resolve the MPS of every existing MIG device, by UUID."""
    found: dict[str, WantedMps] = {}
    for instance, c in on.gpu.mig_devices():
        profile = on.gpu.profile(instance.profile)
        memory = profile.memory if profile else c.memory.total if c.memory else 0
        wanted = wanted_mps(on, entry, memory=memory, device=c.profile, slices=c.slices)
        if wanted is not None:
            found[c.uuid] = wanted
    return found


def _check_capability(
    on: OnGpu, entry: MpsEntry, sharing: Sharing, device: str, slices: int
) -> None:
    """What the device cannot do, whatever the limits add up to."""
    gpu, path = on.gpu, entry.clients.path
    before_volta = (0, 0) < gpu.compute_capability < VOLTA
    limited = any(s.memory is not None or s.threads is not None for s in sharing.shares)
    if limited and before_volta:
        least, has = (f"{a}.{b}" for a, b in (VOLTA, gpu.compute_capability))
        on.refuse(Code.UNSUPPORTED, "noLimits", path, least=least, has=has)
    count, most = len(sharing.slots), max_clients(gpu, slices)
    if count > most:
        on.refuse(Code.DOES_NOT_FIT, "clients", path, found=count, device=device, most=most)


def max_clients(gpu: Gpu, slices: int = 0) -> int:
    """How many contexts a daemon of the GPU serves at once, or of a MIG device with so many compute
    slices, for which the driver lowers it in proportion (NVIDIA's MPS guide).
    """
    most = _CONTEXTS
    if (0, 0) < gpu.compute_capability < VOLTA:
        most = _CONTEXTS_BEFORE_VOLTA
    elif (0, 0) < gpu.cuda_version < (13, 1):
        most = _CONTEXTS_BEFORE_CUDA_13_1
    whole = max((p.slices for p in gpu.profiles), default=slices)
    return max(1, most * slices // whole) if slices else most


# --- shares -----------------------------------------------------------------------------------


def share_out(on: OnGpu, entry: MpsEntry, memory: int) -> Sharing | None:
    """What each client of a device with `memory` bytes may have."""
    if memory <= 0:
        on.refuse(Code.GPU_UNKNOWN, "memory", entry.path)
        return None
    before = len(on.problems)
    shares: tuple[Share, ...]
    match entry.clients:
        case Replicas(count, path):
            shares = (_replica(on, count, path, memory),)
        case Shares(written, path):
            shares = tuple(_share(on, share, memory) for share in written)
            if len(on.problems) == before and not entry.oversubscribe:
                _check_sums(on, written, path, memory)
        case _ as never:
            assert_never(never)
    return Sharing(shares, entry.enforce) if len(on.problems) == before else None


def _replica(on: OnGpu, count: int, path: str, memory: int) -> Share:
    most = min(memory // MIB, int(ALL_THREADS / MIN_THREADS))
    if count > most:
        total = written_bytes(memory)
        on.refuse(Code.DOES_NOT_FIT, "replicas", path, found=count, memory=total, most=most)
    return Share(REPLICA, count, memory // MIB // count, 10_000 // count / 100, path)


def _share(on: OnGpu, share: ShareEntry, memory: int) -> Share:
    """Express one share as the daemon can, whatever the others are."""
    path = f"{share.path}.memory"
    if share.memory is not None and share.memory < MIB:
        on.refuse(Code.INVALID_VALUE, "tooLittleMemory", path, found=share.memory)
    if share.memory is not None and share.memory > memory:
        found, total = written_bytes(share.memory), written_bytes(memory)
        on.refuse(Code.DOES_NOT_FIT, "share", path, found=found, memory=total, most=memory // MIB)
    threads, path = share.threads, f"{share.path}.threads"
    if threads is not None and not MIN_THREADS <= threads <= ALL_THREADS:  # also no number
        found, least, most = (f"{number:g}" for number in (threads, MIN_THREADS, ALL_THREADS))
        on.refuse(Code.INVALID_VALUE, "threads", path, found=found, least=least, most=most)
    elif threads is not None and _exact(threads) * 100 % 1:
        below = percentage_text(int(_exact(threads) * 100) / 100)
        on.refuse(Code.INVALID_VALUE, "decimals", path, found=repr(threads), below=below)
    limit = None if share.memory is None else share.memory // MIB
    return Share(share.name, share.count, limit, threads, share.path)


def _check_sums(on: OnGpu, shares: Sequence[ShareEntry], path: str, memory: int) -> None:
    """Whether all stated limits together are more than there is."""
    counted = [(share.count, share) for share in shares if share.count is not None]
    total = sum(count * (share.memory or 0) for count, share in counted)
    if total > memory:
        parts = _added((count, written_bytes(s.memory)) for count, s in counted if s.memory)
        found, has = written_bytes(total), written_bytes(memory)
        on.refuse(Code.DOES_NOT_FIT, "sumOfMemory", path, found=found, parts=parts, memory=has)
    stated = [(count, share.threads) for count, share in counted if share.threads]
    threads = sum(count * _exact(each) for count, each in stated)
    if threads > ALL_THREADS:
        parts = _added((count, f"{percentage_text(each)}%") for count, each in stated)
        found = percentage_text(float(threads))
        on.refuse(Code.DOES_NOT_FIT, "sumOfThreads", path, found=found, parts=parts)


def _added(parts: Iterable[tuple[int, str]]) -> str:
    return " + ".join(f"{count} × {each}" for count, each in parts)


def _exact(percent: float) -> Decimal:
    """The number as it was written, not as binary stores it: 0.1 is a tenth."""
    return Decimal(repr(percent))


# --- accounts ---------------------------------------------------------------------------------


def _account(on: OnGpu, entry: MpsEntry) -> Account | None:
    """The account that MPS runs as, None if there is none: a problem, of no single GPU."""
    text = on.host.default_user if entry.user is None else entry.user
    ids = user_ids(text)
    account = on.host.accounts.get(text) or (Account(*ids) if ids else None)
    if text == ANY_USER:
        account = Account(0, 0, any_user=True)
    path = entry.path if entry.user is None else f"{entry.path}.user"
    if account is None:
        where = "the setting mps.user says" if entry.user is None else "found"
        problem = Problem.of(
            Code.INVALID_VALUE, "noSuchUser", path=path, where=where, user=repr(text)
        )
    elif entry.user is None and account.uid == 0:
        plan_user = ANY_USER if account.any_user else 0
        problem = Problem.of(
            Code.INVALID_VALUE, "rootUser", path=path, user=repr(text), plan_user=plan_user
        )
    else:
        return account
    on.problems.append(problem)
    return None
