"""The words of every code, from catalogue.yaml, where it says how they are written.

It is read when the first of them is needed: most commands need none.
"""

import re
from collections.abc import Mapping
from functools import cache
from string import Formatter
from typing import Any, NamedTuple

_own_pod: dict[str, str] = {}  # node and name of the pod that this is; empty for a service


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
    own = {"agent": agent_words()} if "{agent[" in words else {}
    return _FACTS.vformat(words, (), {**own, **facts})


def learn_agent(environment: Mapping[str, str]) -> None:
    """Have the words for an agent in a pod where this environment is that of one."""
    _own_pod.clear()
    if environment.get("KUBERNETES_SERVICE_HOST"):
        node = environment.get("NODEAGENT_NODE_NAME") or environment.get("NODE_NAME", "NODE")
        _own_pod.update(node=node, pod=environment.get("HOSTNAME", "POD"))


def agent_words() -> Mapping[str, str]:
    """What stops, starts and shows this agent."""
    found = section("agent")["pod" if _own_pod else "service"]
    return {key: filled(words, _own_pod) for key, words in found.items()}


class _Facts(Formatter):
    """Formats `{why:: }` as `: ` and the fact, or as nothing where the fact is empty."""

    def format_field(self, value: object, format_spec: str) -> str:
        text = str(value)
        return f"{format_spec}{text}" if text else ""


_FACTS = _Facts()
