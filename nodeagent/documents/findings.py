"""Faults found in a document: where they are, in words that name what would be right."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from nodeagent.errors import DocumentError
from nodeagent.plan.codes import Code
from nodeagent.text import quote

if TYPE_CHECKING:
    from nodeagent.plan.problems import Problem

DocumentPath = tuple[str | int, ...]
Mark = tuple[int, int]  # line and column, both from 1

MAX_PROBLEMS = 20  # a person mends some and looks again; a hostile text must not fill a log

_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


def path_text(path: DocumentPath) -> str:
    """A place in a document: `gpus[2].mig[0].profile`, `gpus[0].mig["3g.40gb"]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN_KEY.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f"[{quote(part)}]"
    return text


class Findings:
    """Collects the faults of one document and raises them together, in the text's order.

    Without marks it is a value that was never a text here, and has no lines to name.
    """

    def __init__(
        self,
        marks: Mapping[DocumentPath, Mark] | None = None,
        key_marks: Mapping[DocumentPath, Mark] | None = None,
    ) -> None:
        self._has_lines = marks is not None
        self._marks = {} if marks is None else marks
        self._key_marks = {} if key_marks is None else key_marks
        self._found: list[tuple[Mark, Problem]] = []

    def add(
        self,
        code: Code,
        path: DocumentPath,
        message: str,
        *,
        remedy: str = "",
        of_key: bool = False,
        mark: Mark | None = None,
    ) -> None:
        """Note a fault at `path`; `of_key` when the key is at fault and not its value."""
        from nodeagent.plan.problems import Problem  # settings without a fault do without it

        if mark is None:
            mark = self._mark(path, of_key=of_key)
        line, column = mark
        where = f"{message} (line {line}, column {column})" if self._has_lines else message
        problem = Problem(code=code, message=where, remedy=remedy, path=path_text(path))
        self._found.append((mark, problem))

    @property
    def full(self) -> bool:
        """Whether looking for more is pointless."""
        return len(self._found) > MAX_PROBLEMS

    def raise_any(self) -> None:
        if not self._found:
            return
        self._found.sort(key=lambda fault: fault[0])
        problems = [problem for _, problem in self._found[:MAX_PROBLEMS]]
        if len(self._found) > MAX_PROBLEMS:
            from nodeagent.plan.problems import Problem

            problems.append(Problem.of(Code.SYNTAX, "more", most=MAX_PROBLEMS))
        raise DocumentError(problems)

    def _mark(self, path: DocumentPath, *, of_key: bool) -> Mark:
        if of_key and path in self._key_marks:
            return self._key_marks[path]
        while path and path not in self._marks:  # a missing key is reported where it should be
            path = path[:-1]
        return self._marks.get(path, (1, 1))


def refuse(code: Code, case: str, **facts: object) -> DocumentError:
    """A document that is refused for one reason that concerns it as a whole."""
    from nodeagent.plan.problems import Problem

    return DocumentError([Problem.of(code, case, gpu="", path="", **facts)])
