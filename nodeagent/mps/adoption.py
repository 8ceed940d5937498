"""Finds the daemons that an earlier agent left, by its records, or without them where a record
cannot be used.

Only a process that proves to be the very one is taken: by pid and start time, program, user and
pipe directory. An agent may die between starting a process and recording it; then the one daemon of
that pipe directory is it, if all the rest agrees.

A daemon whose record is unusable is recognised by its command line, pipe directory, user and
sockets, so that it does not keep its device from every plan. Its limits are those in force. Which
shares they were for is not known, so nothing is published of it and none of its clients is judged
until a plan wants something of it.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from nodeagent.errors import NodeagentError
from nodeagent.mps.commands import MemoryLimit
from nodeagent.mps.control import ControlClient, Seen, ask_everything, differences
from nodeagent.mps.files.directories import is_device_name, owner_of, spec_in
from nodeagent.mps.files.records import FOLDER, Record, RecordUnusable, read_records
from nodeagent.mps.files.sockets import DaemonSockets, is_reachable
from nodeagent.mps.launch.launcher import DaemonProcess, adopt
from nodeagent.mps.lifecycle.model import DaemonPhase
from nodeagent.mps.processes import CONTROL, MpsProcess, mps_process, mps_processes, processes_of
from nodeagent.mps.programs import Programs
from nodeagent.mps.shares import DaemonSpec
from nodeagent.plan.observed import DeviceDaemon
from nodeagent.plan.shares import ALL_THREADS, MAX_DEVICES, Account, Share, Sharing, WantedMps
from nodeagent.plan.users import Usage
from nodeagent.processes import command_of, environment_of, groups_of
from nodeagent.structs import replace

SHARE = "unrecorded"  # the name of the one share that such a daemon is taken to have
_DEVICES = "CUDA_VISIBLE_DEVICES"
_MULTI_USER = frozenset({"-multiuser-server", "-M", "-m", "--multiuser"})


async def unrecorded(
    run_dir: Path, device: str, control_client: Callable[..., ControlClient]
) -> Record | None:
    """The record that the device's daemon would have; None when none runs there for sure.

    `control_client` gets `pipe_directory` and `log_directory`. Raises NodeagentError where the
    device can have no directories.
    """
    left = left_by(run_dir, device)
    process = await asyncio.to_thread(_process, left)
    if process is None:
        return None
    pipes = DaemonSockets(left.pipe_directory).directory
    control = control_client(pipe_directory=pipes, log_directory=left.log_directory)
    devices = await asyncio.to_thread(_devices, process, device)
    try:
        seen = await ask_everything(control, devices=max(len(devices), 1), status=False)
    except NodeagentError:  # its supervisor meets the same error and acts on it
        seen = None
    account = await asyncio.to_thread(_account, process)
    wanted = WantedMps(Sharing((_share(seen),), "report"), account, devices=devices)
    return Record(device, wanted, runs=wanted, process=process, unrecorded=True)


def left_by(run_dir: Path, device: str) -> DaemonSpec:
    """What is known of the daemon that is gone: whose it was, and where."""
    wanted = WantedMps(Sharing((_share(None),), "report"), Account(0, 0))
    spec = spec_in(run_dir, device, wanted)
    uid = _owner(spec)
    return replace(spec, wanted=replace(wanted, account=Account(uid, uid)))


def lost_daemons(run_dir: Path) -> tuple[MpsProcess, ...]:
    """Daemons that have their directories below this one, and whose sockets were deleted. Any user
    can have a process that looks so, but none with words of their own. Reads all of /proc.
    """
    found = [(one, Path(one.pipe_directory).parent) for one in mps_processes()]
    return tuple(
        one
        for one, directory in found
        if one.program == CONTROL
        and directory.parent == run_dir / FOLDER
        and is_device_name(directory.name)
        and not is_reachable(one)
    )


def _process(left: DaemonSpec) -> MpsProcess | None:
    """The one daemon of the user who has the directories, at its own sockets. A name and an
    environment prove nothing: a process without sockets would keep the device for ever.
    """
    users, pipes = {0, left.uid}, left.pipe_directory
    found = [process for process in processes_of(pipes, CONTROL) if process.uid in users]
    own = [one for one in found if DaemonSockets(pipes).prove(one)]
    return own[0] if len(own) == 1 else None


def _owner(left: DaemonSpec) -> int:
    """The user whose daemon has these directories; ours where there are none."""
    with suppress(OSError):
        return owner_of(left.log_directory)
    return os.geteuid()


def _account(process: MpsProcess) -> Account:
    groups = groups_of(process.pid)
    gid, others = groups if isinstance(groups, tuple) else (process.uid, ())
    words = command_of(process.pid)
    if isinstance(words, tuple) and process.uid == 0 and not _MULTI_USER.isdisjoint(words):
        return Account(0, 0, any_user=True)
    return Account(process.uid, gid, tuple(group for group in others if group != gid))


def _devices(process: MpsProcess, primary: str) -> tuple[str, ...]:
    """The GPUs of a daemon for several."""
    found = environment_of(process.pid, _DEVICES)
    names = found.get(_DEVICES, "").split(",") if isinstance(found, Mapping) else []
    return tuple(names[:MAX_DEVICES]) if names[0:1] == [primary] and len(names) > 1 else ()


def _share(seen: Seen | None) -> Share:
    memory = threads = None
    limits = [one for one in seen.memory_limits if isinstance(one, MemoryLimit)] if seen else []
    if seen is not None and len(limits) == len(seen.memory_limits):
        memory = max(1, *(limit.mebibytes for limit in limits))
    if seen is not None and isinstance(seen.threads, float) and seen.threads < ALL_THREADS:
        threads = seen.threads
    return Share(SHARE, None, memory, threads)


_ANSWER = 5.0  # seconds that a one-shot command waits for a daemon


async def found_process(spec: DaemonSpec, noted: MpsProcess | None) -> DaemonProcess | None:
    """The process that was recorded, or was not recorded in time; None when there is none that is
    surely the daemon. Reads all of /proc where the record does not say which.
    """
    candidates = [noted] if noted is not None else []
    if noted is None or await asyncio.to_thread(mps_process, noted.pid) != noted:
        found = await asyncio.to_thread(processes_of, spec.pipe_directory, CONTROL)
        candidates = list(found)
    for identity in candidates:
        if process := await adopt(identity, spec):
            return process
    return None


async def proven_process(spec: DaemonSpec, sockets: DaemonSockets) -> DaemonProcess | None:
    """The daemon there that listens at its sockets; None where that is not proven."""
    process, is_proven = None, False
    try:
        with suppress(OSError, RuntimeError):  # too few descriptors or threads
            process = await found_process(spec, None)
            if process is not None:
                is_proven = await asyncio.to_thread(sockets.prove, process.identity)
    finally:
        if process is not None and not is_proven:
            process.close()
    return process if is_proven else None


async def survey(run_dir: Path, *, programs: Programs) -> Mapping[str, DeviceDaemon]:
    """The daemons that an agent left or has, by device, asked for their limits and clients; nothing
    is touched. Raises NodeagentError.
    """
    control_client = partial(ControlClient, programs, deadline=_ANSWER)
    found: dict[str, DeviceDaemon] = {}
    for read in await asyncio.to_thread(lambda: list(read_records(run_dir))):
        record: Record | None = (
            await unrecorded(run_dir, read.device, control_client)
            if isinstance(read, RecordUnusable)
            else read
        )
        if record is not None:
            daemon = await _surveyed(run_dir, record, control_client)
            found |= dict.fromkeys(record.wanted.devices_on(record.device), daemon)
    return found


async def _surveyed(
    run_dir: Path, record: Record, control_client: Callable[..., ControlClient]
) -> DeviceDaemon:
    runs = spec_in(run_dir, record.device, record.runs or record.wanted)
    wanted = spec_in(run_dir, record.device, record.wanted)
    process = await found_process(runs, record.process)
    if process is None:
        why = "drained on request" if record.drained else "its process is gone"
        return DeviceDaemon(
            record.wanted, DaemonPhase.DOWN if record.drained else DaemonPhase.BACKOFF, why
        )
    sockets = DaemonSockets(runs.pipe_directory)
    impostor = sockets.impostor(process.identity)
    pid = process.pid
    process.close()

    seen, fault = None, impostor
    if not fault:
        control = control_client(pipe_directory=sockets.directory, log_directory=runs.log_directory)
        try:
            seen = await ask_everything(control, devices=len(wanted.devices))
        except NodeagentError as error:
            fault = error.message
    if seen is None:
        unknown = Usage(known=False, reason=fault)
        return DeviceDaemon(record.wanted, DaemonPhase.FAULT, fault, pid, (), unknown)
    wrong = differences(seen, wanted)
    phase = DaemonPhase.LIMITING if wrong else DaemonPhase.READY
    servers = seen.servers_of(runs.uid)
    return DeviceDaemon(record.wanted, phase, "; ".join(wrong), pid, servers, seen.usage)
