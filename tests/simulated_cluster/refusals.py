"""The API server's refusals: Status objects with the reasons and codes of the real one."""

import re
from collections.abc import Mapping
from typing import Any

from tests.simulated_cluster.journal import Request

REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Expired",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


_GROUPS = {  # of what is not in the first one, by resource and by kind
    "resourceclaims": "resource.k8s.io",
    "resourceslices": "resource.k8s.io",
    "ResourceClaim": "resource.k8s.io",
    "ResourceSlice": "resource.k8s.io",
    "runtimeclasses": "node.k8s.io",
}
_CAUSES = {  # how the text of a fault begins, to its reason
    "Duplicate value": "FieldValueDuplicate",
    "Forbidden": "FieldValueForbidden",
    "Required value": "FieldValueRequired",
    "Too long": "FieldValueTooLong",
    "Too many": "FieldValueTooMany",
}


class Refused(Exception):
    """The request is answered with a Status object of this code."""

    def __init__(
        self,
        code: int,
        message: str,
        *,
        reason: str | None = None,
        details: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.reason = REASONS.get(code, "Unknown") if reason is None else reason
        self.details = details
        self.headers = dict(headers or {})

    def status(self) -> dict[str, Any]:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            **({"details": dict(self.details)} if self.details else {}),
            "code": self.code,
        }


def not_found(plural: str, name: str) -> Refused:
    return Refused(404, f"{_named(plural, name)} not found", details=_details(plural, name))


def already_exists(plural: str, name: str) -> Refused:
    message, details = f"{_named(plural, name)} already exists", _details(plural, name)
    return Refused(409, message, reason="AlreadyExists", details=details)


def invalid(kind: str, name: str, *faults: str) -> Refused:
    """An object that does not pass validation; each fault is a field, and what is wrong with it."""
    listed = faults[0] if len(faults) == 1 else f"[{', '.join(faults)}]"
    causes = [
        {
            "reason": _CAUSES.get(what.partition(":")[0], "FieldValueInvalid"),
            "message": what,
            "field": field,
        }
        for field, _, what in (fault.partition(": ") for fault in faults)
    ]
    details = {**_details(kind, name), "causes": causes}
    return Refused(422, f"{_named(kind, name)} is invalid: {listed}", details=details)


def immutable(field: str, value: object) -> str:
    """The fault of a field that was changed and may not be."""
    return f'{field}: Invalid value: "{value}": field is immutable'


def another_uid(kind: str, name: str, wanted: str, found: str) -> Refused:
    """The request is about another object of this name."""
    return Refused(
        409,
        f"Operation cannot be fulfilled on {_named(kind, name)}: the UID in the precondition "
        f"({wanted}) does not match the UID in record ({found}). The object might have been "
        "deleted and then recreated",
        details=_details(kind, name),
    )


def forbidden(user: str, verb: str, resource: str, request: Request) -> Refused:
    """No role gives the user this right; path or selector name the object, where it is one."""
    plural = resource.partition("/")[0]
    where = re.search(r"/namespaces/([^/]+)/", request.path)
    scope = f'in the namespace "{where[1]}"' if where else "at the cluster scope"
    found = re.search(rf"/{plural}/([^/]+)", request.path) or re.fullmatch(
        r"metadata\.name=([^,]+)", request.query.get("fieldSelector", "")
    )
    name = found[1] if found else ""
    what = _named(plural, name) if name else _qualified(plural)
    return Refused(
        403,
        f'{what} is forbidden: User "{user}" cannot {verb} resource "{resource}" in API group '
        f'"{_GROUPS.get(plural, "")}" {scope}',
        details={key: value for key, value in _details(plural, name).items() if value},
    )


def modified_meanwhile(plural: str, name: str) -> Refused:
    """Another client wrote the object after the version that the request names."""
    return Refused(
        409,
        f"Operation cannot be fulfilled on {_named(plural, name)}: the object has been modified; "
        "please apply your changes to the latest version and try again",
        details=_details(plural, name),
    )


def expired(version: int, oldest: int) -> Refused:
    """The server no longer knows what happened since `version`."""
    return Refused(410, f"too old resource version: {version} ({oldest})")


def _named(kind: str, name: str) -> str:
    return f'{_qualified(kind)} "{name}"'


def _qualified(kind: str) -> str:
    return f"{kind}.{_GROUPS[kind]}" if kind in _GROUPS else kind


def _details(kind: str, name: str) -> dict[str, Any]:
    group = {"group": _GROUPS[kind]} if kind in _GROUPS else {}
    return {"name": name, **group, "kind": kind}
