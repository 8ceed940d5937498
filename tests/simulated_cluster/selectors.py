"""Field and label selectors of list and watch requests."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tests.simulated_cluster.refusals import Refused

Matches = Callable[[dict[str, Any]], bool]

FIELDS = {
    "nodes": {"metadata.name", "spec.unschedulable"},
    "pods": {"metadata.name", "metadata.namespace", "spec.nodeName", "status.phase"},
    "events": {
        "metadata.name",
        "metadata.namespace",
        "involvedObject.kind",
        "involvedObject.name",
        "involvedObject.uid",
        "reason",
        "type",
    },
    "resourceclaims": {"metadata.name", "metadata.namespace"},
    "resourceslices": {"metadata.name", "spec.nodeName", "spec.driver"},
}

_SET = re.compile(r"\s*(\S+)\s+(in|notin)\s+\(([^)]*)\)\s*")
_COMMA = re.compile(r",(?![^(]*\))")  # not those inside of brackets


def selected(plural: str, fields: str, labels: str) -> Matches:
    """Whether an object is one that the request asks for; raises Refused (400)."""
    wanted = [_field(plural, one) for one in fields.split(",") if one]
    wanted += [_label(one) for one in _COMMA.split(labels) if one]
    return lambda found: all(matches(found) for matches in wanted)


def _field(plural: str, text: str) -> Matches:
    name, operator, value = _split(text)
    if name not in FIELDS[plural]:
        raise Refused(400, f"field label not supported: {name}")

    def matches(found: dict[str, Any]) -> bool:
        value_found: Any = found
        for key in name.split("."):
            value_found = value_found.get(key, "") if isinstance(value_found, dict) else ""
        text = str(value_found).lower() if isinstance(value_found, bool) else value_found
        return bool((text == value) == (operator == "="))

    return matches


def _label(text: str) -> Matches:
    if in_set := _SET.fullmatch(text):
        name, operator, listed = in_set.groups()
        values = {value.strip() for value in listed.split(",")}
        return lambda found: (_labels(found).get(name) in values) == (operator == "in")
    if "=" in text:
        name, operator, value = _split(text)
        return lambda found: (_labels(found).get(name) == value) == (operator == "=")
    name = text.strip()
    if name.startswith("!"):
        return lambda found: name[1:] not in _labels(found)
    return lambda found: name in _labels(found)


def _labels(found: dict[str, Any]) -> dict[str, str]:
    return found["metadata"].get("labels") or {}


def _split(text: str) -> tuple[str, str, str]:
    for operator in ("!=", "==", "="):
        name, found, value = text.partition(operator)
        if found:
            return name.strip(), operator.replace("==", "="), value.strip()
    raise Refused(400, f"invalid selector: '{text}'")
