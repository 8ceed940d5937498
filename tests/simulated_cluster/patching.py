"""The patch formats that the agent and kubectl use: JSON merge patch and strategic merge patch."""

import copy
from collections.abc import Mapping
from typing import Any

from tests.simulated_cluster.refusals import Refused

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"

# Lists that a strategic merge patch merges, by the key of their entries; others are replaced.
MERGE_KEYS: Mapping[str, Mapping[tuple[str, ...], str]] = {
    "Node": {
        ("status", "conditions"): "type",
        ("status", "addresses"): "type",
        ("spec", "taints"): "key",
    },
    "Pod": {
        ("status", "conditions"): "type",
        ("spec", "containers"): "name",
        ("metadata", "ownerReferences"): "uid",
    },
    "Event": {},
}


def patched(kind: str, found: dict[str, Any], content_type: str, patch: Any) -> Any:
    """`found` as the patch makes it; raises Refused. `found` stays as it is."""
    if content_type not in {MERGE, STRATEGIC}:
        known = f"{MERGE}, {STRATEGIC}"
        raise Refused(
            415,
            f"the body of the request was in an unknown format - accepted media types include: "
            f"{known}",
        )
    if not isinstance(patch, dict):
        raise Refused(400, f"a {content_type} has to be an object")
    if content_type == MERGE:
        return merged(copy.deepcopy(found), patch)
    return _strategic(kind, (), copy.deepcopy(found), patch)


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386: null deletes, objects are merged, everything else is replaced."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    target = target if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        else:
            target[key] = merged(target.get(key), value)
    return target


# --- strategic merge ----------------------------------------------------------------------------


def _strategic(kind: str, path: tuple[str, ...], target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    target = target if isinstance(target, dict) else {}
    for key, value in patch.items():
        inner = (*path, key)
        if value is None:
            target.pop(key, None)
        elif isinstance(value, list) and inner in MERGE_KEYS[kind]:
            target[key] = _list(kind, inner, target.get(key) or [], value)
        else:
            target[key] = _strategic(kind, inner, target.get(key), value)
    return target


def _list(
    kind: str, path: tuple[str, ...], found: list[dict[str, Any]], patch: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    by = MERGE_KEYS[kind][path]
    result = {entry[by]: entry for entry in found}
    for entry in patch:
        if by not in entry:
            raise Refused(400, f"map: {entry} does not contain declared merge key: {by}")
        # An empty path: inside the entries of these lists nothing is merged by a key.
        result[entry[by]] = _strategic(kind, (), result.get(entry[by]), entry)
    return list(result.values())
