"""The kinds of values that settings have: how each is written and what it becomes.

Every value may come as text (environment, flags) or as what YAML makes of it.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

Json = dict[str, Any]

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)?"
_LONGEST_COMMAND = 4096  # characters; splitting takes as long as their square
_MEMORY = r"([1-9][0-9]{0,6})(Mi|Gi)"


class Kind:
    """How a value is read (raises ValueError with what is accepted), the JSON Schema of what can
    be written, and how a value that was read is written.
    """

    def __init__(
        self,
        read: Callable[[object], Any],
        schema: Json,
        written: Callable[[Any], object] = lambda value: value,
    ) -> None:
        self.read = read
        self.schema = schema
        self.written = written


def kind_of(annotation: object) -> Kind:
    """The kind of a setting whose field has this type."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if annotation is bool:
        return Kind(_yes_no, {"type": "boolean"})
    if origin is Literal:
        return Kind(_one_of(parts), {"enum": list(parts)})
    if origin in (Union, UnionType):  # with None, which is never written: then the key is absent
        kind = kind_of(parts[0])
        return Kind(
            kind.read,
            {"anyOf": [kind.schema, {"type": "null"}]},
            lambda value: None if value is None else kind.written(value),
        )
    return next(part for part in parts if isinstance(part, Kind))


def _one_of(names: tuple[str, ...]) -> Callable[[object], str]:
    *others, last = map(repr, names)

    def read(value: object) -> str:
        if value is False and "off" in names:  # YAML's reading of the word without quotes
            return "off"
        if not isinstance(value, str) or value not in names:
            raise ValueError(f"accepted: {', '.join(others)} or {last}")
        return value

    return read


def _yes_no(value: object) -> bool:
    words = {"true": True, "yes": True, "on": True, "1": True}
    words |= {"false": False, "no": False, "off": False, "0": False}
    found = words.get(str(value).strip().lower()) if isinstance(value, str | int) else None
    if found is None:
        raise ValueError("accepted: true or false")
    return found


def _duration(value: object) -> float:
    accepted = "a number of seconds, or a text such as 500ms, 30s, 5m or 1h"
    seconds = math.nan
    if isinstance(value, int | float) and not isinstance(value, bool) and value < 2**53:
        seconds = float(value)
    elif isinstance(value, str) and (match := re.fullmatch(_DURATION, value.strip())):
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
        bracketed != (":" in bare) or re.search(r"[\s/\[\]]", bare) or not _is_name(bare)
    ):
        raise ValueError("accepted: HOST:PORT such as 127.0.0.1:9470, [::1]:9470 or :9470")
    return Address(bare, int(port))


def _is_name(host: str) -> bool:
    """Whether it can be looked up: no part of it is empty or too long."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def _whole_number(value: object) -> int:
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1024:
        raise ValueError("accepted: a whole number from 1 to 1024")
    return value


def _memory(value: object) -> int:
    match = re.fullmatch(_MEMORY, value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError("accepted: a whole number of Mi or Gi, such as 8Gi")
    return int(match[1]) << (30 if match[2] == "Gi" else 20)


def _written_memory(value: int) -> str:
    return f"{value >> 20}Mi" if value % 2**30 else f"{value >> 30}Gi"


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
            words = shlex.split(value) if len(value) <= _LONGEST_COMMAND else None
        except ValueError:
            words = None
    if (
        not isinstance(words, list | tuple)
        or not words
        or not all(isinstance(word, str) and word and "\0" not in word for word in words)
    ):
        raise ValueError("accepted: a command such as nvidia-smi, or 'chroot /host nvidia-smi'")
    return tuple(words)


_PATTERN = r"^\d+(\.\d+)?(ms|s|m|h)?$"
_WORD: Json = {"type": "string", "minLength": 1}
_WORDS: Json = {"type": "array", "items": _WORD}

Duration = Annotated[
    float,
    Kind(
        _duration,
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0},
                {"type": "string", "pattern": _PATTERN},
            ]
        },
    ),
]
ListenAddress = Annotated[
    Address, Kind(_address, {"type": "string", "pattern": r"^.*:\d+$"}, written=str)
]
WholeNumber = Annotated[
    int, Kind(_whole_number, {"type": "integer", "minimum": 1, "maximum": 1024})
]
Memory = Annotated[  # bytes
    int, Kind(_memory, {"type": "string", "pattern": f"^{_MEMORY}$"}, written=_written_memory)
]
Command = Annotated[
    tuple[str, ...],
    Kind(_command, {"anyOf": [_WORD, {**_WORDS, "minItems": 1}]}, written=shlex.join),
]
FilePath = Annotated[Path, Kind(_path, _WORD, written=str)]
Text = Annotated[str, Kind(_text, _WORD)]
Texts = Annotated[
    tuple[str, ...], Kind(_texts, {"anyOf": [{"type": "string"}, _WORDS]}, written=" ".join)
]
