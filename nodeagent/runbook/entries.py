"""One entry of the runbook, and how the texts of this package become entries."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

import yaml

from nodeagent.structs import Struct


class Kind(StrEnum):
    """What a code names."""

    PHASE = "phase"  # of the plan
    PROBLEM = "problem"
    CONDITION = "condition"  # of the Node
    REASON = "reason"  # of a condition, or the code of a headline, that is none of the others
    CHECK = "check"  # of health
    FINDING = "finding"  # of such a check
    XID = "xid"
    EVENT = "event"  # the reason of an Event that is none of the others
    ALERT = "alert"
    PREFLIGHT = "preflight"  # what `nodeagent check` looks at
    CLAIM = "claim"  # the phase of a claim
    DAEMON = "daemon"  # the state of an MPS daemon


class Entry(Struct, frozen=True):
    """What a code means, in sentences, the first of them short; then lines for a shell.

    `look` shows what is wrong, `mend` ends it. Words in capitals stand for values of the node; a
    line that begins with # is for people. `see` names entries that belong to it.
    """

    kind: Kind
    code: str
    means: str
    look: tuple[str, ...] = ()
    mend: tuple[str, ...] = ()
    see: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The code as it is spelled; a number needs its name."""
        return f"XID {self.code}" if self.kind is Kind.XID else self.code

    @property
    def first_sentence(self) -> str:
        end = self.means.find(". ")
        return self.means if end < 0 else self.means[: end + 1]


Actions = Mapping[str, tuple[str, ...]]  # lines for a shell, by name in braces


def document(name: str) -> Any:
    """One of the texts of this package."""
    text = pkgutil.get_data("nodeagent.runbook", f"{name}.yaml") or b""
    return yaml.load(text, Loader=yaml.CSafeLoader)


def read_actions() -> Actions:
    """What `{reset}` and the like stand for."""
    return {f"{{{name}}}": tuple(text.splitlines()) for name, text in document("actions").items()}


def shell_lines(text: str, actions: Actions) -> tuple[str, ...]:
    """The text's lines, with those of an action in the place of its name."""
    return tuple(found for line in text.splitlines() for found in actions.get(line, (line,)))


def read_entries(name: str, actions: Actions) -> Iterator[Entry]:
    """The entries of a text, kind by kind, in its order."""
    for kind, entries in document(name).items():
        for code, parts in entries.items():
            yield Entry(
                Kind(kind),
                code,
                parts["means"],
                shell_lines(parts["look"], actions),
                shell_lines(parts["mend"], actions),
                tuple(parts.get("see", ())),
            )
