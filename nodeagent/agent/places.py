"""Where the agent's files are: a simulated agent never takes the place of the real one.

It does so only where the settings name a folder in words.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nodeagent.errors import NodeagentError
from nodeagent.execution.writer_lock import FILE_NAME as LOCK_NAME
from nodeagent.execution.writer_lock import writer_lock
from nodeagent.settings import Settings


@dataclass(frozen=True, slots=True)
class Simulation:
    """The GPUs are simulated; whoever runs the agent has installed the simulator.

    `state` is the file that other commands share, `nvidia_smi` what stands in for the real one,
    `directory` where its MPS daemons live. `throwaway`: nobody can find the node again afterwards.
    """

    state: Path | None
    nvidia_smi: tuple[str, ...]
    directory: Path
    throwaway: bool = False


@dataclass(frozen=True, slots=True)
class Places:
    """The places of one agent. `simulation`: None on real GPUs."""

    settings: Settings
    simulation: Simulation | None

    @contextmanager
    def only_writer(self) -> Iterator[None]:
        """Nobody else changes the same GPUs in the block; raises NodeagentError."""
        path: Path | None = self.settings.run.dir / LOCK_NAME
        if self.simulation:
            path = _beside(self.simulation.state, LOCK_NAME)
        if path is None:  # a simulated node that nobody else sees
            yield
            return
        with writer_lock(path):
            yield

    def kept(self, name: str) -> Path | None:
        """The file of this name that survives a restart; None where nothing is to survive."""
        if self.simulation and "dir" not in self.settings.state.model_fields_set:
            return _beside(self.simulation.state, name)
        return self.settings.state.dir / name

    def socket(self, name: str) -> Path | None:
        """The Unix socket of this name, in a folder that is there now; None: there is none.

        Raises NodeagentError. Blocks for a moment.
        """
        if self.simulation and "dir" not in self.settings.run.model_fields_set:
            return None
        directory = self.settings.run.dir
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise NodeagentError(
                f"the folder {directory} cannot be made: {error.strerror}",
                remedy="run as root, or set run.dir to a folder that can be written",
            ) from error
        return directory / name


def _beside(state: Path | None, name: str) -> Path | None:
    return state.with_name(f"{state.name}.{name}") if state else None
