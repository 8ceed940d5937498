"""What is known of the GPUs' health, kept where it survives a restart of the agent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from nodeagent.errors import NodeagentError
from nodeagent.files import replace_file
from nodeagent.health.state import HealthState
from nodeagent.health.state_json import state_json, state_of

FILE_NAME: Final = "health.json"
_MOST_BYTES = 16 * 1024 * 1024  # 8 GPUs with all their links take 60 KiB


class HealthStore:
    """One file, or none: then nothing is kept. Its functions block: call them in a thread."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def load(self) -> HealthState:
        """The state kept, a new one when there is none; raises NodeagentError for a damaged one."""
        if self._path is None:
            return HealthState()
        try:
            with self._path.open("rb") as file:
                kept = file.read(_MOST_BYTES)
        except FileNotFoundError:
            return HealthState()
        except OSError as error:
            raise NodeagentError(f"{self._path} cannot be read: {error.strerror}") from error
        try:
            return state_of(json.loads(kept))
        except (ValueError, RecursionError) as error:
            raise NodeagentError(
                f"{self._path} is damaged and is not used",
                remedy="findings that were told once are forgotten",
            ) from error

    def save(self, state: HealthState) -> None:
        """Keep this state; raises NodeagentError when that cannot be done."""
        if self._path is None:
            return
        text = json.dumps(state_json(state), separators=(",", ":"))
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, text.encode())
        except OSError as error:
            raise NodeagentError(
                f"the state of health cannot be kept in {self._path}: {error.strerror}",
                remedy="after a restart findings that were told once are forgotten",
            ) from error
