"""A user's own classes of XIDs, from the file that the settings name."""

from __future__ import annotations

from pathlib import Path

from nodeagent.documents.bounded_yaml import LARGEST_TEXT
from nodeagent.documents.xid_table import read_xid_table
from nodeagent.errors import DocumentError, UsageError
from nodeagent.files.regular import read_regular_file
from nodeagent.health.xids import XidTable, default_table


def xid_table(path: Path | None) -> XidTable:
    """The table in force; without a file the program's own. Blocks; raises UsageError for a file
    that cannot be read or is not accepted.
    """
    if path is None:
        return default_table()
    try:
        return read_xid_table(read_regular_file(path, LARGEST_TEXT))
    except OSError as error:
        raise UsageError(
            f"health.xids: {path} cannot be read: {error.strerror or error}"
        ) from error
    except DocumentError as error:
        raise UsageError(f"health.xids: {path}: {error.message}", remedy=error.remedy) from error
