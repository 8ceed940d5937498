"""The CDI project's own schema, and its grammar of device names."""

import json
import re
from pathlib import Path
from typing import Any

from jsonschema import Draft7Validator
from referencing import Registry
from referencing.jsonschema import DRAFT7

_FOLDER = Path(__file__).parent / "data/cdi"


def valid_names(document: dict[str, Any]) -> list[str]:
    """The names of its devices; fails where the document or one of them is not valid."""
    schema, parts = (
        json.loads((_FOLDER / f"{name}.json").read_text()) for name in ("schema", "defs")
    )
    registry: Registry[Any] = Registry().with_resource("defs.json", DRAFT7.create_resource(parts))
    Draft7Validator(schema, registry=registry).validate(document)
    names = [device["name"] for device in document["devices"]]
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.:-]*[A-Za-z0-9]", name) for name in names)
    return names
