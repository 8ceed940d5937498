"""The kinds of values that settings have: how each is written and what it becomes.

Every value may come as text (environment, flags) or as what YAML makes of it.
"""

from __future__ import annotations

import math
import re
import shlex
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?", re.ASCII)


def _duration(value: object) -> float:
    accepted = "a number of seconds, or a text such as 500ms, 30s, 5m or 1h"
    seconds = math.nan
    if isinstance(value, int | float) and not isinstance(value, bool) and value < 2**53:
        seconds = float(value)
    elif isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        seconds = float(match[1]) * _SECONDS[match[2] or "s"]
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"accepted: {accepted}, more than 0")
    return seconds


class Address(NamedTuple):
    """Where to listen; `host` "" means all of the machine's addresses, `port` 0 any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _address(value: object) -> Address:
    host, colon, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    bare = host.removeprefix("[").removesuffix("]")
    bracketed = host == f"[{bare}]"
    if not (colon and port.isascii() and port.isdigit() and int(port) < 2**16) or (
        bracketed != (":" in bare) or re.search(r"[\s/\[\]]", bare)
    ):
        raise ValueError("accepted: HOST:PORT such as 127.0.0.1:9470, [::1]:9470 or :9470")
    return Address(bare, int(port))


def _whole_number(value: object) -> int:
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1024:
        raise ValueError("accepted: a whole number from 1 to 1024")
    return value


def _path(value: object) -> Path:
    text = str(value) if isinstance(value, Path) else value
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise ValueError("accepted: a path such as /etc/nodeagent/plan.yaml")
    return Path(text)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ValueError("accepted: a text (numbers and the like in quotes)")
    return value.strip()


def _texts(value: object) -> tuple[str, ...]:
    words: object = value.split() if isinstance(value, str) else value
    if isinstance(words, list | tuple):
        return tuple(map(_text, words))
    raise ValueError("accepted: a list of texts, or one text with spaces between them")


def _command(value: object) -> tuple[str, ...]:
    words: object = value
    if isinstance(value, str):
        try:
            words = shlex.split(value)
        except ValueError:
            words = None
    if (
        not isinstance(words, list | tuple)
        or not words
        or not all(isinstance(word, str) and word and "\0" not in word for word in words)
    ):
        raise ValueError("accepted: a command such as nvidia-smi, or 'chroot /host nvidia-smi'")
    return tuple(words)


Duration = Annotated[
    float,
    BeforeValidator(_duration),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0},
                {"type": "string", "pattern": r"^\d+(\.\d+)?(ms|s|m|h)?$"},
            ]
        }
    ),
]
ListenAddress = Annotated[
    Address,
    BeforeValidator(_address),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "pattern": r"^.*:\d+$"}),
]
WholeNumber = Annotated[
    int,
    BeforeValidator(_whole_number),
    WithJsonSchema({"type": "integer", "minimum": 1, "maximum": 1024}),
]
Command = Annotated[
    tuple[str, ...],
    BeforeValidator(_command),
    PlainSerializer(shlex.join),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
            ]
        }
    ),
]
FilePath = Annotated[
    Path, BeforeValidator(_path), WithJsonSchema({"type": "string", "minLength": 1})
]
Text = Annotated[str, BeforeValidator(_text), WithJsonSchema({"type": "string", "minLength": 1})]
Texts = Annotated[
    tuple[str, ...],
    BeforeValidator(_texts),
    PlainSerializer(" ".join),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string", "minLength": 1}},
            ]
        }
    ),
]
