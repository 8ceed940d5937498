"""Finds out what the installed MPS can do, by trying it.

Drivers do not say what they support, and a version number proves little. So daemons are started on
scratch directories, each with one flag; those that do not know it end at once. None has clients or
servers, none is at a place where a program would look for it.
"""

import asyncio
import fcntl
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from nodeagent.files.open_directory import DIRECTORY_FLAGS, make_open_directory
from nodeagent.mps.commands import ControlCommand
from nodeagent.mps.control import ControlClient, ControlError
from nodeagent.mps.files.directories import LONGEST_SOCKET, MAX_SOCKET_PATH, SHORTER
from nodeagent.mps.processes import CONTROL, SERVER, mps_process, process_descriptor, processes_of
from nodeagent.mps.programs import Programs
from nodeagent.plan.problems import Code, Problem
from nodeagent.structs import Struct
from nodeagent.waiting import ends_within, uncancelled

_PREFIX = "probe-"
_NEW = 60.0  # seconds in which an empty directory without a lock may be about to be used


@contextmanager
def scratch_in(parent: Path) -> Iterator[Path]:
    """A directory in `parent` for the trials of one probe. Those of probes that were killed are
    removed with all that runs there: locks distinguish them from ones in use. The parent may be
    every user's (/tmp), so no lock of it is waited for. Raises OSError; blocks for milliseconds.
    """
    make_open_directory(parent)  # users of MPS have to pass here
    for old in parent.glob(f"{_PREFIX}*"):
        _sweep(old)
    with ExitStack() as stack:
        made = TemporaryDirectory(prefix=_PREFIX, dir=parent, ignore_cleanup_errors=True)
        folder = Path(stack.enter_context(made))
        stack.enter_context(_locked(folder))
        yield folder


def _sweep(path: Path) -> None:
    """Remove it with all that runs there, unless it is in use or about to be, or another user's."""
    with suppress(OSError):
        found = path.lstat()
        if found.st_uid != os.geteuid():
            return
        if time.time() - found.st_mtime < _NEW and not any(path.iterdir()):
            return  # it is locked before the first trial makes something in it
        with _locked(path):
            for pipe_directory in path.glob("*/pipe"):
                _kill_daemons(str(pipe_directory))
            shutil.rmtree(path)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock the directory for this probe. Raises OSError, also if another has it locked."""
    lock = os.open(path, DIRECTORY_FLAGS)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(lock)


def _kill_daemons(pipe_directory: str) -> None:
    for daemon in processes_of(pipe_directory, CONTROL):
        with process_descriptor(daemon.pid) as descriptor:
            # Looked at once more now that the pid cannot be used again unnoticed.
            if descriptor is not None and mps_process(daemon.pid) == daemon:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)


# In this order: the first one came with 555, the second, which newer drivers' documents prefer,
# after it.
MULTI_USER_FLAGS = ("-multiuser-server", "-M")
_PLAIN = "plain"  # the trial without a flag
_PAUSE = 0.01  # seconds between two looks for a socket
_DYING = 0.2  # seconds for a process to end whose end was noticed otherwise


class Probe(Struct, frozen=True):
    """What was found. `multi_user_flag` asks for a server of all users in the form that is
    understood, "" where none is, None where that is not known; `problems` may say why.
    """

    multi_user_flag: str | None
    problems: tuple[Problem, ...]


async def probe(programs: Programs, *, scratch: Path, deadline: float) -> Probe:
    """Try the installed programs; `deadline` in seconds holds for each start.

    `scratch` is a directory in which another is made, and removed in the end with all that runs
    there; so is what an earlier probe left that was killed. Raises nothing of its own: what went
    wrong is in `problems`.
    """
    made = ExitStack()
    try:
        try:
            entering = asyncio.to_thread(made.enter_context, scratch_in(scratch))
            folder = await uncancelled(entering)
        except OSError as error:
            return _nothing(Problem.of(Code.MPS, "noScratch", folder=scratch, why=error.strerror))
        return await _Trials(programs, folder, deadline).all()
    finally:
        await uncancelled(asyncio.to_thread(made.close))


def _made(folder: Path, opened: ExitStack) -> BinaryIO:
    """A trial's directories, and the file for what its daemon says, which `opened` closes."""
    for directory in (folder, folder / "pipe", folder / "log"):
        directory.mkdir(mode=0o700)
    return opened.enter_context((folder / "said").open("wb"))


class _Trials(Struct, frozen=True):
    """Starts of daemons in `folder`."""

    programs: Programs
    folder: Path
    deadline: float

    async def all(self) -> Probe:
        longest = len(os.fsencode(self.folder)) + len(f"/{_PLAIN}/pipe/{LONGEST_SOCKET}")
        if longest > MAX_SOCKET_PATH:
            return _nothing(Problem.of(Code.MPS, "longPath", folder=self.folder, remedy=SHORTER))
        try:
            accepted, said = await self._try(_PLAIN)
        except OSError as error:
            program = self.programs.control[0]
            return _nothing(Problem.of(Code.MPS, "noProgram", program=program, why=error.strerror))
        if not accepted:
            why = said.strip().splitlines()[-1:] or ["it said nothing"]
            if accepted is None:
                why = [f"it did not answer within {self.deadline:g} s"]
            return _nothing(Problem.of(Code.MPS, "noDaemon", why=why[0][:200]))
        problems: tuple[Problem, ...] = ()
        if shutil.which(SERVER, path=self.programs.path) is None:
            folders = self.programs.path
            problems += (Problem.of(Code.MPS, "noServer", server=SERVER, folders=folders),)
        flag = None
        if os.geteuid() == 0:  # whatever the program is, it refuses everybody but root
            flag = await self._multi_user_flag()
            if flag is None:
                problems += (Problem.of(Code.MPS, "notProbed", seconds=f"{self.deadline:g}"),)
        return Probe(flag, problems)

    async def _multi_user_flag(self) -> str | None:
        """Find the first form that is understood. A start that fails for want of a process or a
        descriptor says nothing of it, as a plain one went well before.
        """
        is_known = True
        for number, flag in enumerate(MULTI_USER_FLAGS):
            accepted: bool | None = None
            with suppress(OSError):
                accepted, _ = await self._try(str(number), flag)
            if accepted:
                return flag
            is_known &= accepted is not None
        return "" if is_known else None

    async def _try(self, name: str, *flags: str) -> tuple[bool | None, str]:
        """Start a daemon with these flags: whether it serves (None: nothing came of it in time),
        and what it said. Raises OSError when the program cannot be run.
        """
        folder = self.folder / name
        with ExitStack() as opened:
            self.programs.require_own()
            said = await uncancelled(asyncio.to_thread(_made, folder, opened))
            process = await asyncio.create_subprocess_exec(
                *self.programs.control,
                "-f",
                *flags,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=self.programs.environment(str(folder / "pipe"), str(folder / "log")),
                cwd="/",
                start_new_session=True,
            )
        try:
            async with asyncio.timeout(self.deadline):
                accepted: bool | None = await self._answers(folder, process)
        except (TimeoutError, ControlError):
            await ends_within(_DYING, process.wait())
            accepted = None if process.returncode is None else False
        finally:  # killed, it leaves no server, as it has none
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        return accepted, await asyncio.to_thread((folder / "said").read_text, errors="replace")

    async def _answers(self, folder: Path, process: asyncio.subprocess.Process) -> bool:
        """Wait for an answer; False when the daemon ended before."""
        while not await asyncio.to_thread((folder / "pipe" / "control").exists):
            if process.returncode is not None:
                return False
            await asyncio.sleep(_PAUSE)
        client = ControlClient(
            self.programs,
            pipe_directory=str(folder / "pipe"),
            log_directory=str(folder / "log"),
            deadline=self.deadline,
        )
        await client.converse((ControlCommand("get_server_list", tuple),))
        return True


def _nothing(problem: Problem) -> Probe:
    return Probe(None, (problem,))
