"""The patch formats: JSON merge patch, Kubernetes' strategic merge patch and JSON patch."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from tests.simulated_cluster.refusals import Refused, invalid

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"

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


def patched(kind: str, name: str, found: dict[str, Any], content_type: str, patch: Any) -> Any:
    """`found` as the patch makes it; raises Refused. `found` stays as it is."""
    if content_type not in {MERGE, STRATEGIC, JSON_PATCH}:
        known = f"{JSON_PATCH}, {MERGE}, {STRATEGIC}"
        raise Refused(
            415,
            f"the body of the request was in an unknown format - accepted media types include: "
            f"{known}",
        )
    if content_type == JSON_PATCH:
        if not isinstance(patch, list):
            raise Refused(400, "a JSON patch has to be a list of operations")
        return _json_patch(kind, name, copy.deepcopy(found), patch)
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
    directive = patch.get("$patch")
    if directive == "replace":
        return {key: copy.deepcopy(value) for key, value in patch.items() if key != "$patch"}
    for key, value in patch.items():
        if key.startswith("$"):
            continue  # orders of lists: what they order is not looked at here
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
    if any(entry.get("$patch") == "replace" for entry in patch):
        return [copy.deepcopy(entry) for entry in patch if "$patch" not in entry]
    result = {entry[by]: entry for entry in found}
    for entry in patch:
        if by not in entry:
            raise Refused(400, f"map: {entry} does not contain declared merge key: {by}")
        if entry.get("$patch") == "delete":
            result.pop(entry[by], None)
        else:
            # An empty path: inside the entries of these lists nothing is merged by a key.
            result[entry[by]] = _strategic(kind, (), result.get(entry[by]), entry)
    return list(result.values())


# --- JSON patch ---------------------------------------------------------------------------------


def _json_patch(kind: str, name: str, target: dict[str, Any], operations: list[Any]) -> Any:
    for operation in operations:
        try:
            what, path = operation["op"], operation["path"]
            value = operation["value"] if what in {"add", "replace", "test"} else None
        except (KeyError, TypeError) as error:
            raise Refused(400, f"not an operation of a JSON patch: {operation}") from error
        try:
            _one(target, what, _keys(path), value)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise invalid(kind, name, f"the server rejected our request: {what} {path}") from error
    return target


def _keys(path: str) -> list[str]:
    if path and not path.startswith("/"):
        raise ValueError(path)
    return [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]]


def _one(target: Any, what: str, keys: list[str], value: Any) -> None:
    *way, last = keys
    for key in way:
        target = target[int(key)] if isinstance(target, list) else target[key]
    at: Any = last
    if isinstance(target, list):
        at = len(target) if last == "-" else int(last)
    match what:
        case "add" if isinstance(target, list):
            target.insert(at, copy.deepcopy(value))
        case "add":
            target[at] = copy.deepcopy(value)
        case "replace":
            _ = target[at]  # has to be there
            target[at] = copy.deepcopy(value)
        case "remove":
            del target[at]
        case "test":
            if (target.get(at) if isinstance(target, dict) else target[at]) != value:
                raise ValueError(value)
        case _:
            raise ValueError(what)
