"""What is known of the GPUs' health, kept where it survives a restart of the agent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from nodeagent.files.state import StateFile, StateFormat
from nodeagent.health.state import HealthState
from nodeagent.health.state_json import state_json, state_of
from nodeagent.strict_json import parse_json

FILE_NAME: Final = "health.json"
_LARGEST = 16 * 1024 * 1024  # bytes; 8 GPUs with all their links take 60 KiB


def health_file(path: Path | None) -> StateFile[HealthState]:
    """The file; `path` None: nothing is kept."""
    return StateFile(
        path,
        _FORMAT,
        what="the state of health",
        lost="findings that were reported once and counts of XIDs begin anew after a restart",
        remedy="look with nvidia-smi -q and dmesg for errors that need a reset or a reboot",
    )


def _encoded(state: HealthState) -> bytes:
    return json.dumps(state_json(state), separators=(",", ":"), allow_nan=False).encode()


def _decoded(content: bytes, _: int) -> HealthState:
    """The first release wrote the same content without a checksum."""
    return state_of(parse_json(content))


_FORMAT: Final[StateFormat[HealthState]] = StateFormat("health", 2, _LARGEST, _encoded, _decoded)
