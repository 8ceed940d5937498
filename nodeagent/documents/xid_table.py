"""A user's own classes of XIDs, read from their text."""

from __future__ import annotations

from nodeagent.documents.bounded_yaml import read_tree
from nodeagent.health.xid_overrides import overridden
from nodeagent.health.xids import XidTable, default_table


def read_xid_table(text: str | bytes) -> XidTable:
    """The program's table with the text's entries laid over it; raises DocumentError with every
    fault found.
    """
    tree = read_tree(text)
    findings = tree.findings()
    table = overridden(default_table(), tree.value, findings)
    findings.raise_any()
    return table
