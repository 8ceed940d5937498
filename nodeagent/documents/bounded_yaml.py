"""YAML and JSON from untrusted sources: bounded in every direction, with the place of each value.

Accepted is what JSON can say, in YAML's notation: maps with text keys, lists and scalars. No
anchors and aliases (bombs), no tags, no second document, no key twice. Every refusal happens
before or while the text is scanned; nothing is ever expanded.

An unquoted word means what it does in YAML 1.1, without its surprises. Booleans (`yes`, `on`,
`y` ...) are kept, because mig-parted reads them so. Base-60 numbers are not: a PCI address such as
`0000:10:00.0` must stay text. Dates stay text too.
"""

import re
from collections.abc import Iterator
from typing import NoReturn

import yaml

from nodeagent.documents.findings import DocumentPath, Findings, Mark, refuse
from nodeagent.plan.problems import Code
from nodeagent.structs import Struct
from nodeagent.text import quote

Scalar = str | int | float | bool | None
Value = Scalar | list["Value"] | dict[str, "Value"]

MAX_TEXT = 1024 * 1024  # bytes; the text must be smaller
MAX_NODES = 6_000  # take some 50 ms; mig-parted's default file has about 1,000
MAX_DEPTH = 16  # a plan needs 8, a mig-parted file 6

# What YAML 1.1 does not allow in a text (tab, line ends and NEL are allowed).
_CONTROL_IN_ASCII = "\x00-\x08\x0b\x0c\x0e-\x1f\x7f"
_CONTROL = _CONTROL_IN_ASCII + "\x80-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff"


class Tree(Struct, frozen=True):
    """A document's values, and where in the text each value and each key begins."""

    value: Value
    marks: dict[DocumentPath, Mark]
    key_marks: dict[DocumentPath, Mark]

    def findings(self) -> Findings:
        return Findings(self.marks, self.key_marks)


def read_tree(text: str | bytes, *, most_nodes: int = MAX_NODES) -> Tree:
    """Read one YAML or JSON document; raises DocumentError with all faults of its form."""
    reader = _TreeReader(yaml.parse(_decoded(text), Loader=yaml.CSafeLoader), most_nodes)
    value: Value = None
    try:
        value = reader.document()
    except _Stop:
        pass
    except yaml.MarkedYAMLError as error:
        reader.add_syntax_error(error)
    except yaml.YAMLError as error:
        raise refuse(Code.SYNTAX, "noYaml", error=error) from error
    reader.findings.raise_any()
    return Tree(value, reader.marks, reader.key_marks)


def _decoded(text: str | bytes) -> str:
    """The text as characters, once it is known to be text and of a bearable size."""
    size = len(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    if size >= MAX_TEXT:
        raise refuse(Code.SYNTAX, "tooLarge")
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            byte = f"0x{error.object[error.start]:02x}"
            raise refuse(Code.SYNTAX, "noText", position=error.start + 1, byte=byte) from error
    if control := _control_character(text):
        line = text.count("\n", 0, control.start()) + 1
        column = control.start() - text.rfind("\n", 0, control.start())
        found = f"U+{ord(control[0]):04X}"
        raise refuse(Code.SYNTAX, "control", found=found, line=line, column=column)
    return text


def _control_character(text: str) -> re.Match[str] | None:
    """The first; most texts are ASCII, whose pattern is compiled twenty times faster."""
    return re.search(f"[{_CONTROL_IN_ASCII if text.isascii() else _CONTROL}]", text)


class _Stop(Exception):
    """Reading on would be pointless."""


class _TreeReader:
    """Makes values of parser events. It descends no deeper than MAX_DEPTH, so recursion is safe."""

    def __init__(self, events: Iterator[yaml.Event], most_nodes: int) -> None:
        self._events = events
        self._nodes = 0
        self._most_nodes = most_nodes
        self.marks: dict[DocumentPath, Mark] = {}
        self.key_marks: dict[DocumentPath, Mark] = {}
        self.findings = Findings(self.marks, self.key_marks)

    def document(self) -> Value:
        value: Value = None
        documents = 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._stop(
                        event, (), "a second document begins here", "keep one document in a file"
                    )
                value = self._value(next(self._events), (), 1)
        return value

    def add_syntax_error(self, error: yaml.MarkedYAMLError) -> None:
        mark = error.problem_mark or error.context_mark
        where = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        context = f" ({error.context})" if error.context else ""
        message = f"this is neither YAML nor JSON: {error.problem}{context}"
        self.findings.add(Code.SYNTAX, (), message, mark=where)

    # --- nodes --------------------------------------------------------------------------------

    def _value(self, event: yaml.Event, path: DocumentPath, depth: int) -> Value:
        self.marks[path] = _mark(event)
        match event:
            case yaml.MappingStartEvent():
                self._check(event, path)
                if depth > MAX_DEPTH:
                    self._stop(event, path, TOO_DEEP)
                return self._map(path, depth)
            case yaml.SequenceStartEvent():
                self._check(event, path)
                if depth > MAX_DEPTH:
                    self._stop(event, (*path, 0), TOO_DEEP)
                items: list[Value] = []
                while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
                    items.append(self._value(event, (*path, len(items)), depth + 1))
                return items
        return self._scalar(event, path, None)

    def _map(self, path: DocumentPath, depth: int) -> dict[str, Value]:
        found: dict[str, Value] = {}
        lines: dict[str, int] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._key(event, path, lines)
            below = (*path, key)
            self.key_marks[below] = _mark(event)
            found[key] = self._value(next(self._events), below, depth + 1)
        return found

    def _key(self, event: yaml.Event, path: DocumentPath, lines: dict[str, int]) -> str:
        if isinstance(event, yaml.CollectionStartEvent):
            self._check(event, path)
            self._stop(event, path, "a map or a list cannot be a key", "every key must be text")
        written = event.value if isinstance(event, yaml.ScalarEvent) else ""
        key = self._scalar(event, path, written)
        if not isinstance(key, str):
            self._fault(
                event,
                path,
                f"a key must be text, but YAML reads the bare word {quote(written)} as "
                f"{_kind(key)}",
                f'write it in quotes: "{written}"' if written else "give it a name",
            )
        elif key in lines:
            message = f"the key {quote(key)} is given twice, first in line {lines[key]}"
            self._fault(event, path, message, "keep one of the two")
        lines.setdefault(written, _mark(event)[0])
        return written

    def _scalar(self, event: yaml.Event, path: DocumentPath, otherwise: str | None) -> Scalar:
        """The scalar's value; `otherwise` where it has none."""
        if not isinstance(event, yaml.ScalarEvent):
            anchor = getattr(event, "anchor", "")
            self._fault(event, path, f"the alias *{anchor} is not allowed", _NO_ALIASES)
            return None
        self._check(event, path)
        if control := _control_character(event.value):  # from an escape such as "\x1b"
            message = f"the text holds the control character U+{ord(control[0]):04X}"
            self._fault(event, path, message)
        if event.style or event.tag:  # quoted, a block, or refused already
            return event.value
        try:
            return plain_scalar(event.value)
        except ValueError as error:
            self._fault(event, path, f"found {quote(event.value)}: {error}")
            return otherwise

    # --- faults -------------------------------------------------------------------------------

    def _check(self, event: yaml.NodeEvent, path: DocumentPath) -> None:
        """What every node must keep to, whatever it is."""
        self._nodes += 1
        if self._nodes > self._most_nodes:
            self._stop(event, path, f"the document has more than {self._most_nodes:,} values")
        if event.anchor:
            self._fault(event, path, f"the anchor &{event.anchor} is not allowed", _NO_ALIASES)
        tag = getattr(event, "tag", None)
        if tag:
            self._fault(event, path, f"the tag {quote(tag)} is not allowed", "leave it out")

    def _fault(self, event: yaml.Event, path: DocumentPath, message: str, remedy: str = "") -> None:
        self.findings.add(Code.SYNTAX, path, message, remedy=remedy, mark=_mark(event))
        if self.findings.full:
            raise _Stop

    def _stop(
        self, event: yaml.Event, path: DocumentPath, message: str, remedy: str = ""
    ) -> NoReturn:
        self._fault(event, path, message, remedy)
        raise _Stop


TOO_DEEP = f"the document is nested more than {MAX_DEPTH} deep"
_NO_ALIASES = "anchors and aliases are refused; write the value out"


def _mark(event: yaml.Event) -> Mark:
    mark = event.start_mark
    return (mark.line + 1, mark.column + 1) if mark else (1, 1)


def _kind(value: Value) -> str:
    if isinstance(value, bool):
        return quote(value)
    return "nothing" if value is None else f"the number {quote(value)}"


# --- plain scalars ----------------------------------------------------------------------------

_BOOLEANS = {
    spelling: word in ("y", "yes", "true", "on")
    for word in ("y", "yes", "true", "on", "n", "no", "false", "off")
    for spelling in (word, word.capitalize(), word.upper())
}
_NULLS = {"", "~", "null", "Null", "NULL"}
# Compiled when a document has something like it, as `re` keeps what it compiled.
_INTEGER = r"[-+]?[0-9]+"
_HEXADECIMAL = r"[-+]?0[xX][0-9A-Fa-f]+"
_REAL = r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
_NOT_FINITE = r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)|[-+]?Infinity|NaN"

_MAX_NUMBER = 24  # characters; no key takes a number beyond 64 bits


def plain_scalar(text: str) -> Scalar:
    """The value of a plain scalar; raises ValueError with a sentence when it has none."""
    if text in _NULLS:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if text[0] not in "+-.0123456789IN":
        return text
    if re.fullmatch(_INTEGER, text):
        return _integer(text)
    if re.fullmatch(_NOT_FINITE, text):
        raise ValueError("a finite number is needed")
    if re.fullmatch(_HEXADECIMAL, text):
        _check_length(text)
        return int(text, 16)
    if re.fullmatch(_REAL, text):
        _check_length(text)
        number = float(text)
        if number in (float("inf"), float("-inf")):
            raise ValueError("the number is too large")
        return number
    return text


def _integer(text: str) -> int:
    _check_length(text)
    digits = text.lstrip("+-")
    if len(digits) > 1 and digits[0] == "0":
        raise ValueError(
            "a number with a leading zero is octal to some readers and decimal to others; "
            "write it without, or in quotes if it is text"
        )
    return int(text)


def _check_length(text: str) -> None:
    if len(text) > _MAX_NUMBER:
        raise ValueError("the number is too large")
