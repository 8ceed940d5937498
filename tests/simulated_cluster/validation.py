"""What the API server accepts as metadata: names, labels and annotations."""

import re
from typing import Any

from tests.simulated_cluster.refusals import invalid

ANNOTATIONS_LIMIT = 256 * 1024  # bytes of all keys and values together, by any writer

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
NO_KEY = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
    "validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
NO_LABEL = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', "
    "and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or "
    "'12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_WORD = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


def check_metadata(kind: str, name: str, metadata: Any) -> None:
    """Raise Refused (422) with every fault found."""
    if not isinstance(metadata, dict):
        raise invalid(kind, name, "metadata: Invalid value: has to be an object")
    faults = [] if _is_name(name) else [f'metadata.name: Invalid value: "{name}"']
    for field in ("labels", "annotations"):
        faults += _pairs(field, metadata.get(field))
    if faults:
        raise invalid(kind, name, *faults)
    size = sum(
        len(key.encode()) + len(value.encode())
        for key, value in (metadata.get("annotations") or {}).items()
    )
    if size > ANNOTATIONS_LIMIT:
        raise invalid(
            kind,
            name,
            f"metadata.annotations: Too long: may not be more than {ANNOTATIONS_LIMIT} bytes",
        )


def _pairs(field: str, pairs: Any) -> list[str]:
    if pairs is None:
        return []
    if not isinstance(pairs, dict):
        return [f"metadata.{field}: Invalid value: has to be an object"]
    faults = []
    for key, value in pairs.items():
        if not _is_key(key if field == "labels" else key.lower()):
            faults.append(f'metadata.{field}: Invalid value: "{key}": {NO_KEY}')
        if not isinstance(value, str):
            faults.append(f"metadata.{field}: Invalid value: {value!r}: has to be a string")
        elif field == "labels" and not _is_label_value(value):
            faults.append(f'metadata.labels: Invalid value: "{value}": {NO_LABEL}')
    return faults


def _is_name(text: str) -> bool:
    return len(text) <= 253 and bool(_NAME.fullmatch(text))


def _is_key(key: str) -> bool:
    prefix, slash, word = key.rpartition("/")
    return len(word) <= 63 and bool(_WORD.fullmatch(word)) and (not slash or _is_name(prefix))


def _is_label_value(value: str) -> bool:
    return not value or (len(value) <= 63 and bool(_WORD.fullmatch(value)))
