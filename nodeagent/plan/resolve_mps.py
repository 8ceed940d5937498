"""What an entry's `mps` and `timeSlice` mean on one GPU: limits, accounts, intervals.

Nothing is ever rounded up: equal shares are cut down to what the limits can express, and what was
written but cannot be expressed is refused with the nearest value below.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction

from nodeagent.plan.desired import MigEnabled, MigLayout, MpsEntry, PlanEntry, ShareEntry
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
    written_bytes,
)

REPLICA = "replica"  # the name of the one share that `replicas` means
CLIENTS = "clients"  # the name of the one share that `clients` means

VOLTA = (7, 0)  # the compute capability from which MPS can limit clients
_CONTEXTS = 60  # of one device, from CUDA 13.1 on; 48 before, which is not known here
_CONTEXTS_BEFORE_VOLTA = 16

_IDS = re.compile(r"([0-9]{1,10})(?::([0-9]{1,10}))?")


def share_out(entry: MpsEntry, *, device: str, memory: int) -> Sharing | tuple[Problem, ...]:
    """What each client of `device` (a UUID) with `memory` bytes may have, or what is wrong."""
    if memory <= 0:
        return (
            Problem(
                Code.GPU_UNKNOWN,
                "the device's memory is not known, so no share of it can be given",
                "see whether the driver answers for this device",
                gpu=device,
                path=entry.path,
            ),
        )
    if entry.replicas is not None:
        return _replicas(entry, entry.replicas, device=device, memory=memory)
    written = entry.shares or ((entry.clients,) if entry.clients is not None else ())
    problems = [p for share in written for p in _share_problems(share, device, memory)]
    if not problems and not entry.oversubscribe:
        problems = list(_sum_problems(entry, device, memory))
    if problems:
        return tuple(problems)
    return Sharing(tuple(_share(share) for share in written), entry.enforce)


def _share(written: ShareEntry) -> Share:
    return Share(
        name=written.name or CLIENTS,
        count=written.count or None,
        memory=None if written.memory is None else written.memory // MIB,
        threads=written.threads,
        path=written.path,
    )


def _replicas(
    entry: MpsEntry, count: int, *, device: str, memory: int
) -> Sharing | tuple[Problem, ...]:
    path = f"{entry.path}.replicas"
    each = memory // MIB // count
    hundredths = 10_000 // count
    most = min(memory // MIB, int(ALL_THREADS / LEAST_THREADS))
    if count > most:
        return (
            Problem(
                Code.DOES_NOT_FIT,
                f"found {count}: of {written_bytes(memory)} and all threads, that many shares "
                "would be too small to be limits",
                f"write at most {most}",
                gpu=device,
                path=path,
            ),
        )
    return Sharing((Share(REPLICA, count, each, hundredths / 100, path),), entry.enforce)


def _share_problems(share: ShareEntry, device: str, memory: int) -> Iterable[Problem]:
    """What is wrong with one share, whatever the others are."""
    if share.memory is not None:
        path = f"{share.path}.memory"
        if share.memory < MIB:
            yield Problem(
                Code.INVALID_VALUE,
                f"found {share.memory} bytes, but the daemon's smallest limit is 1 MiB",
                "write at least 1Mi",
                gpu=device,
                path=path,
            )
        if share.memory > memory:
            yield Problem(
                Code.DOES_NOT_FIT,
                f"found {written_bytes(share.memory)}, but the device has {written_bytes(memory)}",
                f"write at most {memory // MIB}Mi",
                gpu=device,
                path=path,
            )
    if share.threads is not None:
        yield from _thread_problems(share.threads, f"{share.path}.threads", device)


def _thread_problems(threads: float, path: str, device: str) -> Iterable[Problem]:
    if not LEAST_THREADS <= threads <= ALL_THREADS:  # also what is no number
        yield Problem(
            Code.INVALID_VALUE,
            f"found {threads:g} percent of the threads",
            f"write a number from {LEAST_THREADS:g} to {ALL_THREADS:g}",
            gpu=device,
            path=path,
        )
    elif (_exact(threads) * 100).denominator != 1:
        below = int(_exact(threads) * 100) / 100
        yield Problem(
            Code.INVALID_VALUE,
            f"found {threads!r}: a percentage has at most two decimals here, and nothing is "
            "rounded",
            f"write {percentage_text(below)}",
            gpu=device,
            path=path,
        )


def _sum_problems(entry: MpsEntry, device: str, memory: int) -> Iterable[Problem]:
    """Whether all stated limits together are more than there is."""
    path = f"{entry.path}.shares"
    total = sum(share.count * (share.memory or 0) for share in entry.shares)
    if total > memory:
        parts = _added((s.count, written_bytes(s.memory)) for s in entry.shares if s.memory)
        yield Problem(
            Code.DOES_NOT_FIT,
            f"the shares add up to {written_bytes(total)} of memory ({parts}), but the device "
            f"has {written_bytes(memory)}",
            "make them smaller or fewer, or set oversubscribe: true",
            gpu=device,
            path=path,
        )
    stated = [(share.count, share.threads) for share in entry.shares if share.threads]
    threads = sum(count * _exact(each) for count, each in stated)
    if threads > ALL_THREADS:
        parts = _added((count, f"{percentage_text(each)}%") for count, each in stated)
        yield Problem(
            Code.DOES_NOT_FIT,
            f"the shares add up to {percentage_text(float(threads))}% of the threads ({parts})",
            "make them smaller or fewer, or set oversubscribe: true",
            gpu=device,
            path=path,
        )


def _added(parts: Iterable[tuple[int, str]]) -> str:
    return " + ".join(f"{count} × {each}" for count, each in parts)


def _exact(percent: float) -> Fraction:
    """The number as it was written, not as binary stores it: 0.1 is a tenth."""
    return Fraction(repr(percent))


# --- devices ----------------------------------------------------------------------------------


def mps_by_device(
    entry: MpsEntry, gpu: Gpu, host: Host, problems: list[Problem]
) -> Mapping[str, WantedMps]:
    """For every MIG device there is, by UUID."""
    found: dict[str, WantedMps] = {}
    for instance in gpu.instances:
        profile = gpu.profile(instance.profile)
        for device in instance.compute:
            total = device.memory.total if device.memory else 0
            memory = profile.memory if profile else total
            name, slices = device.profile, device.slices
            wanted = wanted_mps(
                entry, gpu, host, problems, device=name, slices=slices, memory=memory
            )
            if wanted is not None:
                found[device.uuid] = wanted
    return found


def wanted_mps(
    entry: MpsEntry,
    gpu: Gpu,
    host: Host,
    problems: list[Problem],
    *,
    memory: int,
    device: str = "",
    slices: int = 0,
) -> WantedMps | None:
    """For the GPU as a whole, or for a MIG `device` (its name) with so many compute slices."""
    faults = len(problems)
    account = _account(entry, host, problems)
    sharing = share_out(entry, device=gpu.uuid, memory=memory)
    if isinstance(sharing, Sharing):
        name = f"a {device} of GPU {gpu.index}" if device else f"GPU {gpu.index}"
        problems += _beyond(entry, gpu, sharing, name, _most_clients(gpu, slices))
    else:
        problems += sharing
    if account is None or not isinstance(sharing, Sharing) or len(problems) > faults:
        return None
    return WantedMps(sharing, account, entry.path)


def _most_clients(gpu: Gpu, slices: int) -> int:
    """The driver lowers the number in proportion to the compute instance (NVIDIA's MPS guide)."""
    contexts = _CONTEXTS_BEFORE_VOLTA if _before_volta(gpu) else _CONTEXTS
    whole = max((p.slices for p in gpu.profiles), default=slices)
    return max(1, contexts * slices // whole) if slices else contexts


def _before_volta(gpu: Gpu) -> bool:
    return (0, 0) < gpu.compute_capability < VOLTA


def _beyond(
    entry: MpsEntry, gpu: Gpu, sharing: Sharing, device: str, most: int
) -> Iterable[Problem]:
    """What the device cannot do, whatever the limits add up to."""
    key = "replicas" if entry.replicas is not None else "shares" if entry.shares else "clients"
    path = f"{entry.path}.{key}"
    limited = any(s.memory is not None or s.threads is not None for s in sharing.shares)
    if limited and _before_volta(gpu):
        yield Problem(
            Code.UNSUPPORTED,
            f"{gpu.title} cannot hold clients of MPS to limits: that takes "
            f"compute capability {VOLTA[0]}.{VOLTA[1]}, and it has "
            f"{gpu.compute_capability[0]}.{gpu.compute_capability[1]}",
            "write clients: {}, which limits no client, or use timeSlice",
            gpu=gpu.uuid,
            path=path,
        )
    count = len(sharing.slots)
    if count > most:
        yield Problem(
            Code.DOES_NOT_FIT,
            f"found {count} clients in all, but {device} serves at most {most} at once",
            f"write at most {most}",
            gpu=gpu.uuid,
            path=path,
        )


# --- accounts ---------------------------------------------------------------------------------


def _account(entry: MpsEntry, host: Host, problems: list[Problem]) -> Account | None:
    text = entry.user if entry.user is not None else host.default_user
    account = _account_of(text, host)
    if account is None:
        path = entry.path if entry.user is None else f"{entry.path}.user"
        where = "the setting mps.user says" if entry.user is None else "found"
        problems.append(
            Problem(
                Code.INVALID_VALUE,
                f"{where} {text!r}, and this host knows no such user",
                "write a uid such as 1000, a uid:gid, or any",
                path=path,
            )
        )
    elif entry.user is None and account.uid == 0:
        problems.append(
            Problem(
                Code.INVALID_VALUE,
                f"MPS would run as root, because the setting mps.user says {text!r}",
                "if that is meant, say it in the plan: user: "
                f"{ANY_USER if account.any_user else 0}",
                path=entry.path,
            )
        )
        return None
    return account


def _account_of(text: str, host: Host) -> Account | None:
    if text == ANY_USER:
        return Account(0, 0, any_user=True)
    known = host.accounts.get(text)
    if known is not None:
        return known
    ids = _IDS.fullmatch(text)
    if ids is None:
        return None
    uid = int(ids[1])
    return Account(uid, int(ids[2]) if ids[2] else uid)


# --- time slices ------------------------------------------------------------------------------


def time_slice_of(entry: PlanEntry, gpu: Gpu, problems: list[Problem]) -> TimeSlice | None:
    """The interval; there is one for each GPU, so the parts of a GPU have none of their own."""
    if entry.time_slice is None:
        return None
    path = f"{entry.path}.timeSlice"
    found, remedy = "", ""
    if entry.mps is not None:
        found = "found mps and timeSlice; a device is shared in one way or the other"
        remedy = "drop one of them"
    elif isinstance(entry.mig, MigLayout | MigEnabled):
        found = "found timeSlice beside mig: the interval is one of a whole GPU outside MIG mode"
        remedy = "drop timeSlice, or write mig: disabled"
    elif entry.mig is None and gpu.mig is not None and gpu.mig.current:
        found = (
            f"GPU {gpu.index} is in MIG mode, and the interval is one of a whole GPU outside MIG "
            "mode"
        )
        remedy = "write mig: disabled beside timeSlice, or leave this GPU out"
    if found:
        problems.append(Problem(Code.INVALID_VALUE, found, remedy, gpu=gpu.uuid, path=path))
        return None
    return TimeSlice(entry.time_slice)
