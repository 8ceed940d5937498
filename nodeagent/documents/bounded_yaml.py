"""YAML and JSON from untrusted sources: bounded in every direction, with the place of each value.

Accepted is what JSON can say, in YAML's notation: maps with text keys, lists and scalars. No
anchors and aliases (bombs), no tags, no second document, no key twice. Every refusal happens
before or while the text is scanned; nothing is ever expanded.

An unquoted word means what it does in YAML 1.1, without its surprises. Booleans (`yes`, `on`,
`y` ...) are kept, because mig-parted reads them so. Base-60 numbers are not: a PCI address such as
`0000:10:00.0` must stay text. Dates stay text too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import yaml

from nodeagent.documents.findings import DocumentPath, Findings, Mark, refuse
from nodeagent.plan.problems import Code
from nodeagent.text import shown

Scalar = str | int | float | bool | None
Value = Scalar | list["Value"] | dict[str, "Value"]

LARGEST_TEXT = 1024 * 1024  # bytes; the text must be smaller
MOST_NODES = 10_000  # mig-parted's default file has about 1,000
DEEPEST = 16  # a plan needs 8, a mig-parted file 6

# What YAML 1.1 does not allow in a text (tab, line ends and NEL are allowed).
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True, slots=True)
class Tree:
    """A document's values, and where in the text each value and each key begins."""

    value: Value
    marks: dict[DocumentPath, Mark]
    key_marks: dict[DocumentPath, Mark]

    def findings(self) -> Findings:
        return Findings(self.marks, self.key_marks)


def read_tree(text: str | bytes) -> Tree:
    """Read one YAML or JSON document; raises DocumentError with all faults of its form."""
    builder = _Builder()
    try:
        for event in yaml.parse(_decoded(text), Loader=yaml.CSafeLoader):
            builder.take(event)
            if builder.finished:
                break
    except yaml.MarkedYAMLError as error:
        builder.add_syntax_error(error)
    except yaml.YAMLError as error:
        raise refuse(f"this is neither YAML nor JSON: {error}") from error
    return builder.tree()


def _decoded(text: str | bytes) -> str:
    """The text as characters, once it is known to be text and of a bearable size."""
    size = len(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    if size >= LARGEST_TEXT:
        raise refuse("the document is too large; every document must be smaller than 1 MiB")
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise refuse(
                f"the document is not UTF-8 text (byte {error.start + 1} is "
                f"0x{error.object[error.start]:02x})",
                remedy="save it as UTF-8",
            ) from error
    control = _CONTROL.search(text)
    if control:
        line = text.count("\n", 0, control.start()) + 1
        column = control.start() - text.rfind("\n", 0, control.start())
        raise refuse(
            f"the document holds the control character U+{ord(control[0]):04X} "
            f"(line {line}, column {column}); it is binary, or not UTF-8"
        )
    return text


class _Frame:
    """An open map or list; `key` is the map's key that waits for its value."""

    __slots__ = ("container", "key", "key_mark", "lines", "path")

    def __init__(self, container: list[Value] | dict[str, Value], path: DocumentPath) -> None:
        self.container = container
        self.path = path
        self.key: str | None = None
        self.key_mark: Mark = (1, 1)
        self.lines: dict[str, int] = {}


class _Builder:
    """Makes a tree of parser events, with a stack of its own: depth costs no recursion."""

    def __init__(self) -> None:
        self._marks: dict[DocumentPath, Mark] = {}
        self._key_marks: dict[DocumentPath, Mark] = {}
        self._findings = Findings(self._marks, self._key_marks)
        self._open: list[_Frame] = []
        self._root: Value = None
        self._nodes = 0
        self._documents = 0
        self.finished = False

    def take(self, event: yaml.Event) -> None:
        """Add an event; `finished` means that reading on would be pointless."""
        match event:
            case yaml.ScalarEvent():
                self._scalar(event)
            case yaml.MappingStartEvent():
                self._start({}, event)
            case yaml.SequenceStartEvent():
                self._start([], event)
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                self._open.pop()
            case yaml.AliasEvent():
                self._fault(event, f"the alias *{event.anchor} is not allowed", _NO_ALIASES)
                self._store(None, event)
            case yaml.DocumentStartEvent():
                self._documents += 1
                if self._documents > 1:
                    self._stop(event, "a second document begins here", "keep one document a file")
        self.finished = self.finished or self._findings.full

    def add_syntax_error(self, error: yaml.MarkedYAMLError) -> None:
        mark = error.problem_mark or error.context_mark
        where = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        context = f" ({error.context})" if error.context else ""
        self._findings.add(
            Code.SYNTAX, (), f"this is neither YAML nor JSON: {error.problem}{context}", mark=where
        )

    def tree(self) -> Tree:
        """The tree; raises DocumentError when there were faults."""
        self._findings.raise_any()
        return Tree(self._root, self._marks, self._key_marks)

    # --- nodes --------------------------------------------------------------------------------

    def _scalar(self, event: yaml.ScalarEvent) -> None:
        self._check(event)
        control = _CONTROL.search(event.value)  # from an escape such as "\x1b"
        if control:
            self._fault(event, f"the text holds the control character U+{ord(control[0]):04X}")
        if event.style or event.tag:  # quoted, a block, or refused already
            self._store(event.value, event)
            return
        try:
            value = plain_scalar(event.value)
        except ValueError as error:
            self._fault(event, f"found {shown(event.value)}: {error}")
            value = None if self._wants_value else event.value
        self._store(value, event)

    def _start(self, container: list[Value] | dict[str, Value], event: yaml.NodeEvent) -> None:
        self._check(event)
        if not self._wants_value:
            self._stop(event, "a map or list is no key", "every key must be text")
            return
        path = self._path()
        self._store(container, event)
        self._open.append(_Frame(container, path))
        if len(self._open) > DEEPEST:
            self._stop(event, f"the document is nested more than {DEEPEST} deep")

    def _check(self, event: yaml.NodeEvent) -> None:
        """What every node must keep to, whatever it is."""
        self._nodes += 1
        if self._nodes > MOST_NODES:
            self._stop(event, f"the document has more than {MOST_NODES:,} values")
        if event.anchor:
            self._fault(event, f"the anchor &{event.anchor} is not allowed", _NO_ALIASES)
        tag = getattr(event, "tag", None)
        if tag:
            self._fault(event, f"the tag {shown(tag)} is not allowed", "leave it out")

    # --- where they go ------------------------------------------------------------------------

    @property
    def _wants_value(self) -> bool:
        """Whether the next node is a value (else it is a map's key)."""
        if not self._open:
            return True
        frame = self._open[-1]
        return isinstance(frame.container, list) or frame.key is not None

    def _path(self) -> DocumentPath:
        """The path of the value that comes next."""
        if not self._open:
            return ()
        frame = self._open[-1]
        if isinstance(frame.container, list):
            return (*frame.path, len(frame.container))
        return (*frame.path, frame.key or "")

    def _store(self, value: Value, event: yaml.NodeEvent) -> None:
        if not self._wants_value:
            self._key(value, event)
            return
        path = self._path()
        self._marks[path] = _mark(event)
        if not self._open:
            self._root = value
            return
        frame = self._open[-1]
        if isinstance(frame.container, list):
            frame.container.append(value)
        elif frame.key is not None:
            frame.container[frame.key] = value
            self._key_marks[path] = frame.key_mark
            frame.key = None

    def _key(self, value: Value, event: yaml.NodeEvent) -> None:
        frame = self._open[-1]
        mark = _mark(event)
        if not isinstance(value, str):
            written = event.value if isinstance(event, yaml.ScalarEvent) else ""
            self._fault(
                event,
                f"a key must be text, but YAML reads the bare word {shown(written)} as "
                f"{_kind(value)}",
                f'write it in quotes: "{written}"' if written else "give it a name",
            )
            value = written
        elif value in frame.lines:
            self._fault(
                event,
                f"the key {shown(value)} is there twice, first in line {frame.lines[value]}",
                "keep one of the two",
            )
        frame.lines.setdefault(value, mark[0])
        frame.key = value
        frame.key_mark = mark

    # --- faults -------------------------------------------------------------------------------

    def _fault(self, event: yaml.Event, message: str, remedy: str = "") -> None:
        path = self._open[-1].path if self._open and not self._wants_value else self._path()
        self._findings.add(Code.SYNTAX, path, message, remedy=remedy, mark=_mark(event))

    def _stop(self, event: yaml.Event, message: str, remedy: str = "") -> None:
        self._fault(event, message, remedy)
        self.finished = True


_NO_ALIASES = "anchors and aliases are refused; write the value out"


def _mark(event: yaml.Event) -> Mark:
    mark = event.start_mark
    return (mark.line + 1, mark.column + 1) if mark else (1, 1)


def _kind(value: Value) -> str:
    if isinstance(value, bool):
        return shown(value)
    return "nothing" if value is None else f"the number {shown(value)}"


# --- plain scalars ----------------------------------------------------------------------------

_BOOLEANS = {
    spelling: word in ("y", "yes", "true", "on")
    for word in ("y", "yes", "true", "on", "n", "no", "false", "off")
    for spelling in (word, word.capitalize(), word.upper())
}
_NULLS = {"", "~", "null", "Null", "NULL"}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_HEXADECIMAL = re.compile(r"[-+]?0[xX][0-9A-Fa-f]+")
_REAL = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)|[-+]?Infinity|NaN")

_LONGEST_NUMBER = 24  # characters; no key takes a number beyond 64 bits


def plain_scalar(text: str) -> Scalar:
    """The value of a plain scalar; raises ValueError with a sentence when it has none."""
    if text in _NULLS:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if text[0] not in "+-.0123456789IN":
        return text
    if _NOT_FINITE.fullmatch(text):
        raise ValueError("a finite number is needed")
    if _INTEGER.fullmatch(text):
        return _integer(text)
    if _HEXADECIMAL.fullmatch(text):
        _check_length(text)
        return int(text, 16)
    if _REAL.fullmatch(text):
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
    if len(text) > _LONGEST_NUMBER:
        raise ValueError("the number is too large")
