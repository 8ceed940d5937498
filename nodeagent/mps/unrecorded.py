"""Finds out what a daemon is whose record cannot be used, so that it does not keep its device from
every plan: by its command line, its pipe directory, its user and its sockets.

Its limits are those that it has. Which shares they were for is not known, so nothing is published
of it and none of its clients is judged until a plan wants something of it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from nodeagent.errors import NodeagentError
from nodeagent.mps.control.client import ControlClient
from nodeagent.mps.control.query import Seen, ask_everything
from nodeagent.mps.control.replies import MemoryLimit
from nodeagent.mps.files.directories import Directories, directories_of
from nodeagent.mps.files.records import Record
from nodeagent.mps.files.socket_gate import BackDoor
from nodeagent.mps.files.sockets import DaemonSockets
from nodeagent.mps.processes import CONTROL, Identity, processes_of
from nodeagent.mps.shares import DaemonSpec
from nodeagent.plan.shares import ALL_THREADS, Account, Share, Sharing, WantedMps
from nodeagent.processes import command_of, groups_of

SHARE = "unrecorded"  # the name of the one share that such a daemon is taken to have
_MULTI_USER = frozenset({"-multiuser-server", "-M", "-m", "--multiuser"})
_MEBIBYTES = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}


async def unrecorded(
    run_dir: Path, device: str, control_client: Callable[[str, str], ControlClient]
) -> Record | None:
    """The record that the device's daemon would have; None when none runs there for sure.

    `control_client` gets the pipe directory and the log directory. Raises NodeagentError where the
    device can have no directories.
    """
    made = directories_of(run_dir, device)
    process = await asyncio.to_thread(_process, made)
    if process is None:
        return None
    control = control_client(BackDoor(made.pipe).directory, made.log)
    try:
        seen = await ask_everything(control, (), status=False)
    except NodeagentError:  # its supervisor meets the same error and acts on it
        seen = None
    finally:
        await control.aclose()
    wanted = WantedMps(Sharing((_share(seen),), "report"), _account(process))
    return Record(device, wanted, runs=wanted, process=process, unrecorded=True)


def left_by(run_dir: Path, device: str) -> DaemonSpec:
    """What is known of the daemon that is gone: whose it was, and where."""
    made = directories_of(run_dir, device)
    uid = _owner(made)
    return DaemonSpec(device, uid, uid, made.pipe, made.log, None, ALL_THREADS)


def _process(made: Directories) -> Identity | None:
    """The one daemon of the user who has the directories, at its own sockets. A name and an
    environment prove nothing: a process without sockets would keep the device for ever.
    """
    users = {0, _owner(made)}
    found = [process for process in processes_of(made.pipe, CONTROL) if process.uid in users]
    own = [one for one in found if DaemonSockets(BackDoor(made.pipe), one).proven()]
    return own[0] if len(own) == 1 else None


def _owner(made: Directories) -> int:
    """Whose daemon has these directories: root's where there are none."""
    with suppress(OSError):
        return os.lstat(made.log).st_uid
    return os.geteuid()


def _account(process: Identity) -> Account:
    groups = groups_of(process.pid)
    gid, others = groups if isinstance(groups, tuple) else (process.uid, ())
    words = command_of(process.pid)
    if isinstance(words, tuple) and process.uid == 0 and not _MULTI_USER.isdisjoint(words):
        return Account(0, 0, any_user=True)
    return Account(process.uid, gid, tuple(group for group in others if group != gid))


def _share(seen: Seen | None) -> Share:
    memory = threads = None
    if seen is not None and isinstance(seen.memory_limit, MemoryLimit):
        limit = seen.memory_limit
        memory = max(int(limit.amount * _MEBIBYTES[limit.unit]), 1)
    if seen is not None and isinstance(seen.threads, float) and seen.threads < ALL_THREADS:
        threads = seen.threads
    return Share(SHARE, None, memory, threads)
