"""From the plan's `mps` to what each client may have.

Nothing is ever rounded up: equal shares are cut down to what the limits can express, and what was
written but cannot be expressed is refused with the nearest value below.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from nodeagent.plan.desired import MpsEntry, ShareEntry
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.shares import (
    ALL_THREADS,
    LEAST_THREADS,
    MIB,
    Share,
    Sharing,
    percentage_text,
    written_bytes,
)

REPLICA = "replica"  # the name of the one share that `replicas` means
CLIENTS = "clients"  # the name of the one share that `clients` means


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
