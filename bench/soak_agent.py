"""An agent that counts its own memory: `python -m bench.soak_agent SECONDS run --simulate ...`.

Every SECONDS one line of JSON on standard output: the rounds of samples so far, objects that the
garbage collector follows, blocks that Python's allocator has given out, and KiB: what malloc has
given out and what it holds for that, what is resident of anonymous memory and of files.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import json
import sys
import threading
import time

import psutil
import pynvml

from nodeagent.cli import main

TENANT = 2  # the GPU on which processes come and go
ONCE_A_ROUND = "nvmlDeviceGetPowerUsage"  # asked once of each GPU


def _come_and_go() -> None:
    """Another process each time, as tenants' are, and an XID of it now and then."""
    for number in itertools.count():
        time.sleep(0.05)
        if library := pynvml.nvmlLib:
            library.node.release(TENANT)
            library.node.occupy(TENANT, 5_000_000 + number, memory=number % 1000 << 20)
            if number % 20 == 0:
                library.node.xid(TENANT, 31)


def _objects() -> int:
    """How many objects the garbage collector follows.

    In one call from C to C, so that no other thread runs while the list holds a reference to a
    tuple that is being made: its maker would fail with a SystemError.
    """
    return next(map(len, map(gc.get_objects, [None])))


class _Malloc(ctypes.Structure):
    """glibc's `struct mallinfo2`, of all arenas: `uordblks` is given out, `hblkhd` mapped alone."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def _malloc() -> dict[str, int]:
    """KiB that malloc has given out, and that it has from the kernel."""
    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = _Malloc
    found = ask()
    return {
        "malloc, given out, KiB": (found.uordblks + found.hblkhd) // 1024,
        "malloc, held, KiB": (found.arena + found.hblkhd) // 1024,
    }


def _resident(own: psutil.Process) -> dict[str, int]:
    """KiB in memory, by what they are of."""
    maps = own.memory_maps(grouped=True)
    files = sum(one.rss for one in maps if not one.path.startswith("["))
    every = sum(one.rss for one in maps)
    return {
        "resident, anonymous, KiB": (every - files) // 1024,
        "resident, of files, KiB": files // 1024,
    }


def memory() -> dict[str, int]:
    """What this process has of it, after a garbage collection."""
    gc.collect()
    return {
        "objects": _objects(),
        "blocks": sys.getallocatedblocks(),
        **_malloc(),
        **_resident(psutil.Process()),
    }


def _count(seconds: float) -> None:
    while True:
        time.sleep(seconds)
        library = pynvml.nvmlLib
        if library is None:
            continue
        rounds = library.node.journal.total(ONCE_A_ROUND) // len(library.node.cards)
        found = {"rounds": rounds, **memory()}
        sys.stdout.write(f"{json.dumps(found)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    counting = threading.Thread(target=_count, args=(float(sys.argv[1]),), daemon=True)
    counting.start()
    threading.Thread(target=_come_and_go, daemon=True).start()
    sys.exit(main(sys.argv[2:]))
