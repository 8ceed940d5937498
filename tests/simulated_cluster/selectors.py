"""Field selectors of list and watch requests."""

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


def selected(plural: str, fields: str) -> Matches:
    """Whether an object is one that the request asks for; raises Refused (400)."""
    wanted = [_field(plural, one) for one in fields.split(",") if one]
    return lambda found: all(matches(found) for matches in wanted)


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
