"""What is seen of a client process.

All of it is the process' own to choose, but for its user and its start: it may be of any length
and hold any bytes. So little is kept, and nothing is shown that could act on a terminal.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from nodeagent.mps.clients.assess import ClientFacts
from nodeagent.mps.shares import SLOT_VARIABLE
from nodeagent.processes import Process, environment_of, inspect, is_gone, name_of

LONGEST_VALUE = 4096  # characters that are kept of one variable

_PIPE_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"
_OF_MPS = "CUDA_MPS_"
_LARGEST_CGROUP = 65_536  # bytes
_CONTAINER = re.compile(r"[0-9a-f]{64}")


def read_clients(pids: Iterable[int]) -> tuple[ClientFacts, ...]:
    """Those that are still there, in this order. Blocks for some 0.2 ms each."""
    found = (_read_client(pid) for pid in pids)
    return tuple(facts for facts in found if facts is not None)


def _read_client(pid: int) -> ClientFacts | None:
    found = inspect(pid)
    if not isinstance(found, Process):
        return None
    facts = ClientFacts(
        pid=pid,
        uid=found.uids.effective,  # the one that the daemon checks
        command=name_of(pid),
        start_time=found.identity.create_time,
        environment=_environment(pid),
        container=_container(pid),
    )
    # Checked again: all of this was read of one process, and its pid was not reused.
    return None if is_gone(found.identity) else facts


def _environment(pid: int) -> Mapping[str, str] | None:
    """The variables of MPS; None when they cannot be known.

    Programs that rename themselves overwrite what is read here. A client has come to a daemon
    whose pipe directory is never the default, so an environment that does not name any is not the
    one that it had.
    """
    found = environment_of(pid, _OF_MPS, SLOT_VARIABLE)
    if not isinstance(found, Mapping) or _PIPE_DIRECTORY not in found:
        return None
    return {
        name[:100]: _text(value)
        for name, value in found.items()
        if name.startswith(_OF_MPS) or name == SLOT_VARIABLE
    }


def _container(pid: int) -> str:
    try:
        with Path(f"/proc/{pid}/cgroup").open("rb") as file:
            return container_in(file.read(_LARGEST_CGROUP).decode("ascii", errors="replace"))
    except OSError:
        return ""


def container_in(cgroup: str) -> str:
    """The short id of the container that has this cgroup file, as `docker ps` shows it; "" for
    none.
    """
    ids = _CONTAINER.findall(cgroup)
    return ids[-1][:12] if ids else ""


def _text(value: str) -> str:
    return os.fsencode(value)[:LONGEST_VALUE].decode(errors="replace")
