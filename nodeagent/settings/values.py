"""What a group of settings is, and the rules for values, of the grammar that reads documents.

Every value may come as text (environment, flags) or as what YAML makes of it.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Self,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
)

from nodeagent.documents.grammar import DocumentValue, JsonSchema, Rule, shared_by, word

if TYPE_CHECKING:
    from nodeagent.plan.desired import SharedBy

T = TypeVar("T")

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)?"
_MAX_COMMAND = 4096  # characters; splitting takes as long as their square


@dataclass_transform(frozen_default=True, kw_only_default=True)
class _Fields:
    """What type checkers take for a frozen dataclass. It does without `dataclasses` and msgspec:
    every command makes all groups, and importing either takes longer than all the rest.
    """


class Group(_Fields):
    """A part of the settings. `given`: the names in it that some source has set.

    A field annotated with a description is a setting; others are groups. Defaults are of the class.
    """

    given: frozenset[str] = frozenset()

    if not TYPE_CHECKING:  # mypy knows the fields of each group, and that they are frozen

        def __init__(self, **values: Any) -> None:
            if unknown := values.keys() - {"given", *type(self).__annotations__}:
                raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(unknown))}")
            vars(self).update(values)

        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError(f"cannot assign to field {name!r}")

    def __replace__(self, **changes: Any) -> Self:
        return type(self)(**{**vars(self), **changes})

    def __eq__(self, other: object) -> bool:
        """Equal settings are equal, wherever they come from."""
        return type(self) is type(other) and all(
            getattr(self, name) == getattr(other, name) for name in type(self).__annotations__
        )

    __hash__ = None  # type: ignore[assignment]  # as Python has it for whoever defines __eq__


def rule_of(annotation: object) -> Rule[Any]:
    """The rule of a setting whose field has this type."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if annotation is bool:
        return _rule(_yes_no, "true or false", {"type": "boolean"})
    if origin is Literal:
        return _one_of(*parts)
    if origin in (Union, UnionType):  # with None, which is never written: then the key is absent
        rule = rule_of(parts[0])
        return Rule(
            rule.read,
            {"anyOf": [rule.schema, {"type": "null"}]},
            lambda value: None if value is None else rule.written(value),
        )
    return next((part for part in parts if isinstance(part, Rule)), None) or rule_of(parts[0])


def _rule(
    read: Callable[[object], T | None],
    accepted: str,
    schema: JsonSchema,
    written: Callable[[Any], object] = lambda value: value,
) -> Rule[T]:
    """A rule by `read`, which gives None for what is not `accepted`."""

    def checked(place: DocumentValue) -> T:
        value = read(place.value)
        if value is None:
            raise place.unexpected(accepted)
        return value

    return Rule(checked, schema, written)


def _one_of(*names: str) -> Rule[str]:
    rule = word(*names)

    def read(place: DocumentValue) -> str:
        if place.value is False and "off" in names:  # YAML's reading of the word without quotes
            return "off"
        return rule.read(place)

    return Rule(read, rule.schema)


def _yes_no(value: object) -> bool | None:
    words = {"true": True, "yes": True, "on": True, "1": True}
    words |= {"false": False, "no": False, "off": False, "0": False}
    return words.get(str(value).strip().lower()) if isinstance(value, str | int) else None


def _duration(value: object) -> float | None:
    seconds = math.nan
    if isinstance(value, int | float) and not isinstance(value, bool) and value < 2**53:
        seconds = float(value)
    elif isinstance(value, str) and (match := re.fullmatch(_DURATION, value.strip())):
        seconds = float(match[1]) * _SECONDS[match[2] or "s"]
    return seconds if math.isfinite(seconds) and seconds > 0 else None


class Address(NamedTuple):
    """Address to listen on; `host` "": all of the machine's addresses, `port` 0: any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _address(value: object) -> Address | None:
    host, colon, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    bare = host.removeprefix("[").removesuffix("]")
    bracketed = host == f"[{bare}]"
    if not (colon and re.fullmatch("[0-9]{1,5}", port) and int(port) < 2**16) or (
        bracketed != (":" in bare) or re.search(r"[\s/\[\]]", bare) or not _is_name(bare)
    ):
        return None
    return Address(bare, int(port))


def _is_name(host: str) -> bool:
    """Whether the name can be looked up: no part of it is empty or too long."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def _whole_number(value: object) -> int | None:
    # Python refuses to make a number of more than 4,300 digits.
    if isinstance(value, str) and re.fullmatch("[0-9]{1,9}", value.strip()):
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 1024:
        return value
    return None


def _path(value: object) -> Path | None:
    text = str(value) if isinstance(value, Path) else value
    return Path(text) if isinstance(text, str) and text.strip() and "\0" not in text else None


def _text(value: object) -> str | None:
    return value.strip() or None if isinstance(value, str) and value.isprintable() else None


def _texts(value: object) -> tuple[str, ...] | None:
    words: object = value.split() if isinstance(value, str) else value
    texts = tuple(map(_text, words)) if isinstance(words, list | tuple) else (None,)
    return None if None in texts else tuple(text for text in texts if text)


def _command(value: object) -> tuple[str, ...] | None:
    words: object = value
    if isinstance(value, str):
        try:
            words = shlex.split(value) if len(value) <= _MAX_COMMAND else None
        except ValueError:
            words = None
    if not isinstance(words, list | tuple):
        return None
    good = all(isinstance(word, str) and word and "\0" not in word for word in words)
    return tuple(words) if words and good else None


def _absolute_command(value: object) -> tuple[str, ...] | None:
    words = _command(value)
    return words if words and words[0].startswith("/") else None


_PATTERN = r"^\d+(\.\d+)?(ms|s|m|h)?$"
_WORD: JsonSchema = {"type": "string", "minLength": 1}
_ABSOLUTE: JsonSchema = {"type": "string", "pattern": "^/"}
_WORDS: JsonSchema = {"type": "array", "items": _WORD}

Duration = Annotated[
    float,
    _rule(
        _duration,
        "a number of seconds, or a text such as 500ms, 30s, 5m or 1h, more than 0",
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0},
                {"type": "string", "pattern": _PATTERN},
            ]
        },
    ),
]
ListenAddress = Annotated[
    Address,
    _rule(
        _address,
        "HOST:PORT such as 127.0.0.1:9470, [::1]:9470 or :9470",
        {"type": "string", "pattern": r"^.*:\d+$"},
        str,
    ),
]
WholeNumber = Annotated[
    int,
    _rule(
        _whole_number,
        "a whole number from 1 to 1024",
        {"type": "integer", "minimum": 1, "maximum": 1024},
    ),
]
SharedGpu = Annotated["SharedBy", shared_by()]
Command = Annotated[
    tuple[str, ...],
    _rule(
        _command,
        "a command such as nvidia-smi, or 'chroot /host nvidia-smi'",
        {"anyOf": [_WORD, {**_WORDS, "minItems": 1}]},
        shlex.join,
    ),
]
AbsoluteCommand = Annotated[
    tuple[str, ...],
    _rule(
        _absolute_command,
        "a program by its absolute path, and its arguments",
        {"anyOf": [_ABSOLUTE, {**_WORDS, "minItems": 1, "prefixItems": [_ABSOLUTE]}]},
        shlex.join,
    ),
]
FilePath = Annotated[Path, _rule(_path, "a path such as /etc/nodeagent/plan.yaml", _WORD, str)]
Text = Annotated[str, _rule(_text, "a text (numbers and the like in quotes)", _WORD)]
Texts = Annotated[
    tuple[str, ...],
    _rule(
        _texts,
        "a list of texts, or one text with spaces between them",
        {"anyOf": [{"type": "string"}, _WORDS]},
        " ".join,
    ),
]
