"""The description of the API that `GET /openapi.json` serves (OpenAPI 3.1)."""

from __future__ import annotations

from typing import Any

import msgspec

from nodeagent import __version__
from nodeagent.views.shapes import ANSWERS, Json

TEXT: Json = {"type": "string"}
WHOLE: Json = {"type": "integer"}


def ref(name: str) -> Json:
    """The schema of one of `ANSWERS`."""
    return {"$ref": f"#/components/schemas/{name}"}


def _answer(description: str, schema: Json) -> Json:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _get(summary: str, answers: Json, *parameters: Json) -> Json:
    operation: Json = {"summary": summary, "responses": answers}
    return {"get": {**operation, "parameters": list(parameters)} if parameters else operation}


def _query(name: str, description: str, schema: Json) -> Json:
    return {"name": name, "in": "query", "description": description, "schema": schema}


_ERROR = ref("Error")


def _request(summary: str, leaving: str, timed_out: Json, **fields: Json) -> Json:
    """Something that changes MPS, asked for with these fields beside the device."""
    device = {"type": "string", "description": "an index, a UUID or GPU:SLICE (0:4)"}
    body = {
        "type": "object",
        "required": ["device"],
        "properties": {"device": device, **fields, "force": _FORCE},
        "additionalProperties": False,
    }
    return {
        "post": {
            "summary": summary,
            "description": f"Only over the agent's Unix socket. Answers when it is done. {leaving}",
            "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
            "responses": {
                "200": _answer("done", ref("MpsDone")),
                "400": _answer("not a request of this form", _ERROR),
                "403": _answer("asked for over TCP", _ERROR),
                "404": _answer("there is no such device, or no one MPS daemon on it", _ERROR),
                "409": _answer("in use; the users are named", _ERROR),
                "500": _answer("it failed", _ERROR),
                **timed_out,
            },
        }
    }


_FORCE: Json = {"type": "boolean", "default": False, "description": "even if clients are lost"}


def _as_written(schema: Any) -> Any:
    """The schema without defaults and null: what would be one of them is left out of an answer."""
    if isinstance(schema, list):
        return [_as_written(part) for part in schema if part != {"type": "null"}]
    if not isinstance(schema, dict):
        return schema
    kept = {key: _as_written(part) for key, part in schema.items() if key != "default"}
    if len(kept.get("anyOf", ())) == 1:
        kept |= kept.pop("anyOf")[0]
    return kept


_SCHEMAS = _as_written(
    msgspec.json.schema_components(ANSWERS, ref_template="#/components/schemas/{name}")[1]
)
DESCRIPTION: Json = {
    "openapi": "3.1.0",
    "info": {
        "title": "nodeagent",
        "version": __version__,
        "description": "How the GPUs of this node are split. Read-only over TCP.",
    },
    "paths": {
        "/": _get(
            "A page for people",
            {"200": {"description": "HTML", "content": {"text/html": {"schema": TEXT}}}},
        ),
        "/healthz": _get(
            "Do the agent's loops beat?",
            {
                "200": _answer("yes", ref("Alive")),
                "503": _answer("no, and why", ref("Alive")),
            },
        ),
        "/readyz": _get(
            "Does the driver answer, is the first reconciliation done, is every MPS daemon there?",
            {
                "200": _answer("yes", ref("Alive")),
                "503": _answer("no, and why", ref("Alive")),
            },
        ),
        "/metrics": _get(
            "The newest sample of the GPUs, and what the agent says of itself",
            {
                "200": {
                    "description": "Prometheus' text format 0.0.4, gzip where it is accepted",
                    "content": {"text/plain": {"schema": TEXT}},
                },
                "503": _answer("too many scrapes are under way", _ERROR),
            },
        ),
        "/v1/status": _get(
            "The whole state",
            {
                "200": _answer("the state, gzip where it is accepted", ref("Status")),
                "304": {"description": "it is as If-None-Match says"},
                "404": _answer("there is no such GPU", _ERROR),
            },
            _query("gpu", "only the GPU of this UUID", TEXT),
        ),
        "/v1/plan": _get(
            "The plan in force and the steps that remain",
            {"200": _answer("the plan", ref("Plan"))},
        ),
        "/v1/plan/preview": {
            "post": {
                "summary": "What a plan would do; touches nothing",
                "parameters": [
                    _query("configuration", "which one of an nvidia-mig-parted file", TEXT)
                ],
                "requestBody": {
                    "required": True,
                    "description": "a plan or an nvidia-mig-parted file, at most 64 KiB",
                    "content": {"application/yaml": {}, "application/json": {}, "text/plain": {}},
                },
                "responses": {
                    "200": _answer("the steps, none of them taken", ref("Plan")),
                    "400": _answer("not a document", ref("Plan")),
                    "413": _answer("larger than 64 KiB", _ERROR),
                    "422": _answer("not possible on this node", ref("Plan")),
                    "503": _answer(
                        "the GPUs have not been observed yet, or too many ask at once", _ERROR
                    ),
                },
            }
        },
        "/v1/mps": _get(
            "The MPS daemons, their servers, and the clients with their limits and use",
            {
                "200": _answer("those of the node, or of one device", ref("Mps")),
                "404": _answer("there is no such device", _ERROR),
            },
            _query("device", "an index, a UUID or GPU:SLICE (0:4)", TEXT),
        ),
        "/v1/mps/restart": _request(
            "End a device's MPS daemon and start it anew",
            "It is done even if the caller leaves.",
            {},
        ),
        "/v1/mps/drain": _request(
            "Let no new clients in, wait for those that are there, then end the MPS daemon",
            "If the caller leaves, it is given up.",
            {"504": _answer("clients were left when the time was over; they are named", _ERROR)},
            timeout={
                "type": ["number", "null"],
                "minimum": 0,
                "description": "seconds to wait for the clients; null: however long it takes",
            },
        ),
        "/v1/events": _get(
            "The last events, or with `Accept: text/event-stream` the new ones as they happen",
            {
                "200": {
                    "description": "events, oldest first",
                    "content": {
                        "application/json": {"schema": {"type": "array", "items": ref("Event")}},
                        "text/event-stream": {"schema": TEXT},
                    },
                },
                "503": _answer("too many follow already", _ERROR),
            },
            _query("after", "follow from the event after this id on", WHOLE),
            {
                "name": "Last-Event-ID",
                "in": "header",
                "description": "the same, as browsers say it",
                "schema": WHOLE,
            },
        ),
        "/openapi.json": _get(
            "This description", {"200": _answer("OpenAPI 3.1", {"type": "object"})}
        ),
    },
    "components": {"schemas": _SCHEMAS},
}
