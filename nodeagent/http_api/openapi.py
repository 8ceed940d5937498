"""The description of the API that `GET /openapi.json` serves (OpenAPI 3.1)."""

from __future__ import annotations

from typing import Any

from nodeagent import __version__

Json = dict[str, Any]

_TEXT: Json = {"type": "string"}
_WHOLE: Json = {"type": "integer"}
_YES_NO: Json = {"type": "boolean"}
_TIME: Json = {"type": "string", "format": "date-time"}
_BYTES: Json = {"type": "integer", "minimum": 0, "description": "bytes"}
_MODE: Json = {"enum": ["enabled", "disabled"]}
_MODE_STATES: Json = {"type": "object", "properties": {"current": _MODE, "pending": _MODE}}
_VERDICT: Json = {"enum": ["inSync", "applicable", "blocked", "unsatisfiable", "invalid"]}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _list_of(item: Json) -> Json:
    return {"type": "array", "items": item}


def _object(required: Json, optional: Json | None = None) -> Json:
    """More keys may be added; those that are required stay."""
    return {
        "type": "object",
        "required": list(required),
        "properties": {**required, **(optional or {})},
    }


_SCHEMAS: Json = {
    "Status": _object(
        {
            "node": _TEXT,
            "phase": {"enum": ["InSync", "Working", "Blocked", "Rejected", "Failed"]},
            "message": {"type": "string", "description": "the state in one sentence"},
            "source": _TEXT,
            "gpus": _list_of(_ref("Gpu")),
            "mps": _list_of({"type": "object"}),
            "problems": _list_of(_ref("Problem")),
        },
        {
            "digest": {"type": "string", "description": "of the plan in force"},
            "configuration": _TEXT,
            "observedAt": _TIME,
            "driverVersion": _TEXT,
            "rejected": _object({"problems": _list_of(_ref("Problem"))}, {"digest": _TEXT}),
        },
    ),
    "Gpu": _object(
        {
            "index": _WHOLE,
            "slots": {"type": "integer", "description": "memory slices of the card"},
            "instances": _list_of(_ref("Instance")),
            "users": _list_of(_ref("User")),
            "health": _object(
                {
                    "status": {"enum": ["healthy", "unhealthy", "unknown"]},
                    "findings": _list_of(
                        _object({"cause": _TEXT, "evidence": _TEXT, "suggestedAction": _TEXT})
                    ),
                }
            ),
        },
        {
            "uuid": {"type": "string", "description": "absent while it never answered"},
            "name": _TEXT,
            "pciBusId": _TEXT,
            "memory": _object({"total": _BYTES}),
            "mig": _MODE_STATES,
            "free": _object(
                {
                    "slots": _list_of(_WHOLE),
                    "creatable": {"type": "object", "additionalProperties": _WHOLE},
                }
            ),
        },
    ),
    "Instance": _object(
        {
            "profile": _TEXT,
            "start": {"type": "integer", "description": "first memory slice"},
            "size": {"type": "integer", "description": "memory slices"},
            "gi": _WHOLE,
            "inUse": _YES_NO,
            "users": _list_of(_ref("User")),
        },
        {
            "uuid": {"type": "string", "description": "absent while it is half-made"},
            "ci": _WHOLE,
            "usersUnknown": {"type": "string", "description": "why it counts as in use"},
            "memory": _object({"used": _BYTES, "total": _BYTES}),
        },
    ),
    "User": _object(
        {"source": {"enum": ["process", "mps", "capability", "kubelet"]}},
        {
            "pid": _WHOLE,
            "command": _TEXT,
            "memory": _object({"used": _BYTES}),
            "pod": _object({"namespace": _TEXT, "name": _TEXT, "container": _TEXT}),
        },
    ),
    "Plan": _object(
        {
            "verdict": _VERDICT,
            "source": _TEXT,
            "gpus": _list_of(
                _object(
                    {
                        "index": _WHOLE,
                        "verdict": _VERDICT,
                        "before": _list_of(_ref("Place")),
                        "after": _list_of(_ref("Place")),
                        "steps": _list_of(_ref("Step")),
                    },
                    {"uuid": _TEXT, "name": _TEXT},
                )
            ),
            "problems": _list_of(_ref("Problem")),
        },
        {"digest": _TEXT},
    ),
    "Place": _object(
        {"profile": _TEXT, "start": _WHOLE, "size": _WHOLE}, {"uuid": _TEXT, "inUse": _YES_NO}
    ),
    "Step": _object(
        {
            "kind": {
                "enum": [
                    "setMigMode",
                    "resetGpu",
                    "stopMps",
                    "destroyInstance",
                    "createInstance",
                    "startMps",
                    "setTimeSlice",
                    "setComputeMode",
                ]
            },
            "reason": _TEXT,
        },
        {"profile": _TEXT, "start": _WHOLE, "size": _WHOLE, "uuid": _TEXT},
    ),
    "Problem": _object(
        {"code": _TEXT, "message": _TEXT}, {"gpu": _TEXT, "path": _TEXT, "remedy": _TEXT}
    ),
    "Event": _object(
        {"id": _WHOLE, "time": _TIME, "type": _TEXT, "message": _TEXT}, {"gpu": _TEXT}
    ),
    "Verdict": _object({"status": {"enum": ["ok", "unavailable"]}}, {"reasons": _list_of(_TEXT)}),
    "Error": _object({"error": _TEXT}),
}


def _answer(description: str, schema: Json) -> Json:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _get(summary: str, answers: Json, *parameters: Json) -> Json:
    operation: Json = {"summary": summary, "responses": answers}
    return {"get": {**operation, "parameters": list(parameters)} if parameters else operation}


def _query(name: str, description: str, schema: Json) -> Json:
    return {"name": name, "in": "query", "description": description, "schema": schema}


_ERROR = _ref("Error")

DESCRIPTION: Json = {
    "openapi": "3.1.0",
    "info": {
        "title": "nodeagent",
        "version": __version__,
        "description": "How the GPUs of this node are split. Read-only.",
    },
    "paths": {
        "/": _get(
            "A page for people",
            {"200": {"description": "HTML", "content": {"text/html": {"schema": _TEXT}}}},
        ),
        "/healthz": _get(
            "Do the agent's loops beat?",
            {
                "200": _answer("yes", _ref("Verdict")),
                "503": _answer("no, and why", _ref("Verdict")),
            },
        ),
        "/readyz": _get(
            "Does the driver answer, and is the first reconciliation done?",
            {
                "200": _answer("yes", _ref("Verdict")),
                "503": _answer("no, and why", _ref("Verdict")),
            },
        ),
        "/v1/status": _get(
            "The whole state",
            {
                "200": _answer("the state", _ref("Status")),
                "404": _answer("there is no such GPU", _ERROR),
            },
            _query("gpu", "only the GPU of this UUID", _TEXT),
        ),
        "/v1/plan": _get(
            "The plan in force and the steps that remain",
            {"200": _answer("the plan", _ref("Plan"))},
        ),
        "/v1/plan/preview": {
            "post": {
                "summary": "What a plan would do; touches nothing",
                "parameters": [
                    _query("configuration", "which one of an nvidia-mig-parted file", _TEXT)
                ],
                "requestBody": {
                    "required": True,
                    "description": "a plan or an nvidia-mig-parted file, at most 64 KiB",
                    "content": {"application/yaml": {}, "application/json": {}, "text/plain": {}},
                },
                "responses": {
                    "200": _answer("the steps, none of them taken", _ref("Plan")),
                    "400": _answer("not a document", _ref("Plan")),
                    "413": _answer("larger than 64 KiB", _ERROR),
                    "422": _answer("not possible on this node", _ref("Plan")),
                    "503": _answer(
                        "the GPUs have not been observed yet, or too many ask at once", _ERROR
                    ),
                },
            }
        },
        "/v1/events": _get(
            "The last events, or with `Accept: text/event-stream` the new ones as they happen",
            {
                "200": {
                    "description": "events, oldest first",
                    "content": {
                        "application/json": {"schema": _list_of(_ref("Event"))},
                        "text/event-stream": {"schema": _TEXT},
                    },
                },
                "503": _answer("too many follow already", _ERROR),
            },
            _query("after", "follow from the event after this id on", _WHOLE),
            {
                "name": "Last-Event-ID",
                "in": "header",
                "description": "the same, as browsers say it",
                "schema": _WHOLE,
            },
        ),
        "/openapi.json": _get(
            "This description", {"200": _answer("OpenAPI 3.1", {"type": "object"})}
        ),
    },
    "components": {"schemas": _SCHEMAS},
}
