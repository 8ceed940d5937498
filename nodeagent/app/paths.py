"""Where the agent's files are: a simulated agent never takes the place of the real one.

It does so only where the settings name a folder in words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nodeagent.errors import NodeagentError
from nodeagent.execute.writer_lock import FILE_NAME as LOCK_NAME
from nodeagent.execute.writer_lock import WriterLock
from nodeagent.files.state import make_open_directory
from nodeagent.settings import Settings


@dataclass(frozen=True, slots=True)
class Simulation:
    """The GPUs are simulated; whoever runs the agent has installed the simulator.

    `state` is the file that other commands share, `nvidia_smi` what stands in for the real one,
    `directory` where its MPS daemons live. `real_pids` gives those of its processes that are some
    of this machine. `throwaway`: no command can find the node afterwards.
    """

    state: Path | None
    nvidia_smi: tuple[str, ...]
    directory: Path
    real_pids: Callable[[], frozenset[int]]
    throwaway: bool = False


@dataclass(frozen=True, slots=True)
class Paths:
    """The places of one agent. `simulation`: None on real GPUs."""

    settings: Settings
    simulation: Simulation | None

    def writer_lock(self) -> WriterLock | None:
        """The lock for changing GPUs; None for simulated ones that no other process sees."""
        if self.simulation is None:
            return WriterLock(self.settings.run.dir / LOCK_NAME, self.settings.state.dir)
        file = _beside(self.simulation.state, LOCK_NAME)
        return WriterLock(file, self.simulation.directory) if file else None

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

    def kept(self, name: str) -> Path | None:
        """The file of this name that survives a restart; None where nothing is to survive."""
        if self.simulation and "dir" not in self.settings.state.given:
            return _beside(self.simulation.state, name)
        return self.settings.state.dir / name

    def socket(self, name: str) -> Path | None:
        """The Unix socket of this name, in a folder that is there now; None: there is none.

        Raises NodeagentError. Blocks for a moment.
        """
        directory = self.make_run_directory()
        return directory / name if directory else None

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
            raise NodeagentError(
                f"the folder {directory} cannot be made: {error.strerror}",
                remedy="run as root, or set run.dir to a folder that can be written",
            ) from error
        return directory


def _beside(state: Path | None, name: str) -> Path | None:
    return state.with_name(f"{state.name}.{name}") if state else None
