"""The shapes of what the API answers, as JSON Schema."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

TEXT: Json = {"type": "string"}
WHOLE: Json = {"type": "integer"}
YES_NO: Json = {"type": "boolean"}
TIME: Json = {"type": "string", "format": "date-time"}
BYTES: Json = {"type": "integer", "minimum": 0, "description": "bytes"}
PERCENT: Json = {"type": "number", "description": "percent of the threads"}
MODE: Json = {"enum": ["enabled", "disabled"]}
COMPUTE_MODE: Json = {"enum": ["default", "exclusiveThread", "prohibited", "exclusiveProcess"]}
MODE_STATES: Json = {"type": "object", "properties": {"current": MODE, "pending": MODE}}
VERDICT: Json = {"enum": ["inSync", "applicable", "blocked", "unsatisfiable", "invalid"]}


def ref(name: str) -> Json:
    """One of SCHEMAS, by name."""
    return {"$ref": f"#/components/schemas/{name}"}


def list_of(item: Json) -> Json:
    """An array of these."""
    return {"type": "array", "items": item}


def object_of(required: Json, optional: Json | None = None) -> Json:
    """An object with these keys. More may be added; those that are required stay."""
    return {
        "type": "object",
        "required": list(required),
        "properties": {**required, **(optional or {})},
    }


# By name; the rest of the description refers to them.
_MPS_USER: Json = {"description": "user id, or any", "oneOf": [WHOLE, {"const": "any"}]}
_SHARES: Json = {
    "type": "object",
    "additionalProperties": object_of({}, {"count": WHOLE, "memory": BYTES, "threads": PERCENT}),
}

SCHEMAS: Json = {
    "Status": object_of(
        {
            "node": TEXT,
            "headline": ref("Headline"),
            "phase": {"enum": ["InSync", "Working", "Blocked", "Rejected", "Failed", "NoPlan"]},
            "message": {"type": "string", "description": "the state in one sentence"},
            "source": TEXT,
            "gpus": list_of(ref("Gpu")),
            "mps": list_of(ref("MpsDaemon")),
            "problems": list_of(ref("Problem")),
        },
        {
            "digest": {"type": "string", "description": "of the plan in force"},
            "configuration": TEXT,
            "observedAt": TIME,
            "driverVersion": TEXT,
            "rejected": object_of({"problems": list_of(ref("Problem"))}, {"digest": TEXT}),
            "health": {**ref("Health"), "description": "of the node itself"},
            "cluster": ref("Cluster"),
        },
    ),
    "Headline": object_of(
        {
            "severity": {"enum": ["ok", "info", "warning", "error"]},
            "text": {"type": "string", "description": "the worst thing about the node"},
        },
        {
            "remedy": TEXT,
            "gpu": {"type": "string", "description": "absent where it is of no single GPU"},
            "code": {"type": "string", "description": "a problem's code, a cause or a phase"},
        },
    ),
    "Cluster": object_of(
        {
            "server": {"type": "string", "description": "the API server's address"},
            "reachable": {**YES_NO, "description": "whether the Node can be followed now"},
            "registered": {**YES_NO, "description": "whether the cluster has a Node of this name"},
        },
        {
            "since": {**TIME, "description": "absent while reachable was never otherwise"},
            "problem": object_of({"message": TEXT, "remedy": TEXT}),
        },
    ),
    "Gpu": object_of(
        {
            "index": WHOLE,
            "slots": {"type": "integer", "description": "memory slices of the card"},
            "instances": list_of(ref("Instance")),
            "users": list_of(ref("User")),
            "health": ref("Health"),
        },
        {
            "uuid": {"type": "string", "description": "absent while it never answered"},
            "name": TEXT,
            "pciBusId": TEXT,
            "memory": object_of({"total": BYTES}),
            "mig": MODE_STATES,
            "computeMode": COMPUTE_MODE,
            "timeSlice": {"enum": ["default", "short", "medium", "long"]},
            "numaNode": {"type": "integer", "description": "whose processors are nearest"},
            "nvlink": object_of(
                {
                    "total": {"type": "integer", "description": "links of the card"},
                    "active": {"type": "integer", "description": "those that are up"},
                    "peers": {
                        "type": "object",
                        "description": "how many lead to a GPU, by UUID, or to nvswitch",
                        "additionalProperties": WHOLE,
                    },
                }
            ),
            "free": object_of(
                {
                    "slots": list_of(WHOLE),
                    "creatable": {"type": "object", "additionalProperties": WHOLE},
                }
            ),
        },
    ),
    "Health": object_of(
        {
            "status": {
                "enum": ["healthy", "degraded", "unknown", "unhealthy"],
                "description": "of its worst finding",
            },
            "findings": list_of(ref("HealthFinding")),
        }
    ),
    "HealthFinding": object_of(
        {
            "check": {"type": "string", "description": "what was looked at"},
            "cause": TEXT,
            "severity": {"enum": ["healthy", "degraded", "unknown", "unhealthy"]},
            "message": {"type": "string", "description": "the cause in words"},
            "evidence": {"type": "string", "description": "what was read, with its figures"},
            "suggestedAction": {
                "enum": ["none", "restart application", "reset GPU", "reboot", "inspect hardware"]
            },
            "advice": TEXT,
        },
        {
            "since": TIME,
            "lastSeen": TIME,
            "count": {"type": "integer", "description": "how often it was told"},
            "xid": WHOLE,
            "link": {"type": "integer", "description": "of NVLink"},
            "gi": {"type": "integer", "description": "the GPU instance it hit"},
            "ci": {"type": "integer", "description": "the compute instance it hit"},
            "start": {"type": "integer", "description": "first memory slice that it hit"},
            "size": {"type": "integer", "description": "memory slices that it hit"},
            "pid": WHOLE,
            "pods": {
                **list_of(object_of({"namespace": TEXT, "name": TEXT, "container": TEXT})),
                "description": "who used the place when it was found",
            },
        },
    ),
    "Instance": object_of(
        {
            "profile": TEXT,
            "start": {"type": "integer", "description": "first memory slice"},
            "size": {"type": "integer", "description": "memory slices"},
            "gi": WHOLE,
            "inUse": YES_NO,
            "users": list_of(ref("User")),
        },
        {
            "uuid": {"type": "string", "description": "absent while it is half-made"},
            "ci": WHOLE,
            "usersUnknown": {"type": "string", "description": "why it counts as in use"},
            "computeMode": COMPUTE_MODE,
            "memory": object_of({"used": BYTES, "total": BYTES}),
        },
    ),
    "User": object_of(
        {"source": {"enum": ["process", "mps", "capability", "kubelet"]}},
        {
            "pid": WHOLE,
            "command": TEXT,
            "memory": object_of({"used": BYTES}),
            "pod": object_of({"namespace": TEXT, "name": TEXT, "container": TEXT}),
        },
    ),
    "Plan": object_of(
        {
            "verdict": VERDICT,
            "source": TEXT,
            "gpus": list_of(
                object_of(
                    {
                        "index": WHOLE,
                        "verdict": VERDICT,
                        "before": list_of(ref("Place")),
                        "after": list_of(ref("Place")),
                        "steps": list_of(ref("Step")),
                    },
                    {"uuid": TEXT, "name": TEXT},
                )
            ),
            "problems": list_of(ref("Problem")),
        },
        {"digest": TEXT},
    ),
    "Place": object_of(
        {"profile": TEXT, "start": WHOLE, "size": WHOLE},
        {"uuid": TEXT, "inUse": YES_NO, "mps": YES_NO},
    ),
    "Step": object_of(
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
            "reason": TEXT,
        },
        {
            "profile": TEXT,
            "start": WHOLE,
            "size": WHOLE,
            "uuid": TEXT,
            "device": {
                "type": "string",
                "description": "whose MPS or compute mode; absent while it is not made yet",
            },
            "mode": {
                "enum": [
                    "enabled",
                    "disabled",
                    "default",
                    "exclusiveThread",
                    "prohibited",
                    "exclusiveProcess",
                ],
                "description": "MIG mode, or compute mode",
            },
            "timeSlice": {"enum": ["default", "short", "medium", "long"]},
            "user": _MPS_USER,
            "shares": _SHARES,
            "runs": {**YES_NO, "description": "the daemon is there and only gets other limits"},
        },
    ),
    "Problem": object_of(
        {"code": TEXT, "message": TEXT}, {"gpu": TEXT, "path": TEXT, "remedy": TEXT}
    ),
    "Event": object_of({"id": WHOLE, "time": TIME, "type": TEXT, "message": TEXT}, {"gpu": TEXT}),
    "Mps": object_of({"node": TEXT, "daemons": list_of(ref("MpsDaemon"))}, {"observedAt": TIME}),
    "MpsDaemon": object_of(
        {
            "device": {"type": "string", "description": "UUID of a GPU or MIG device"},
            "state": {
                "enum": [
                    "Down",
                    "Starting",
                    "Limiting",
                    "Ready",
                    "Draining",
                    "Fault",
                    "Backoff",
                    "Failed",
                ]
            },
            "restarts": WHOLE,
            "clients": list_of(ref("MpsClient")),
        },
        {
            "gpu": {"type": "integer", "description": "index of the device's GPU"},
            "profile": {"type": "string", "description": "of a MIG device"},
            "start": {"type": "integer", "description": "its first memory slice"},
            "size": {"type": "integer", "description": "its memory slices"},
            "why": {"type": "string", "description": "why it is not Ready"},
            "trouble": {
                "type": "string",
                "description": "that it cannot be asked, or how its last server failed",
            },
            "since": TIME,
            "pid": WHOLE,
            "user": _MPS_USER,
            "pipeDirectory": TEXT,
            "enforce": {"enum": ["report", "terminate"]},
            "shares": _SHARES,
            "server": object_of({"pid": WHOLE, "status": TEXT}, {"user": WHOLE}),
            "waiting": list_of(object_of({"pid": WHOLE, "user": WHOLE}, {"command": TEXT})),
            "lastLines": {**list_of(TEXT), "description": "of its log, where it failed"},
        },
    ),
    "MpsClient": object_of(
        {"pid": WHOLE},
        {
            "command": TEXT,
            "user": WHOLE,
            "share": TEXT,
            "slot": TEXT,
            "memory": object_of({}, {"used": BYTES, "limit": BYTES}),
            "threads": PERCENT,
            "pod": object_of({"namespace": TEXT, "name": TEXT, "container": TEXT}),
            "findings": {**list_of(TEXT), "description": "what is wrong with it"},
        },
    ),
    "MpsDone": object_of(
        {
            "device": TEXT,
            "done": {"enum": ["restarted", "drained"]},
            "message": TEXT,
            "daemon": ref("MpsDaemon"),
        }
    ),
    "Verdict": object_of({"status": {"enum": ["ok", "unavailable"]}}, {"reasons": list_of(TEXT)}),
    "Error": object_of({"error": TEXT}, {"remedy": TEXT}),
}
