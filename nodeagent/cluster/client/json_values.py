"""What the API server's JSON has to be: each raises TypeError where it is something else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def parts_of(whole: object) -> tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]:
    """Metadata, spec and status of one thing; those that are missing are empty."""
    found = object_in(whole)
    metadata, spec, status = (object_in(found.get(key)) for key in ("metadata", "spec", "status"))
    return metadata, spec, status


def object_in(value: object) -> Mapping[str, Any]:
    """An object, empty where there is none."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise TypeError
    return value


def objects_in(value: object) -> list[Mapping[str, Any]]:
    """A list of objects, empty where there is none."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise TypeError
    return [object_in(one) for one in value]


def text_in(value: object) -> str:
    """A text; it has to be there."""
    if not isinstance(value, str):
        raise TypeError
    return value
