"""What can go wrong between the agent and the API server, as the agent's own errors.

The library's, aiohttp's and the server's ways to fail are translated here and go no further. A
message names the server and the reason, never a token, a header or a foreign page.
"""

import os
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import aiohttp
from msgspec import json

from nodeagent.errors import NodeagentError
from nodeagent.structs import Struct

_MAX_REASON = 500  # characters of a server's own words that are worth repeating
_MAX_WAIT = 300.0  # seconds; a server that wants more is asked again nevertheless


class ClusterFault(NodeagentError):
    """The API server did not do what it was asked for.

    `retry_after` is how many seconds the server wants to be left alone, None if it did not say.
    """

    usual_remedy = ""

    def __init__(self, message: str, *, remedy: str = "", retry_after: float | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.retry_after = retry_after


class CredentialsUnusable(ClusterFault):
    """The address of the API server, or the credentials for it, cannot be read."""


class ClusterUnreachable(ClusterFault):
    """No API server answers: refused, silent, broken off, failing, or something else is there."""


class ConnectionCut(ClusterUnreachable):
    """The server answered, and the connection broke in the middle of its answer."""


class ServerBusy(ClusterFault):
    """The server asks for patience (429, 503)."""


class DisruptionRefused(ClusterFault):
    """A pod's disruption budget does not allow its eviction for now (429); it may later."""


class NotAuthenticated(ClusterFault):
    """The server does not accept who we say we are (401)."""


class NotAllowed(ClusterFault):
    """The server knows us and forbids this (403)."""

    usual_remedy = "`nodeagent check` says which right the ClusterRole or its binding lacks"


class ObjectMissing(ClusterFault):
    """What the request is about is not there (404).

    `is_named`: the API server says so of an object by its name. Otherwise it may be a proxy that
    speaks, or a server that does not serve such objects.
    """

    is_named = False


class WriteConflict(ClusterFault):
    """Another writer was faster, or what is to be made exists (409)."""


class VersionExpired(ClusterFault):
    """The server no longer knows what came after this resource version (410)."""


class RequestRefused(ClusterFault):
    """The server will not do this however often it is asked (400, 413, 415, 422 and the like)."""


_KINDS: Final[Mapping[int, type[ClusterFault]]] = {
    HTTPStatus.UNAUTHORIZED: NotAuthenticated,
    HTTPStatus.FORBIDDEN: NotAllowed,
    HTTPStatus.NOT_FOUND: ObjectMissing,
    HTTPStatus.REQUEST_TIMEOUT: ClusterUnreachable,
    HTTPStatus.CONFLICT: WriteConflict,
    HTTPStatus.GONE: VersionExpired,
    HTTPStatus.TOO_MANY_REQUESTS: ServerBusy,
    HTTPStatus.SERVICE_UNAVAILABLE: ServerBusy,
}


class _Cause(Struct):
    reason: str = ""
    message: str = ""


class _Details(Struct):
    name: str = ""
    causes: list[_Cause] | None = None


class _Status(Struct):
    """The API server's own answer to what it refuses."""

    message: str = ""
    details: _Details | None = None


_STATUS: Final = json.Decoder(_Status)


def from_status(
    status: int, body: bytes, *, purpose: str, headers: Mapping[str, str] | None = None
) -> ClusterFault:
    """The fault that an answer with this HTTP status stands for; `purpose` is the request's."""
    answer = _answer(body)
    details = answer.details or _Details()
    message = f"the API server refused {purpose}: {_reason(status, answer)}"
    kind = _KINDS.get(status, RequestRefused if 400 <= status < 500 else ClusterUnreachable)
    if budget := _budget(details) if status == HTTPStatus.TOO_MANY_REQUESTS else "":
        kind, message = DisruptionRefused, f"{message}: {budget}"
    if 'User "system:anonymous"' in message:  # 403: what was sent, if anything, counts for nothing
        kind = NotAuthenticated
    fault = kind(message, remedy=kind.usual_remedy, retry_after=_retry_after(headers))
    if isinstance(fault, ObjectMissing):
        fault.is_named = bool(details.name)
    return fault


def from_error(error: Exception, *, purpose: str, server: str, cut: bool = False) -> ClusterFault:
    """The fault that an exception of the connection stands for.

    `cut`: an answer had begun. The exception's own text is not repeated, because that of some holds
    headers.
    """
    kind = ConnectionCut if cut else ClusterUnreachable
    return kind.of("noAnswer", server=server, purpose=purpose, why=_what_happened(error, cut=cut))


def strange_answer(purpose: str, what: str) -> ClusterUnreachable:
    """The fault of an answer that no API server gives; `what` is wrong with it."""
    return ClusterUnreachable.of("notAnApiServer", purpose=purpose, what=what)


def too_large(purpose: str, most: int) -> ClusterUnreachable:
    """The fault of an answer of more than so many bytes."""
    return ClusterUnreachable.of("answerTooLarge", purpose=purpose, most=most)


def _what_happened(error: Exception, *, cut: bool) -> str:
    match error:
        case TimeoutError():
            return "no answer in time"
        case aiohttp.ClientSSLError():
            return "its certificate is not trusted, or TLS failed"
        case aiohttp.ClientConnectorDNSError():
            return "its name is not known"
        case OSError(errno=int(number)) if number > 0:
            return os.strerror(number)
        case aiohttp.ClientError() if cut:
            return "the connection broke off"
        case _:
            return f"the connection failed ({type(error).__name__})"


def _reason(status: int, answer: _Status) -> str:
    """The server's own words where it is an API server that speaks, else the status' name."""
    if words := _words(answer.message):
        return f"{words} ({status})"
    try:
        return f"{HTTPStatus(status).phrase} ({status})"
    except ValueError:
        return f"status {status}"


def _budget(details: _Details) -> str:
    """The server's message on the disruption budget that refuses; "" when none does."""
    for cause in details.causes or ():
        if cause.reason == "DisruptionBudget":
            return _words(cause.message) or "a disruption budget"
    return ""


def _answer(body: bytes) -> _Status:
    """The status in the body; empty where no API server wrote it, such as a proxy's page."""
    try:
        return _STATUS.decode(body)
    except (ValueError, RecursionError):
        return _Status()


def _words(text: str) -> str:
    """A server's message, cut and made printable."""
    return "".join(c if c.isprintable() else " " for c in text[:_MAX_REASON])


def _retry_after(headers: Mapping[str, str] | None) -> float | None:
    """The seconds asked for; a date is ignored, since the server's clock may be another."""
    words = headers.get("Retry-After", "") if headers else ""
    return min(float(words), _MAX_WAIT) if words.isascii() and words.isdigit() else None
