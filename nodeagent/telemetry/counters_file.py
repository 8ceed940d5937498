"""The file of counters on disk: which fields are exported, in dcgm-exporter's format."""

from pathlib import Path

from nodeagent.errors import NodeagentError
from nodeagent.files.state import read_regular_file

_MAX_BYTES = 1 << 20


def counters_text(path: Path) -> str:
    """Blocks; raises NodeagentError for what cannot be read."""
    try:
        raw = read_regular_file(path, _MAX_BYTES + 1)
    except OSError as error:
        raise NodeagentError.of("countersUnread", path=path, why=error.strerror or error) from error
    if len(raw) > _MAX_BYTES:
        raise NodeagentError(f"the file of counters {path} is larger than 1 MiB")
    return raw.decode("utf-8", "replace")
