"""The state of health in a file, so that it outlives the agent: `HealthState` as JSON."""

import json
from pathlib import Path
from typing import Final

from msgspec import json as msgspec_json
from msgspec import to_builtins

from nodeagent.files.state import StateFile, StateFormat
from nodeagent.health.state import HealthState
from nodeagent.health.table import BY_CAUSE, Check
from nodeagent.structs import replace

FILE_NAME: Final = "health.json"
_CHECKS: Final = frozenset(Check)
_MAX_BYTES = 16 * 1024 * 1024  # bytes; 8 GPUs with all their links take 60 KiB


def encode(state: HealthState) -> bytes:
    """The state as JSON; `decode` reads it back to an equal value."""
    raw = to_builtins(state, str_keys=True, order="deterministic")
    return json.dumps(raw, separators=(",", ":"), allow_nan=False).encode()


def decode(content: bytes) -> HealthState:
    """The state that was written down; raises an error of some kind for anything else.

    Findings and checks of another version, which this one does not know, are left out.
    """
    state = msgspec_json.decode(content, type=HealthState)
    return replace(
        state,
        findings=tuple(f for f in state.findings if f.cause in BY_CAUSE),
        gpus={u: replace(g, checked=g.checked & _CHECKS) for u, g in state.gpus.items()},
    )


def health_file(path: Path | None) -> StateFile[HealthState]:
    """The file; `path` None: nothing is kept."""
    return StateFile(path, StateFormat("health", 1, _MAX_BYTES, encode, decode))
