"""The words of every code, from catalogue.yaml, where it says how they are written.

It is read when the first of them is needed: most commands need none.
"""

import re
from collections.abc import Mapping
from functools import cache
from string import Formatter
from typing import Any, NamedTuple


class Words(NamedTuple):
    """What is wrong, and what mends it, both with facts in braces."""

    message: str
    remedy: str = ""


@cache
def section(kind: str) -> Mapping[str, Any]:
    """The entries of one kind (`problem`, `phase` and so on), by code. Only these are parsed."""
    import pkgutil

    import yaml

    text = (pkgutil.get_data("nodeagent", "catalogue.yaml") or b"").decode()
    begin = text.index(f"\n{kind}:\n") + 1
    end = re.compile(r"^(?=\w)", re.MULTILINE).search(text, begin + 1)
    found: Mapping[str, Any] = yaml.load(
        text[begin : end.start() if end else None], Loader=yaml.CSafeLoader
    )[kind]
    return found


@cache
def problem_words(code: str, case: str = "") -> Words:
    """Words of a problem, or of one of the cases of its code."""
    entry = section("problem")[code]
    words = entry["cases"][case] if case else entry
    return Words(words["message"], words.get("remedy", ""))


def filled(words: str, facts: Mapping[str, object]) -> str:
    """The words with the facts in their places."""
    return _FACTS.vformat(words, (), facts)


class _Facts(Formatter):
    """Formats `{why:: }` as `: ` and the fact, or as nothing where the fact is empty."""

    def format_field(self, value: object, format_spec: str) -> str:
        text = str(value)
        return f"{format_spec}{text}" if text else ""


_FACTS = _Facts()
