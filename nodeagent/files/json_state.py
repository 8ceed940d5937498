"""State files that hold JSON: one type is the value, its keys on disk and the check of them."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from nodeagent.files.state import StateFormat

T = TypeVar("T")


class Stored(msgspec.Struct, frozen=True, rename="camel"):
    """A part of a state file: a JSON object with keys in camelCase, or with `array_like=True` a
    list of its values.

    Values of a wrong type or out of bounds (`Annotated[int, msgspec.Meta(ge=0)]`) are refused, as
    are numbers that no float holds. Keys that this version does not know are ignored.
    """


def json_format(kind: str, version: int, largest: int, stored: type[T]) -> StateFormat[T]:
    """The format of a file whose content is `stored`, alike in every version up to this one."""
    return StateFormat(
        kind, version, largest, msgspec.json.encode, lambda content, _: parse(content, stored)
    )


def parse(content: bytes, stored: type[T]) -> T:
    """The content, checked; raises ValueError or RecursionError."""
    return msgspec.json.decode(content, type=stored)
