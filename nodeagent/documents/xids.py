"""A user's own classes of XIDs, from the file that the settings name.

    version: v1
    xids:
      - {xid: 63, class: gpuReset}
      - {xid: [13, 31], class: information}
      - {xid: 999, name: our own, class: nodeReboot}

They replace the program's own classes, in order: the last entry of an XID counts.
"""

from pathlib import Path

from nodeagent.documents import grammar
from nodeagent.documents.bounded_yaml import MAX_TEXT, read_tree
from nodeagent.errors import DocumentError, UsageError
from nodeagent.files.state import read_regular_file
from nodeagent.health.xids import XidClass, XidTable, default_table
from nodeagent.structs import replace

_NUMBER = grammar.whole(1, 0xFFFF_FFFF)  # eventData has 64 bits; no XID is near this
_MAX_NAME = 100

_ENTRY: grammar.Rule[grammar.Given] = grammar.form(
    grammar.Key(
        "xid",
        grammar.by_kind(
            {
                int: grammar.then(_NUMBER, lambda _, xid: [xid]),
                list: grammar.list_of(_NUMBER, least=1),
            },
            "a number above 0, or a list of them",
        ),
        "the number of the error, or a list of numbers",
        required=True,
    ),
    grammar.Key("class", grammar.word(*XidClass), "what is done about it", required=True),
    grammar.Key(
        "name",
        grammar.scalar(
            lambda name: (
                name is None
                or (isinstance(name, str) and name.isprintable() and len(name) <= _MAX_NAME)
            ),
            f"a text of at most {_MAX_NAME} letters",
            {"type": ["string", "null"], "maxLength": _MAX_NAME},
        ),
        "what the error is called",
    ),
    build=lambda _, given: given,
)
_TABLE: grammar.Rule[list[grammar.Given]] = grammar.form(
    grammar.Key("version", grammar.word("v1"), "v1", required=True),
    grammar.Key(
        "xids", grammar.list_of(_ENTRY), "a list of entries with xid and class", required=True
    ),
    build=lambda _, given: given["xids"],
)


def read_xid_table(text: str | bytes) -> XidTable:
    """The program's table with the text's entries laid over it; raises DocumentError."""
    tree = read_tree(text)
    table = default_table()
    rows = dict(table.rows)
    for entry in grammar.read_with(_TABLE, tree.value, tree.findings()):
        for xid in entry["xid"]:
            row = rows.get(xid) or table.row(xid)
            name = row.name if entry["name"] is None else entry["name"]
            rows[xid] = replace(row, kind=XidClass(entry["class"]), name=name)
    return XidTable(rows)


def xid_table(path: Path | None) -> XidTable:
    """The table in force; without a file the program's own. Blocks; raises UsageError for a file
    that cannot be read or is not accepted.
    """
    if path is None:
        return default_table()
    try:
        return read_xid_table(read_regular_file(path, MAX_TEXT))
    except OSError as error:
        why = error.strerror or error
        raise UsageError(f"health.xids: {path} cannot be read: {why}") from error
    except DocumentError as error:
        raise UsageError(f"health.xids: {path}: {error.message}", remedy=error.remedy) from error
