"""Preflight: what MPS needs on this machine, and who else runs it here."""

import os
import resource
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from nodeagent.api.limits import ALL_CONNECTIONS
from nodeagent.cli import event_loop
from nodeagent.cli.checks import PreflightFinding, error, ok, warning
from nodeagent.cli.checks.machine import is_visible
from nodeagent.errors import NodeagentError
from nodeagent.files.open_directory import PathRefused
from nodeagent.mps.files.directories import DEFAULT_DIRECTORIES, may_pass, pipe_directory
from nodeagent.mps.launch.launcher import OPEN_FILES
from nodeagent.mps.launch.probing import probe
from nodeagent.mps.processes import CONTROL, SERVER
from nodeagent.mps.programs import Programs
from nodeagent.plan.desired import PlanDocument
from nodeagent.plan.shares import ANY_USER, Account
from nodeagent.processes import Hidden, commands, environment_of

_CHECK = "mps"
_MIB = 1024**2
_PROBE_TIMEOUT = 5.0  # seconds for a daemon that is started for a look
_MIN_SHM = 256 * _MIB  # bytes; containers have 64 MiB by default, which is used up fast
_ANY_DEVICE = "MIG-00000000-0000-0000-0000-000000000000"
_DAEMON_FLAGS = frozenset({"-d", "-f", "--daemon", "--foreground"})
_PIPES = "CUDA_MPS_PIPE_DIRECTORY"
_UNREAD = "a directory that may not be read"


def users_of(document: PlanDocument | None, default: str) -> frozenset[str]:
    """The users, as the plan writes them, as whom it runs MPS; empty where it has no MPS."""
    entries = document.entries if document else ()
    return frozenset(mps.user or default for entry in entries for mps in entry.mps_entries())


def mps_findings(
    programs: Programs, run_dir: Path, *, users: frozenset[str], private_shm: bool = False
) -> Iterator[PreflightFinding]:
    """All about MPS on the machine's own GPUs; one line where it is neither planned nor installed.

    `users` are the plan's: what is missing is an error only where there are any. `private_shm`: no
    daemon has the /dev/shm that is seen here.
    """
    wanted = bool(users)
    control = shutil.which(programs.control[0], path=programs.path)
    if control is None and not wanted:
        yield ok(_CHECK, f"{programs.control[0]} is not installed, and the plan has no mps")
        return
    yield from program_findings(programs, wanted=wanted, any_user=ANY_USER in users)
    if not private_shm:
        yield shm_finding()
    yield open_files_finding(wanted=wanted)
    yield path_finding(run_dir, wanted=wanted)
    yield from foreign_findings(run_dir, running_daemons())


# --- the programs ---------------------------------------------------------------------------------


def program_findings(
    programs: Programs, *, wanted: bool, any_user: bool = False
) -> Iterator[PreflightFinding]:
    """Control program and server, both on the PATH that daemons have; then what they can do, which
    for `any_user` has to include the multi-user server.
    """
    complete = True
    for check, name in (("mps control", programs.control[0]), ("mps server", SERVER)):
        path = shutil.which(name, path=programs.path)
        if path is not None:
            yield ok(check, f"found as {path}")
            continue
        complete = False
        missing = NodeagentError.of("mpsProgramMissing", name=name, path=programs.path)
        yield (error if wanted else warning)(check, missing)
    if complete:
        yield _daemon_finding(programs, wanted=wanted, any_user=any_user)


def _daemon_finding(programs: Programs, *, wanted: bool, any_user: bool) -> PreflightFinding:
    """What a daemon that is started for a moment can do, by what it does and not by its name."""
    check = "mps daemon"
    # In the shortest place there is, because socket paths have to be short.
    scratch = Path(tempfile.gettempdir())
    found = event_loop.run(probe(programs, scratch=scratch, deadline=_PROBE_TIMEOUT))
    if found.problems:
        remedy = f"run {programs.control[0]} -f by hand and read its messages"
        return (error if wanted else warning)(check, found.problems[0], remedy)
    if any_user and found.multi_user_flag == "":
        return error(check, NodeagentError.of("noMultiUserServer"))
    can = {None: "not known", "": "no"}.get(found.multi_user_flag, "yes")
    return ok(check, f"starts; multi-user server: {can}")


# --- the machine ----------------------------------------------------------------------------------


def shm_finding(path: Path = Path("/dev/shm")) -> PreflightFinding:  # noqa: S108  only its size is asked
    """Whether there is room for the memory that servers and clients share."""
    check = "mps shm"
    try:
        found = os.statvfs(path)
    except OSError as failure:
        return warning(check, NodeagentError.of("shmUnread", path=path, why=failure.strerror))
    size = found.f_frsize * found.f_blocks
    if size < _MIN_SHM:
        return warning(check, NodeagentError.of("shmSmall", path=path, size=size // _MIB))
    return ok(check, f"{path} has {size // _MIB} MiB")


def open_files_finding(*, wanted: bool, limit: int | None = None) -> PreflightFinding:
    """Servers need many descriptors; `limit` is the hard one, else this process' own."""
    check = "mps open files"
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1] if limit is None else limit
    if hard != resource.RLIM_INFINITY and hard < OPEN_FILES:
        more = ", and the agent takes fewer connections" if hard < ALL_CONNECTIONS else ""
        found = NodeagentError.of("fewOpenFiles", most=hard, needed=OPEN_FILES, more=more)
        return error(check, found) if wanted else warning(check, found)
    return ok(check, f"{'any number' if hard == resource.RLIM_INFINITY else hard} may be open")


def path_finding(run_dir: Path, *, wanted: bool) -> PreflightFinding:
    """Whether the paths of the daemons' sockets are short and safe enough below run.dir."""
    check = "mps sockets"
    try:
        pipes = pipe_directory(run_dir, _ANY_DEVICE)
    except PathRefused as refusal:
        return (error if wanted else warning)(check, refusal)
    return ok(check, f"{Path(pipes).parents[1]} is short enough for sockets")


def user_findings(
    accounts: Mapping[str, Account], users: Iterable[str], run_dir: Path
) -> Iterator[PreflightFinding]:
    """Whether the plan's users are known, and may pass every directory down to the sockets."""
    check = "mps user"
    for user in sorted(set(users)):
        account = Account(0, 0) if user == ANY_USER else accounts.get(user)
        if account is None:
            yield error(check, NodeagentError.of("noUser", user=user))
            continue
        levels, uid, gid = _existing(run_dir), account.uid, account.gid
        closed = next((level for level in levels if not may_pass(level.stat(), uid, gid)), None)
        if closed is None:
            yield ok(check, f"{user} is uid {account.uid} and reaches {run_dir}")
        else:
            yield error(check, NodeagentError.of("userMayNotPass", user=user, path=closed))


def _existing(path: Path) -> Iterator[Path]:
    """The directories from the root down, as far as they exist."""
    whole = Path(os.path.realpath(path))
    return (level for level in (*reversed(whole.parents), whole) if is_visible(level))


# --- others ---------------------------------------------------------------------------------------


class FoundDaemon(NamedTuple):
    """A control daemon of MPS, the agent's or another one."""

    pid: int
    pipes: str  # "" when its environment may not be read


def foreign_findings(
    run_dir: Path, daemons: Iterable[FoundDaemon], root: Path = Path("/")
) -> list[PreflightFinding]:
    """Daemons that are not the agent's, and what they left where every program looks; `root` is
    where /tmp lies.
    """
    check = "mps daemons"
    foreign = [d for d in daemons if not d.pipes.startswith(f"{run_dir}/mps/")]
    served = {daemon.pipes for daemon in foreign}
    sockets = ((d, root / d.removeprefix("/") / "control") for d in DEFAULT_DIRECTORIES)
    left = [path for path, socket in sockets if path not in served and socket.exists()]
    found = [
        warning(check, NodeagentError.of("foreignDaemon", pid=one.pid, where=one.pipes or _UNREAD))
        for one in foreign
    ]
    found += [warning(check, NodeagentError.of("leftByDaemon", path=path)) for path in left]
    return found or [ok(check, "no other MPS daemon runs on this machine")]


def running_daemons() -> list[FoundDaemon]:
    """Control programs that were started as daemons; front-ends are none."""
    found = []
    for pid, words in sorted(commands().items()):
        names = {PurePosixPath(word).name for word in words[:3]}
        if CONTROL in names and _DAEMON_FLAGS & set(words):
            found.append(FoundDaemon(pid, _pipes(pid)))
    return found


def _pipes(pid: int) -> str:
    """The pipe directory in its environment; the default one where it says none."""
    variables = environment_of(pid, _PIPES)
    if variables is None or isinstance(variables, Hidden):
        return ""
    return variables.get(_PIPES) or DEFAULT_DIRECTORIES[0]
