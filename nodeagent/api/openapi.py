"""The description of the API that `GET /openapi.json` serves (OpenAPI 3.1)."""

from pathlib import Path
from typing import Any

import msgspec

from nodeagent import __version__
from nodeagent.documents.bounded_yaml import read_tree
from nodeagent.views.shapes import Advised, Alive, Error, Event, History, Json, Mps, MpsDone, Plan
from nodeagent.views.status_shapes import Status

_ANSWERS = (Status, Plan, Mps, MpsDone, Event, History, Advised, Alive, Error)


def _as_written(schema: Any) -> Any:
    """The schema without defaults and null: what would be one of them is left out of an answer, but
    for an item of a list, and what has to be there.
    """
    if isinstance(schema, list):
        return [_as_written(part) for part in schema if part != {"type": "null"}]
    if not isinstance(schema, dict):
        return schema
    kept = {
        key: part if key == "items" else _as_written(part)
        for key, part in schema.items()
        if key != "default"
    }
    for name in schema.get("required", ()):
        kept["properties"][name] = schema["properties"][name]
    if len(kept.get("anyOf", ())) == 1:
        kept |= kept.pop("anyOf")[0]
    return kept


_SCHEMAS = msgspec.json.schema_components(_ANSWERS, ref_template="#/components/schemas/{name}")[1]
DESCRIPTION: Json = {
    "openapi": "3.1.0",
    "info": {
        "title": "nodeagent",
        "version": __version__,
        "description": "The GPUs of this node and how they are partitioned. Read-only over TCP.",
    },
    "paths": read_tree(Path(__file__).with_name("paths.yaml").read_bytes()).value,
    "components": {"schemas": _as_written(_SCHEMAS)},
}
