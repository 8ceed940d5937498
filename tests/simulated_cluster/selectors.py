"""Selectors of list and watch requests: by fields, and by labels that have a value."""

from collections.abc import Callable
from typing import Any

from tests.simulated_cluster.refusals import Refused

Matches = Callable[[dict[str, Any]], bool]

FIELDS = {
    "nodes": {"metadata.name"},
    "pods": {"metadata.name", "metadata.namespace", "spec.nodeName", "status.phase"},
    "events": {"involvedObject.kind", "involvedObject.name", "involvedObject.uid"},
    "resourceclaims": {"metadata.name", "metadata.namespace"},
    "resourceslices": {"metadata.name", "spec.nodeName", "spec.driver"},
}


def selected(plural: str, fields: str, labels: str) -> Matches:
    """Whether an object is one that the request asks for; raises Refused (400)."""
    wanted = [_field(plural, one) for one in fields.split(",") if one]
    wanted += [_label(one) for one in labels.split(",") if one]
    return lambda found: all(matches(found) for matches in wanted)


def _label(text: str) -> Matches:
    name, equals, wanted = text.replace("==", "=").partition("=")
    if not equals or name.endswith("!"):
        raise Refused(400, f"label selector not supported: {text}")
    return lambda found: bool(found["metadata"].get("labels", {}).get(name) == wanted)


def _field(plural: str, text: str) -> Matches:
    name, equals, wanted = text.replace("==", "=").partition("=")
    if not equals or name not in FIELDS[plural]:
        raise Refused(400, f"field label not supported: {name}")

    def matches(found: dict[str, Any]) -> bool:
        value: Any = found
        for key in name.split("."):
            value = value.get(key, "") if isinstance(value, dict) else ""
        return bool(value == wanted)

    return matches
