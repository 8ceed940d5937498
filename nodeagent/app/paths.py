"""Where the agent's files are, and the check of them while it runs: state, lock, run directory.

A simulated agent never takes the place of the real one, except where the settings name a folder
explicitly.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import structlog

from nodeagent.errors import NodeagentError
from nodeagent.files.open_directory import make_open_directory
from nodeagent.files.state import StateFile
from nodeagent.mps.setup import MpsPlaces
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.writer_lock import FILE_NAME as LOCK_NAME
from nodeagent.reconcile.writer_lock import OtherWriter, WriterLock
from nodeagent.settings import Settings
from nodeagent.signals import Signal
from nodeagent.structs import Struct

_CLAIMS = "claims"  # the folder below state.dir in which claims have their records


class Simulation(Struct, frozen=True):
    """Where simulated GPUs and their MPS have their files and programs.

    `state` is the file that other commands share, `nvidia_smi` the command in place of the real
    one, `directory` where its MPS daemons live, and `mps` what they run. `real_pids` gives the pids
    of simulated GPU users that are processes of this machine, `capabilities` the GPU, GPU instance
    and compute instance of each capability file, `pcie_root` the root of the bus at a PCI address.
    `throwaway`: no command can find the node afterwards.
    """

    state: Path | None
    nvidia_smi: tuple[str, ...]
    directory: Path
    mps: MpsPlaces
    real_pids: Callable[[], frozenset[int]]
    capabilities: Callable[[], dict[int, tuple[int, int, int | None]]]
    pcie_root: Callable[[str], str]
    throwaway: bool = False


class Paths(Struct, frozen=True):
    """The places of one agent. `simulation`: None on real GPUs."""

    settings: Settings
    simulation: Simulation | None

    def writer_lock(self) -> WriterLock | None:
        """The lock for changing GPUs; None for simulated ones that no other process sees."""
        if self.simulation is None:
            return WriterLock(self.settings.run.dir / LOCK_NAME, self.settings.state.dir)
        file = _beside(self.simulation.state, LOCK_NAME)
        return WriterLock(file, self.simulation.directory) if file else None

    @property
    def claims(self) -> Path:
        directory = self.simulation.directory if self.simulation else self.settings.state.dir
        return directory / _CLAIMS

    def make_state_directory(self) -> tuple[Path, ...]:
        """Make the directory that the lock needs; returns it if it was missing. A failure is
        reported when a state file cannot be written there.
        """
        directory = self.simulation.directory if self.simulation else self.settings.state.dir
        if directory.is_dir():
            return ()
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError:
            return ()
        return (directory,)

    def state_file(self, name: str) -> Path | None:
        """The path of a file that survives a restart; None where nothing is to survive."""
        if self.simulation and "dir" not in self.settings.state.given:
            return _beside(self.simulation.state, name)
        return self.settings.state.dir / name

    def make_run_directory(self) -> Path | None:
        """The run directory, made where it is not there; None: the agent has none. Raises
        NodeagentError. Blocks for a moment.
        """
        if self.simulation and "dir" not in self.settings.run.given:
            return None
        directory = self.settings.run.dir
        try:
            make_open_directory(directory)  # programs of every user read what is in it
        except OSError as error:
            raise NodeagentError.of("folder", folder=directory, why=error.strerror) from error
        return directory


def _beside(state: Path | None, name: str) -> Path | None:
    return state.with_name(f"{state.name}.{name}") if state else None


log = structlog.get_logger(__name__)

_CHECK_INTERVAL = 1.0  # seconds between two checks
_LOSS_SHOWN_FOR = 600.0  # seconds for which a deleted file that was made again stays a problem


class OwnFiles:
    """Checks the agent's files and directories while it runs, and makes again what was deleted.

    `problems` says what is wrong, `changed` publishes that. After a repair it calls `repaired`,
    which restores what others keep in the run directory.
    """

    def __init__(
        self,
        paths: Paths,
        lock: WriterLock | None,
        files: Sequence[StateFile[Any]],
        *,
        repaired: Callable[[], Awaitable[None]],
    ) -> None:
        self._paths = paths
        self._lock = lock
        self._files = files
        self.changed: Signal[tuple[Problem, ...]] = Signal(())
        self._repaired = repaired
        self._unusable: Problem | None = None  # what is wrong with the run directory now
        self._lost: dict[Path, float] = {}  # deleted paths, and when by the event loop's clock

    @property
    def problems(self) -> tuple[Problem, ...]:
        kept = (file.problem for file in self._files)
        states = tuple(Problem.from_error(Code.STATE_FILE, p) for p in kept if p)
        run = self._unusable or self._loss()
        return (*states, run) if run else states

    def lost(self, path: Path) -> None:
        """Note that a file was deleted, to report it; the caller makes it again."""
        if path not in self._lost:
            log.warning("deleted while the agent runs; created again", path=str(path))
        self._lost[path] = time.monotonic()

    async def until_gone(self, path: Path) -> None:
        """Wait until the path leads to another file than now, or to none."""
        first = await asyncio.to_thread(_identity, path)
        while True:
            await asyncio.sleep(_CHECK_INTERVAL)
            if not first or await asyncio.to_thread(_identity, path) != first:
                return

    async def run(self) -> None:
        """Check every so often, until cancelled; raises OtherWriter when there is another agent."""
        known = self.problems
        while True:
            await asyncio.sleep(_CHECK_INTERVAL)
            deleted = await asyncio.to_thread(self._check)
            for path in deleted:
                self.lost(path)
            if deleted:
                await self._repaired()
            now = time.monotonic()
            self._lost = {p: at for p, at in self._lost.items() if now - at < _LOSS_SHOWN_FOR}
            if self.problems != known:
                known = self.problems
                self.changed.publish(known)

    def _check(self) -> list[Path]:
        """Check everything, make again what was deleted, and return its paths."""
        deleted: list[Path] = []
        try:
            directory = self._paths.make_run_directory()
            deleted += self._paths.make_state_directory()
            deleted += self._lock.take() if self._lock else ()
            self._unusable = _not_writable(directory) if directory else None
        except OtherWriter:
            raise
        except NodeagentError as error:
            self._unusable = Problem.from_error(Code.RUN_DIRECTORY, error)
        except OSError as error:  # the file system fails, or the path is deleted just now
            path = error.filename or self._paths.settings.run.dir
            why = error.strerror or error
            self._unusable = Problem.of(Code.RUN_DIRECTORY, "unseen", file=path, why=why)
        else:
            for file in self._files:  # another agent would have raised OtherWriter above
                file.review()
        return list(dict.fromkeys(deleted))

    def _loss(self) -> Problem | None:
        if not self._lost:
            return None
        names = ", ".join(sorted(map(str, self._lost)))
        minutes = f"{_LOSS_SHOWN_FOR / 60:.0f}"
        return Problem.of(Code.RUN_DIRECTORY, "deleted", names=names, minutes=minutes)


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of a file; None: it is not there."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _not_writable(directory: Path) -> Problem | None:
    if os.access(directory, os.W_OK | os.X_OK):
        return None
    if os.statvfs(directory).f_flag & os.ST_RDONLY:
        return Problem.of(Code.RUN_DIRECTORY, "readOnly", directory=directory)
    return Problem.of(Code.RUN_DIRECTORY, "notWritable", directory=directory, user=os.geteuid())
