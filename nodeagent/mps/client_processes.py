"""What /proc tells of a client process.

All of it is the process' own to choose, but for its user and its start: it may be of any length
and hold any bytes. So little is read, less is kept, and nothing is shown that could act on a
terminal.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from nodeagent.mps.clients import ClientFacts
from nodeagent.mps.shares import SLOT_VARIABLE

LARGEST_ENVIRONMENT = 8 * 1024**2  # bytes; the kernel's limit is 6 MiB, arguments included
LONGEST_VALUE = 4096  # characters that are kept of one variable

_PIPE_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"
_OF_MPS = b"CUDA_MPS_"
_CONTAINER = re.compile(r"[0-9a-f]{64}")


def read_clients(pids: Iterable[int], proc_root: Path) -> tuple[ClientFacts, ...]:
    """Those that are still there, in this order. Blocks for some 0.2 ms each."""
    found = (_read_client(pid, proc_root) for pid in pids)
    return tuple(facts for facts in found if facts is not None)


def start_time_of(pid: int, proc_root: Path) -> int | None:
    """In clock ticks since boot; None when it is gone, or a zombie."""
    found = _name_and_start(proc_root / str(pid))
    return found[1] if found else None


def _read_client(pid: int, proc_root: Path) -> ClientFacts | None:
    proc = proc_root / str(pid)
    found = _name_and_start(proc)
    if found is None:
        return None
    name, start = found
    try:
        environment = _environment(proc)
    except (FileNotFoundError, ProcessLookupError):
        return None
    facts = ClientFacts(
        pid=pid,
        uid=_user(proc),
        command=name,
        start_time=start,
        environment=environment,
        container=_container(proc),
    )
    # Read once more: all of this was of one process, not of two that had the same number.
    return facts if start_time_of(pid, proc_root) == start else None


def _name_and_start(proc: Path) -> tuple[str, int] | None:
    try:
        # The command in brackets may contain anything, even brackets, blanks and line ends.
        head, _, rest = (proc / "stat").read_bytes().rpartition(b")")
        fields = rest.split()
        if fields[0] in {b"Z", b"X"}:
            return None
        return _printable(head.partition(b"(")[2]), int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


def _user(proc: Path) -> int | None:
    """The effective one, which the daemon goes by."""
    try:
        status = (proc / "status").read_bytes()
    except OSError:
        return None
    match = re.search(rb"^Uid:\s+\d+\s+(\d+)", status, re.MULTILINE)
    return int(match[1]) if match else None


def _environment(proc: Path) -> Mapping[str, str] | None:
    """The variables of MPS; None when they cannot be known.

    Programs that rename themselves overwrite what is read here. A client has come to a daemon
    whose pipe directory is never the default, so an environment that does not name any is not the
    one that it had.
    """
    try:
        with (proc / "environ").open("rb") as file:
            text = file.read(LARGEST_ENVIRONMENT + 1)
    except (FileNotFoundError, ProcessLookupError):
        raise
    except OSError:
        return None
    if len(text) > LARGEST_ENVIRONMENT:
        return None
    found: dict[str, str] = {}
    for entry in text.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and (name.startswith(_OF_MPS) or name == SLOT_VARIABLE.encode()):
            # The first of several is the one that a program is given by the C library.
            found.setdefault(os.fsdecode(name)[:100], _text(value))
    return found if _PIPE_DIRECTORY in found else None


def _container(proc: Path) -> str:
    """The short id of the container that it runs in, as `docker ps` shows it; "" for none."""
    try:
        with (proc / "cgroup").open("rb") as file:
            text = file.read(65_536).decode("ascii", errors="replace")
    except OSError:
        return ""
    ids = _CONTAINER.findall(text)
    return ids[-1][:12] if ids else ""


def _text(value: bytes) -> str:
    return value[:LONGEST_VALUE].decode(errors="replace")


def _printable(value: bytes) -> str:
    return "".join(c if c.isprintable() else "?" for c in value.decode(errors="replace"))
