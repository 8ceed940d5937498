"""Finds the daemons that an earlier agent left, by its records, and tells what they are.

Only a process that proves to be the very one is taken: by pid and start time, what it runs, its
user and its pipe directory. An agent may die between starting a process and writing down which;
then the one daemon of that pipe directory is it, if all the rest agrees.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from pathlib import Path

from nodeagent.errors import NodeagentError
from nodeagent.mps.control.client import ControlClient
from nodeagent.mps.control.query import Seen, ask_everything, differences
from nodeagent.mps.files.directories import directories_of
from nodeagent.mps.files.records import Record, RecordUnusable, read_records
from nodeagent.mps.files.socket_gate import BackDoor
from nodeagent.mps.files.sockets import DaemonSockets
from nodeagent.mps.launch.process import DaemonProcess, NotTheDaemon, Programs, adopt
from nodeagent.mps.lifecycle.model import Phase
from nodeagent.mps.processes import CONTROL, Identity, identify, processes_of
from nodeagent.mps.shares import DaemonSpec, spec_for
from nodeagent.mps.unrecorded import unrecorded
from nodeagent.plan.observed import IDLE, MpsDaemon, Usage, User
from nodeagent.plan.shares import WantedMps

_ANSWER = 5.0  # seconds that a one-shot command waits for a daemon


def found_process(spec: DaemonSpec, noted: Identity | None) -> DaemonProcess | None:
    """The process that was noted, or that nobody came to note; None when there is none that is
    surely the daemon. Reads all of /proc where the record does not say which.
    """
    candidates = [noted] if noted is not None else []
    if noted is None or not _is_still(noted):
        candidates = list(processes_of(spec.pipe_directory, CONTROL))
    for identity in candidates:
        try:
            return adopt(identity, spec)
        except NotTheDaemon:
            continue
    return None


def _is_still(noted: Identity) -> bool:
    return identify(noted.pid) == noted


def specs_of(run_dir: Path, record: Record) -> tuple[DaemonSpec, DaemonSpec]:
    """What its process runs as, and what is wanted. Raises NodeagentError."""
    made = directories_of(run_dir, record.device)

    def spec(wanted: WantedMps) -> DaemonSpec:
        return spec_for(wanted, record.device, pipe_directory=made.pipe, log_directory=made.log)

    return spec(record.runs or record.wanted), spec(record.wanted)


# --- for who only looks -----------------------------------------------------------------------


async def survey(run_dir: Path, *, programs: Programs, ask: bool) -> Mapping[str, MpsDaemon]:
    """The daemons that an agent left or has, by device; nothing is touched.

    With `ask` each is asked: only then can one be Ready, namely when its limits were read back.
    Without it, clients are not known either. Raises NodeagentError.
    """

    def control_client(pipe_directory: str, log_directory: str) -> ControlClient:
        return ControlClient(
            programs.control,
            pipe_directory=pipe_directory,
            log_directory=log_directory,
            path=programs.path,
            deadline=_ANSWER,
            chance=random.SystemRandom().random,
        )

    found: dict[str, MpsDaemon] = {}
    for read in await asyncio.to_thread(lambda: list(read_records(run_dir))):
        record: Record | None
        if isinstance(read, RecordUnusable):
            record = await unrecorded(run_dir, read.device, control_client)
        else:
            record = read
        if record is not None:
            found[record.device] = await _surveyed(run_dir, record, control_client, ask=ask)
    return found


async def _surveyed(
    run_dir: Path,
    record: Record,
    control_client: Callable[[str, str], ControlClient],
    *,
    ask: bool,
) -> MpsDaemon:
    runs, wanted = specs_of(run_dir, record)
    process = found_process(runs, record.process)
    if process is None:
        return _without_process(record)
    door = BackDoor(runs.pipe_directory)
    impostor = DaemonSockets(door, process.identity).impostor()
    pid = process.pid
    process.close()
    if impostor:
        unknown = Usage(known=False, reason=impostor)
        return MpsDaemon(record.wanted, Phase.FAULT, impostor, pid, (), unknown)
    if not ask:
        unknown = Usage(known=False, reason="its daemon was not asked")
        return MpsDaemon(record.wanted, Phase.LIMITING, "was not asked", pid, (), unknown)
    control = control_client(door.directory, runs.log_directory)
    try:
        seen = await ask_everything(control, ())
    except NodeagentError as error:
        unknown = Usage(known=False, reason=error.message)
        return MpsDaemon(record.wanted, Phase.FAULT, error.message, pid, (), unknown)
    finally:
        await control.aclose()
    wrong = differences(seen, wanted)
    phase = Phase.LIMITING if wrong else Phase.READY
    servers = tuple(server.pid for server in seen.servers)
    return MpsDaemon(record.wanted, phase, "; ".join(wrong), pid, servers, usage_of(seen))


def _without_process(record: Record) -> MpsDaemon:
    if record.drained:
        return MpsDaemon(record.wanted, Phase.DOWN, "drained on request")
    return MpsDaemon(record.wanted, Phase.BACKOFF, "its process is gone")


def usage_of(seen: Seen) -> Usage:
    """Who uses a device through its daemon."""
    if not seen.knows_clients:
        return Usage(known=False, reason="its MPS server is busy and tells nothing of its clients")
    if not seen.clients:
        return IDLE
    return Usage(tuple(User(pid, source="mps") for _, pid in seen.clients))
