"""Flags of `nvidia-cuda-mps-control`: by them it becomes a daemon, or a front-end after all."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from nodeagent.simulation.mps import processes, protocol
from nodeagent.simulation.mps.daemon import Daemon, Start
from nodeagent.simulation.mps.files import Files, StartFailed, log_directory, open_logs
from nodeagent.simulation.mps.knobs import Watched
from nodeagent.simulation.mps.log_lines import STDOUT, Log
from nodeagent.simulation.mps.versions import VERSIONS, Version

_BACKGROUND = {"-d", "--daemon"}
_FOREGROUND = {"-f", "--foreground"}
_MULTIUSER = {"-multiuser-server", "-M", "-m", "--multiuser"}
_HELP = {"-h", "--help"}
_HELP_TEXT = """\
CUDA MPS Control for Linux/Unix. (simulated)

  Lets several CUDA processes share one GPU context.
  See the manual page of nvidia-cuda-mps-control for more.

"""


def run(front_end: Callable[[], int], *, version: str, installation: str) -> int:
    """Returns the exit status; `front_end` is what it is without flags of a daemon. `installation`
    is the folder that knobs are looked up in.
    """
    wanted = _read_flags(sys.argv[1:], VERSIONS[version])
    if isinstance(wanted, int):
        return wanted
    if wanted is None:
        return front_end()
    knobs = Watched(installation, protocol.pipe_directory())
    knobs.look()
    if wanted.multiuser and os.geteuid() != 0:
        print("Only root user may enable -multiuser-server!", flush=True)
        return 1
    if (error := knobs.get("start_error")) is not None:
        return _failed(str(error))
    if not wanted.foreground:
        return _in_background(VERSIONS[version], wanted, knobs)
    try:
        daemon = _begin(VERSIONS[version], wanted, knobs)
    except StartFailed as error:
        return _failed(str(error))
    return daemon.run()


def _read_flags(flags: list[str], version: Version) -> Start | int | None:
    """How to start, an exit status, or None for the front-end."""
    if len(flags) == 1 and flags[0] in _HELP:
        print(_HELP_TEXT, end="", flush=True)
        return 0
    known = {"-d", "-f"} | version.flags
    starts = [flag for flag in flags if flag in _BACKGROUND | _FOREGROUND]
    if not version.strict_flags and (len(flags) > 1 or not starts):
        return None  # whatever else it may be
    if "-v" in flags and "-v" in known:
        print(f"CUDA MPS Control binary version: {version.binary_version}", flush=True)
        return 0
    if len(starts) != 1 or not known.issuperset(flags):
        sys.stderr.write("usage: nvidia-cuda-mps-control [-d | -f] [-h]\n")
        return 1
    return Start(foreground=starts[0] in _FOREGROUND, multiuser=not _MULTIUSER.isdisjoint(flags))


def _begin(version: Version, wanted: Start, knobs: Watched) -> Daemon:
    """Raises StartFailed."""
    processes.become("nvidia-cuda-mps-control")
    try:
        log, server_log = open_logs(foreground=wanted.foreground)
    except OSError:
        print(
            f"Warning: Failed writing log files to directory [{log_directory()}]. "
            "No logs will be available.",
            flush=True,
        )
        nowhere = STDOUT if wanted.foreground else -1
        log, server_log = Log(nowhere, "Control"), Log(nowhere, "Other")
    begun = time.monotonic()
    while time.monotonic() - begun < float(knobs.get("slow_start", 0)):  # may be turned meanwhile
        time.sleep(0.02)
        knobs.look()
    files = Files(
        protocol.pipe_directory(),
        pid_file=version.pid_file,
        slow_sockets=float(knobs.get("slow_sockets", 0)),
    )
    return Daemon(version, files=files, log=log, server_log=server_log, knobs=knobs, start=wanted)


def _in_background(version: Version, wanted: Start, knobs: Watched) -> int:
    """The parent ends when the daemon listens, or when it could not start."""
    theirs, ours = os.pipe()
    if os.fork():
        os.close(ours)
        status = os.read(theirs, 1)
        return 0 if status == b"+" else 1
    os.setsid()
    os.close(theirs)
    try:
        daemon = _begin(version, wanted, knobs)
    except StartFailed as error:
        _failed(str(error))
        os.write(ours, b"-")
        os._exit(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    os.write(ours, b"+")
    os.close(ours)
    os._exit(daemon.run())


def _failed(why: str) -> int:
    if why:
        print(why, flush=True)
    return 1
