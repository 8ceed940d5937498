"""What an entry's `mps` and `timeSlice` mean on one GPU: limits, accounts, intervals.

Nothing is ever rounded up: equal shares are cut down to what the limits can express, and what was
written but cannot be expressed is refused with the nearest value below.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import assert_never

from nodeagent.plan.desired import (
    MigEnabled,
    MigLayout,
    MpsEntry,
    PlanEntry,
    Replicas,
    ShareEntry,
    Shares,
)
from nodeagent.plan.observed import Gpu
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.shares import (
    ALL_THREADS,
    ANY_USER,
    LEAST_THREADS,
    MIB,
    Account,
    Host,
    Share,
    Sharing,
    TimeSlice,
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

    def refuse(self, code: Code, message: str, remedy: str, path: str) -> None:
        self.problems.append(
            Problem(code=code, message=message, remedy=remedy, gpu=self.gpu.uuid, path=path)
        )


def wanted_mps(
    on: OnGpu, entry: MpsEntry, *, memory: int, device: str = "", slices: int = 0
) -> WantedMps | None:
    """For the GPU as a whole, or for a MIG `device` (its name) with so many compute slices; what
    has problems is not to be used.
    """
    account = _account(on, entry)
    sharing = share_out(on, entry, memory)
    if sharing is not None:
        name = f"a {device} of GPU {on.gpu.index}" if device else f"GPU {on.gpu.index}"
        _check_capability(on, entry, sharing, name, slices)
    return WantedMps(sharing, account, entry.path) if sharing and account else None


def mps_by_device(on: OnGpu, entry: MpsEntry) -> Mapping[str, WantedMps]:
    """For every MIG device there is, by UUID."""
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
        message = (
            f"{gpu.title} cannot limit MPS clients: that needs compute capability "
            f"{VOLTA[0]}.{VOLTA[1]}, and it has "
            f"{gpu.compute_capability[0]}.{gpu.compute_capability[1]}"
        )
        remedy = "write clients: {}, which limits no client, or use timeSlice"
        on.refuse(Code.UNSUPPORTED, message, remedy, path)
    most = _CONTEXTS
    if before_volta:
        most = _CONTEXTS_BEFORE_VOLTA
    elif (0, 0) < gpu.cuda_version < (13, 1):
        most = _CONTEXTS_BEFORE_CUDA_13_1
    if slices:  # the driver lowers it in proportion to the compute instance (NVIDIA's MPS guide)
        whole = max((p.slices for p in gpu.profiles), default=slices)
        most = max(1, most * slices // whole)
    count = len(sharing.slots)
    if count > most:
        message = f"found {count} clients in all, but {device} serves at most {most} at once"
        on.refuse(Code.DOES_NOT_FIT, message, f"write at most {most}", path)


# --- shares -----------------------------------------------------------------------------------


def share_out(on: OnGpu, entry: MpsEntry, memory: int) -> Sharing | None:
    """What each client of a device with `memory` bytes may have."""
    if memory <= 0:
        message = "the device's memory is not known, so it cannot be divided into shares"
        remedy = "look at `nvidia-smi -q`: the driver has to answer for this device"
        on.refuse(Code.GPU_UNKNOWN, message, remedy, entry.path)
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
    most = min(memory // MIB, int(ALL_THREADS / LEAST_THREADS))
    if count > most:
        message = (
            f"found {count}: of {written_bytes(memory)} and all threads, that many shares would be "
            "too small to be limits"
        )
        on.refuse(Code.DOES_NOT_FIT, message, f"write at most {most}", path)
    return Share(REPLICA, count, memory // MIB // count, 10_000 // count / 100, path)


def _share(on: OnGpu, share: ShareEntry, memory: int) -> Share:
    """As the daemon can express it, whatever the others are."""
    path = f"{share.path}.memory"
    if share.memory is not None and share.memory < MIB:
        message = f"found {share.memory} bytes, but the daemon's smallest limit is 1 MiB"
        on.refuse(Code.INVALID_VALUE, message, "write at least 1Mi", path)
    if share.memory is not None and share.memory > memory:
        found, there = written_bytes(share.memory), written_bytes(memory)
        message = f"found {found}, but the device has {there}"
        on.refuse(Code.DOES_NOT_FIT, message, f"write at most {memory // MIB}Mi", path)
    threads, path = share.threads, f"{share.path}.threads"
    if threads is not None and not LEAST_THREADS <= threads <= ALL_THREADS:  # also no number
        message = f"found {threads:g} percent of the threads"
        remedy = f"write a number from {LEAST_THREADS:g} to {ALL_THREADS:g}"
        on.refuse(Code.INVALID_VALUE, message, remedy, path)
    elif threads is not None and _exact(threads) * 100 % 1:
        below = percentage_text(int(_exact(threads) * 100) / 100)
        message = (
            f"found {threads!r}: a percentage has at most two decimals here, and nothing is rounded"
        )
        on.refuse(Code.INVALID_VALUE, message, f"write {below}", path)
    limit = None if share.memory is None else share.memory // MIB
    return Share(share.name, share.count, limit, threads, share.path)


def _check_sums(on: OnGpu, shares: Sequence[ShareEntry], path: str, memory: int) -> None:
    """Whether all stated limits together are more than there is."""
    remedy = "make them smaller or fewer, or set oversubscribe: true"
    counted = [(share.count, share) for share in shares if share.count is not None]
    total = sum(count * (share.memory or 0) for count, share in counted)
    if total > memory:
        parts = _added((count, written_bytes(s.memory)) for count, s in counted if s.memory)
        message = (
            f"the shares add up to {written_bytes(total)} of memory ({parts}), but the device has "
            f"{written_bytes(memory)}"
        )
        on.refuse(Code.DOES_NOT_FIT, message, remedy, path)
    stated = [(count, share.threads) for count, share in counted if share.threads]
    threads = sum(count * _exact(each) for count, each in stated)
    if threads > ALL_THREADS:
        parts = _added((count, f"{percentage_text(each)}%") for count, each in stated)
        message = (
            f"the shares add up to {percentage_text(float(threads))}% of the threads ({parts})"
        )
        on.refuse(Code.DOES_NOT_FIT, message, remedy, path)


def _added(parts: Iterable[tuple[int, str]]) -> str:
    return " + ".join(f"{count} × {each}" for count, each in parts)


def _exact(percent: float) -> Decimal:
    """The number as it was written, not as binary stores it: 0.1 is a tenth."""
    return Decimal(repr(percent))


# --- accounts and time slices -----------------------------------------------------------------


def _account(on: OnGpu, entry: MpsEntry) -> Account | None:
    """Whom MPS runs as; a problem of it is none of a single GPU."""
    text = on.host.default_user if entry.user is None else entry.user
    ids = user_ids(text)
    account = on.host.accounts.get(text) or (Account(*ids) if ids else None)
    if text == ANY_USER:
        account = Account(0, 0, any_user=True)
    path = entry.path if entry.user is None else f"{entry.path}.user"
    if account is None:
        where = "the setting mps.user says" if entry.user is None else "found"
        message = f"{where} {text!r}, but this host has no such user"
        remedy = "write a uid such as 1000, a uid:gid, or any"
    elif entry.user is None and account.uid == 0:
        message = f"MPS would run as root, because the setting mps.user says {text!r}"
        user = ANY_USER if account.any_user else 0
        remedy = f"if that is meant, say it in the plan: user: {user}"
    else:
        return account
    on.problems.append(Problem(code=Code.INVALID_VALUE, message=message, remedy=remedy, path=path))
    return None


def time_slice_of(on: OnGpu, entry: PlanEntry) -> TimeSlice | None:
    """The interval; there is one for each GPU, so the parts of a GPU have none of their own."""
    if entry.time_slice is None:
        return None
    if entry.mps is not None:
        message = "found mps and timeSlice; a device is shared in one way or the other"
        remedy = "drop one of them"
    elif isinstance(entry.mig, MigLayout | MigEnabled):
        message = "found timeSlice beside mig: a time slice is for a whole GPU outside MIG mode"
        remedy = "drop timeSlice, or write mig: disabled"
    elif entry.mig is None and on.gpu.in_mig_mode:
        message = (
            f"GPU {on.gpu.index} is in MIG mode, and a time slice is for a whole GPU outside MIG "
            "mode"
        )
        remedy = "write mig: disabled beside timeSlice, or leave this GPU out"
    else:
        return TimeSlice(entry.time_slice)
    on.refuse(Code.INVALID_VALUE, message, remedy, f"{entry.path}.timeSlice")
    return None
