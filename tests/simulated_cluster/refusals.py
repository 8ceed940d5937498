"""The API server's refusals: Status objects with the reasons and codes of the real one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
        """The Status object that the client reads."""
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
    """There is no object of this name."""
    return Refused(404, f'{plural} "{name}" not found', details={"name": name, "kind": plural})


def invalid(kind: str, name: str, *faults: str) -> Refused:
    """An object that does not pass validation."""
    listed = faults[0] if len(faults) == 1 else f"[{', '.join(faults)}]"
    return Refused(
        422, f'{kind} "{name}" is invalid: {listed}', details={"name": name, "kind": kind}
    )


def modified_meanwhile(plural: str, name: str) -> Refused:
    """Another client wrote the object after the version that the request names."""
    return Refused(
        409,
        f'Operation cannot be fulfilled on {plural} "{name}": the object has been modified; '
        "please apply your changes to the latest version and try again",
        details={"name": name, "kind": plural},
    )


def expired(version: int, oldest: int) -> Refused:
    """The server no longer knows what happened since `version`."""
    return Refused(410, f"too old resource version: {version} ({oldest})")
