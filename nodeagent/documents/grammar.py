"""Rules for what a document may hold: written once, for reading it and for its schema.

A rule reads the value at a place into a typed result, noting every fault it meets, and knows the
JSON Schema of what it accepts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from nodeagent.catalogue import filled, problem_words
from nodeagent.documents.findings import DocumentPath, Findings, path_text
from nodeagent.plan.codes import Code
from nodeagent.text import did_you_mean, listed, nearest, quote

if TYPE_CHECKING:
    from nodeagent.plan.desired import SharedBy

T = TypeVar("T")
U = TypeVar("U")
JsonSchema = dict[str, Any]
Given = Mapping[str, Any]  # the values of a map's keys, read by the rules of these keys


class NotAccepted(Exception):
    """The value at a place cannot be used; why has been noted in the findings."""


class DocumentValue(NamedTuple):
    """A value in a document: where it is, and where its faults are noted."""

    value: Any
    path: DocumentPath
    findings: Findings

    def below(self, part: str | int) -> DocumentValue:
        """The value under a key or at a position of this map or list."""
        return DocumentValue(self.value[part], (*self.path, part), self.findings)

    def path_below(self, *parts: str | int) -> str:
        return path_text((*self.path, *parts))

    def refuse(
        self,
        message: str,
        *,
        remedy: str = "",
        code: Code = Code.INVALID_VALUE,
        below: DocumentPath = (),
        of_key: bool = False,
    ) -> NotAccepted:
        """Note a fault here, or at a place below; the result is to be raised.

        When enough has been noted, reading ends at once: a hostile text must not cost time.
        """
        path = (*self.path, *below)
        self.findings.add(code, path, message, remedy=remedy, of_key=of_key)
        if self.findings.full:
            self.findings.raise_any()
        return NotAccepted()

    def refused(
        self,
        case: str,
        *,
        code: Code = Code.INVALID_VALUE,
        below: DocumentPath = (),
        of_key: bool = False,
        **facts: object,
    ) -> NotAccepted:
        """Note a fault in the words of the catalogue; as `refuse`."""
        words = problem_words(code, case)
        message, remedy = filled(words.message, facts), filled(words.remedy, facts)
        return self.refuse(message, remedy=remedy, code=code, below=below, of_key=of_key)

    def unexpected(self, accepted: str, remedy: str = "") -> NotAccepted:
        return self.refuse(f"found {quote(self.value)}, expected {accepted}", remedy=remedy)


class Rule(Generic[T]):
    """What is accepted at a place; `read` raises NotAccepted when a fault had to be noted.

    `written` turns what was read into the value that a document has for it.
    """

    def __init__(
        self,
        read: Callable[[DocumentValue], T],
        schema: JsonSchema,
        written: Callable[[Any], object] = lambda value: value,
    ) -> None:
        self.read = read
        self.schema = schema
        self.written = written


class Key(NamedTuple):
    """A key of a map. When it is left out, `default` is what its value would have been."""

    name: str
    rule: Rule[Any]
    description: str
    required: bool = False
    default: Any = None

    @property
    def schema(self) -> JsonSchema:
        default = {} if self.default is None else {"default": self.default}
        return {"description": self.description, **self.rule.schema, **default}


# --- scalars ----------------------------------------------------------------------------------


def scalar(
    accepts: Callable[[Any], bool],
    accepted: str,
    schema: JsonSchema,
    hint: Callable[[Any], str] = lambda _: "",
) -> Rule[Any]:
    """A value that is kept as it is; `hint` gives the remedy for one that is not accepted."""

    def read(place: DocumentValue) -> object:
        if not accepts(place.value):
            raise place.unexpected(accepted, hint(place.value))
        return place.value

    return Rule(read, schema)


def whole(least: int, most: int) -> Rule[int]:
    """A whole number within bounds."""
    return scalar(
        lambda value: type(value) is int and least <= value <= most,
        f"a whole number from {least} to {most}",
        {"type": "integer", "minimum": least, "maximum": most},
    )


def flag() -> Rule[bool]:
    """true or false."""
    accepted = "true or false, without quotes"
    return scalar(lambda value: isinstance(value, bool), accepted, {"type": "boolean"})


def word(*choices: str) -> Rule[str]:
    """One of some words."""
    return scalar(
        lambda value: isinstance(value, str) and value in choices,
        " or ".join(choices),
        {"enum": list(choices)},
        lambda value: did_you_mean(value, choices) if isinstance(value, str) else "",
    )


def text(pattern: str, accepted: str) -> Rule[str]:
    """Text of some shape; `accepted` describes the shape."""
    return scalar(
        lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None,
        accepted,
        {"type": "string", "pattern": f"^({pattern})$"},
    )


def shared_by() -> Rule[SharedBy]:
    """How claims share a GPU; the number of parts may be text, as in an environment."""
    words, most = ("off", "memory", "time"), 48

    def read(place: DocumentValue) -> SharedBy:
        match place.value:
            case False | "off":  # YAML's reading of the word without quotes
                return "off"
            case "memory":
                return "memory"
            case "time":
                return "time"
            case value if re.fullmatch("[1-9][0-9]?", str(value)) and 2 <= int(value) <= most:
                return int(value)
        accepted = f"{', '.join(words)} or a number of equal parts from 2 to {most}"
        raise place.unexpected(
            accepted, "write memory, and let each claim request how much, such as 8Gi"
        )

    schema = {"anyOf": [{"enum": list(words)}, whole(2, most).schema]}
    return Rule(read, schema)


# --- lists and maps ---------------------------------------------------------------------------


def _read_all(reads: Iterable[Callable[[], T]]) -> list[T]:
    """The results; raises NotAccepted once everything was read, when any of it was refused."""
    results, refused = [], False
    for read in reads:
        try:
            results.append(read())
        except NotAccepted:
            refused = True
    if refused:
        raise NotAccepted
    return results


def list_of(item: Rule[T], *, least: int = 0) -> Rule[list[T]]:
    """A list of at least so many items of one kind."""

    def read(place: DocumentValue) -> list[T]:
        if not isinstance(place.value, list):
            raise place.unexpected("a list")
        if len(place.value) < least:
            raise place.refuse("the list is empty")
        return _read_all(partial(item.read, place.below(n)) for n in range(len(place.value)))

    return Rule(read, {"type": "array", "items": item.schema, "minItems": least})


def map_of(
    value: Rule[T],
    check_key: Callable[[DocumentValue, str], None] = lambda _place, _name: None,
    *,
    key_pattern: str | None = None,
    least: int = 0,
) -> Rule[dict[str, T]]:
    """A map whose keys are names; `check_key` notes the fault of one and raises NotAccepted."""

    def read(place: DocumentValue) -> dict[str, T]:
        if not isinstance(place.value, dict):
            raise place.unexpected("a map")
        if len(place.value) < least:
            raise place.refuse("the map is empty")
        reads: list[Callable[[], Any]] = []
        for name in place.value:  # key and value, so that the faults of both are noted
            reads += [partial(check_key, place, name), partial(value.read, place.below(name))]
        return dict(zip(place.value, _read_all(reads)[1::2], strict=True))

    names = {"propertyNames": {"pattern": key_pattern}} if key_pattern else {}
    bounds = {"minProperties": least} if least else {}
    return Rule(read, {"type": "object", "additionalProperties": value.schema, **names, **bounds})


def form(
    *keys: Key,
    build: Callable[[DocumentValue, Given], T],
    constraints: JsonSchema | None = None,
    hint: Callable[[str], str] = lambda _: "",
) -> Rule[T]:
    """A map with known keys. `build` makes the result of their values, and checks what concerns
    several keys; `constraints` are these checks in JSON Schema, as far as it can express them.
    `hint` gives the remedy for an unknown key that is not a misspelt one.
    """
    known = [key.name for key in keys]

    def read(place: DocumentValue) -> T:
        if not isinstance(place.value, dict):
            raise place.unexpected(f"a map with the keys {listed(known)}")
        unknown = [name for name in place.value if name not in known]
        meant = {_refuse_key(place, name, known, hint(name)) for name in unknown}
        given: dict[str, Any] = {}
        for key in keys:
            if key.name in meant and key.name not in place.value:
                continue  # misspelt, which was noted, so not missing
            try:
                given[key.name] = _read_key(place, key)
            except NotAccepted:
                continue
        if unknown or len(given) < len(keys):
            raise NotAccepted
        return build(place, given)

    return Rule(
        read,
        {
            "type": "object",
            "properties": {key.name: key.schema for key in keys},
            "required": [key.name for key in keys if key.required],
            "additionalProperties": False,
            **(constraints or {}),
        },
    )


def _refuse_key(place: DocumentValue, name: str, known: list[str], hint: str) -> str | None:
    """Note an unknown key; the result is the known one that was probably meant."""
    likely = nearest(name, known)
    place.refuse(
        f"unknown key {quote(name)}; here belong {listed(known)}",
        remedy=hint or (f"did you mean {likely}?" if likely else ""),
        code=Code.UNKNOWN_KEY,
        below=(name,),
        of_key=True,
    )
    return likely


def _read_key(place: DocumentValue, key: Key) -> object:
    if key.name in place.value:
        return key.rule.read(place.below(key.name))
    if key.required:
        raise place.refused("missing", key=key.name, description=key.description)
    return key.default


def by_kind(
    rules: Mapping[type, Rule[Any]], accepted: str, hint: Callable[[Any], str] | None = None
) -> Rule[Any]:
    """One rule for each type of value; `hint` gives the remedy for a usual slip."""

    def read(place: DocumentValue) -> object:
        rule = rules.get(type(place.value))
        remedy = hint(place.value) if hint else ""
        if rule is None or remedy:
            raise place.unexpected(accepted, remedy)
        return rule.read(place)

    return Rule(read, {"anyOf": [rule.schema for rule in rules.values()]})


def then(rule: Rule[T], make: Callable[[DocumentValue, T], U]) -> Rule[U]:
    """Convert what a rule has read by `make`, which raises NotAccepted for a fault."""
    return Rule(lambda place: make(place, rule.read(place)), rule.schema)


def read_with(rule: Rule[T], value: object, findings: Findings, path: DocumentPath = ()) -> T:
    """Read the value at `path` by a rule; raises DocumentError with every fault."""
    try:
        result = rule.read(DocumentValue(value, path, findings))
    except NotAccepted:
        findings.raise_any()
        raise  # not reached: a fault is noted before NotAccepted is raised
    findings.raise_any()
    return result
