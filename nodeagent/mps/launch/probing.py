"""Finds out what the installed MPS can do, by trying it.

Drivers do not say what they support, and a version number proves little. So daemons are started on
scratch directories, each with one flag; those that do not know it end at once. None has clients or
servers, none is at a place where a program would look for it.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

from nodeagent.files.open_directory import DIRECTORY_FLAGS, make_open_directory
from nodeagent.mps.commands import ControlCommand
from nodeagent.mps.control import ControlClient, ControlError
from nodeagent.mps.files.directories import (
    LONGEST_SOCKET,
    MAX_SOCKET_PATH,
    SHORTER,
)
from nodeagent.mps.processes import CONTROL, SERVER, mps_process, process_descriptor, processes_of
from nodeagent.mps.programs import Programs, run_program
from nodeagent.plan.problems import Code, Problem
from nodeagent.structs import Struct
from nodeagent.uncancelled import uncancelled

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
_PAUSE = 0.01  # seconds between two looks for a socket
_DYING = 0.2  # seconds for a process to end whose end was noticed otherwise
_COMPLAINT = re.compile("unknown|usage|cannot|invalid", re.IGNORECASE)
_VERSION = re.compile(r"\bversion:?\s+(\d[\w.]*)", re.IGNORECASE)


class Probe(Struct, frozen=True):
    """What was found. `version` is what the control program calls itself, "" where it says
    nothing (before 580). `multi_user_flag` asks for a server of all users in the form that is
    understood, "" where none is. None: they could not be read, and `problems` may say why.
    """

    version: str
    multi_user_flag: str | None
    static_partitioning: bool | None
    protocol_v3: bool | None
    problems: tuple[Problem, ...]

    @property
    def multi_user(self) -> bool | None:
        return None if self.multi_user_flag is None else self.multi_user_flag != ""


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


class _Trial(Struct, frozen=True):
    """What came of one start: whether it went on, what it said, and the reply to the question."""

    accepted: bool | None  # None: nothing came of it in time
    said: str
    reply: tuple[str, ...] = ()

    @property
    def understood(self) -> bool | None:
        if not self.accepted:
            return self.accepted
        return not any(_COMPLAINT.match(line) for line in self.reply)


class _Trials(Struct, frozen=True):
    """Starts of daemons in `folder`."""

    programs: Programs
    folder: Path
    deadline: float

    async def all(self) -> Probe:
        longest = len(os.fsencode(self.folder)) + len(f"/plain/pipe/{LONGEST_SOCKET}")
        if longest > MAX_SOCKET_PATH:
            return _nothing(Problem.of(Code.MPS, "longPath", folder=self.folder, remedy=SHORTER))
        try:
            plain = await self._try("plain")
        except OSError as error:
            program = self.programs.control[0]
            return _nothing(Problem.of(Code.MPS, "noProgram", program=program, why=error.strerror))
        if not plain.accepted:
            why = plain.said.strip().splitlines()[-1:] or ["it said nothing"]
            if plain.accepted is None:
                why = [f"it did not answer within {self.deadline:g} s"]
            return _nothing(Problem.of(Code.MPS, "noDaemon", why=why[0][:200]))
        async with asyncio.TaskGroup() as group:  # a cancellation waits until each has ended
            trials = [
                group.create_task(self._flag("first", MULTI_USER_FLAGS[0])),
                group.create_task(self._flag("second", MULTI_USER_FLAGS[1])),
                group.create_task(self._flag("static", "-S", question="lspart")),
                group.create_task(self._flag("newer", "-p", "3", words=("server", "list"))),
            ]
        first, second, static, newer = (trial.result() for trial in trials)
        found = _VERSION.search(plain.said)
        if found is None:
            with suppress(OSError):
                found = _VERSION.search(await self._output_of("-v"))
        return Probe(
            version=found[1] if found else "",
            multi_user_flag=_multi_user_flag(first, second),
            static_partitioning=static.understood,
            protocol_v3=newer.understood,
            problems=self._problems(first, second, static, newer),
        )

    def _problems(self, *trials: _Trial) -> tuple[Problem, ...]:
        problems: tuple[Problem, ...] = ()
        if shutil.which(SERVER, path=self.programs.path) is None:
            problems += (
                Problem.of(Code.MPS, "noServer", server=SERVER, folders=self.programs.path),
            )
        if any(trial.accepted is None for trial in trials):
            problems += (Problem.of(Code.MPS, "notProbed", seconds=f"{self.deadline:g}"),)
        return problems

    async def _try(
        self, name: str, *flags: str, question: str = "get_server_list", words: tuple[str, ...] = ()
    ) -> _Trial:
        """Start a daemon with these flags and ask it: by `words` on the command line, else the
        `question`. Raises OSError when the program cannot be run.
        """
        folder = self.folder / name
        with ExitStack() as opened:
            said = await uncancelled(asyncio.to_thread(_made, folder, opened))
            process = await asyncio.create_subprocess_exec(
                *self.programs.control,
                "-f",
                *flags,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=self._environment(folder),
                cwd="/",
                start_new_session=True,
            )
        reply: tuple[str, ...] | None = None
        try:
            async with asyncio.timeout(self.deadline):
                reply = await self._ask(folder, process, question, words)
            accepted: bool | None = reply is not None
        except (TimeoutError, ControlError):
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _DYING)
            accepted = None if process.returncode is None else False
        finally:  # killed, it leaves no server, as it has none
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        text = await asyncio.to_thread((folder / "said").read_text, errors="replace")
        return _Trial(accepted, text, reply or ())

    async def _flag(self, name: str, *flags: str, **asked: Any) -> _Trial:
        """Try flags by `_try`, after a plain start that went well: a start that fails for want of a
        process or a descriptor says nothing of the flags.
        """
        try:
            return await self._try(name, *flags, **asked)
        except OSError:
            return _Trial(None, "")

    async def _ask(
        self,
        folder: Path,
        process: asyncio.subprocess.Process,
        question: str,
        words: tuple[str, ...],
    ) -> tuple[str, ...] | None:
        """The reply; None when the daemon ended before."""
        while not await asyncio.to_thread((folder / "pipe" / "control").exists):
            if process.returncode is not None:
                return None
            await asyncio.sleep(_PAUSE)
        if words:
            said = await self._output_of(*words, folder=folder)
            return tuple(said.splitlines()) if process.returncode is None else None
        client = ControlClient(
            self.programs,
            pipe_directory=str(folder / "pipe"),
            log_directory=str(folder / "log"),
            deadline=self.deadline,
        )
        [reply] = await client.converse((ControlCommand(question, tuple),))
        return tuple(reply)

    async def _output_of(self, *words: str, folder: Path | None = None) -> str:
        """What the program prints for these words, on either stream, within the deadline."""
        command = [*self.programs.control, *words]
        try:
            async with asyncio.timeout(self.deadline):
                said = await run_program(command, self._environment(folder or self.folder))
        except TimeoutError:
            return ""
        return said.stdout + said.stderr

    def _environment(self, folder: Path) -> dict[str, str]:
        return self.programs.environment(str(folder / "pipe"), str(folder / "log"))


def _multi_user_flag(*trials: _Trial) -> str | None:
    """The first that is understood, of trials of each."""
    if os.geteuid() != 0:
        return None  # whatever the program is, it refuses everybody but root
    for trial, flag in zip(trials, MULTI_USER_FLAGS, strict=True):
        if trial.accepted:
            return flag
    return None if any(trial.accepted is None for trial in trials) else ""


def _nothing(problem: Problem) -> Probe:
    return Probe("", None, None, None, (problem,))
