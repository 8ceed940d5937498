"""A user's own figures in place of a board file's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nodeagent.errors import UsageError
from nodeagent.simulation.boards import Overrides, board_names, load_board, nearest


def check_overrides(overrides: Overrides) -> None:
    """Raises UsageError when something in it can never be used."""
    for name in overrides:
        if name not in board_names():
            raise UsageError(f"there is no board {name!r}", remedy=nearest(name, board_names()))
        load_board(name, overrides)


def read_overrides(path: Path) -> Overrides:
    """Overrides from a JSON file; raises UsageError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict) or not all(isinstance(v, dict) for v in content.values()):
        raise UsageError(f"{path} must map boards to fields", remedy='{"b200": {"bar1_mib": 1}}')
    check_overrides(content)
    return content


def merge(raw: dict[str, Any], changes: object, path: str) -> dict[str, Any]:
    """A board file's content with other values; raises UsageError naming the path."""
    if not isinstance(changes, Mapping):
        raise UsageError(f"{path} cannot be {changes!r}", remedy="it maps fields to values")
    merged = dict(raw)
    fields = [name for name in raw if name not in {"board", "provenance", "sources"}]
    for name, value in changes.items():
        where = f"{path}.{name}"
        if name not in fields:
            raise UsageError(f"{where} does not exist", remedy=nearest(name, tuple(fields)))
        if name in {"profiles", "compute"}:
            merged[name] = _merge_rows(raw[name], value, where)
            continue
        if type(value) is not type(raw[name]):
            raise UsageError(f"{where} cannot be {value!r}", remedy=f"now it is {raw[name]!r}")
        merged[name] = value
    return merged


def _merge_rows(rows: list[dict[str, Any]], changes: object, path: str) -> list[dict[str, Any]]:
    if not isinstance(changes, Mapping):
        raise UsageError(f"{path} cannot be {changes!r}", remedy="it maps profiles to fields")
    keys = {str(row.get("name", row["id"])): row for row in rows}
    merged = dict(keys)
    for key, fields in changes.items():
        if key not in keys:
            raise UsageError(f"{path}.{key} does not exist", remedy=nearest(key, tuple(keys)))
        merged[key] = merge(keys[key], fields, f"{path}.{key}")
    return list(merged.values())
