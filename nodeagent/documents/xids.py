"""A user's own classes of XIDs, from the file that the settings name."""

from __future__ import annotations

from pathlib import Path

from nodeagent.documents.bounded_yaml import LARGEST_TEXT, read_tree
from nodeagent.errors import DocumentError, UsageError
from nodeagent.files.state import read_regular_file
from nodeagent.health.xids import XidTable, default_table, overridden


def read_xid_table(text: str | bytes) -> XidTable:
    """The program's table with the text's entries laid over it; raises DocumentError with every
    fault found.
    """
    tree = read_tree(text)
    findings = tree.findings()
    table = overridden(default_table(), tree.value, findings)
    findings.raise_any()
    return table


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
