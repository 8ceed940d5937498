import json

import aiohttp

from nodeagent.cluster.client import faults

STATUS = json.dumps({"kind": "Status", "message": "the server's\nown words", "code": 0}).encode()


def test_each_status_has_its_kind() -> None:
    kinds: dict[type[faults.ClusterFault], tuple[int, ...]] = {
        faults.RequestRefused: (400, 413, 415, 422),
        faults.NotAuthenticated: (401,),
        faults.NotAllowed: (403,),
        faults.ObjectMissing: (404,),
        faults.WriteConflict: (409,),
        faults.VersionExpired: (410,),
        faults.ServerBusy: (429, 503),
        faults.ClusterUnreachable: (302, 408, 500, 502, 504, 799),
    }
    for kind, status in ((kind, status) for kind, some in kinds.items() for status in some):
        fault = faults.from_status(status, STATUS, purpose="this")
        assert type(fault) is kind
        assert fault.message == f"the API server refused this: the server's own words ({status})"


def test_nobody_is_who_was_not_recognised() -> None:
    """No right that is given to the account helps one whom the server takes for nobody."""
    words = {"message": 'nodes is forbidden: User "system:anonymous" cannot list resource "nodes"'}
    fault = faults.from_status(403, json.dumps(words).encode(), purpose="this")
    assert type(fault) is faults.NotAuthenticated


def test_a_foreign_page_is_not_repeated() -> None:
    page = faults.from_status(502, b"<html>token=abc</html>", purpose="this")
    assert page.message == "the API server refused this: Bad Gateway (502)"
    assert faults.from_status(799, b"[1]", purpose="this").message.endswith(": status 799")
    long = faults.from_status(422, json.dumps({"message": "x" * 9000}).encode(), purpose="this")
    assert len(long.message) < 600


def test_retry_after_counts_in_seconds() -> None:
    cases = {"7": 7.0, "86400": 300.0, "Wed, 21 Oct 2026 07:28:00 GMT": None, "": None, "²": None}
    for header, seconds in cases.items():
        fault = faults.from_status(429, b"", purpose="this", headers={"Retry-After": header})
        assert fault.retry_after == seconds


def test_an_exceptions_own_text_is_not_repeated() -> None:
    """Some of aiohttp's exceptions quote headers; only their kind is reported."""
    secret = "Bearer very-secret"
    kinds = aiohttp.ClientPayloadError, aiohttp.ClientConnectionError, aiohttp.InvalidURL
    for error in (*(kind(secret) for kind in kinds), TimeoutError(secret), ValueError(secret)):
        for cut in (False, True):
            fault = faults.from_error(error, purpose="this", server="https://s", cut=cut)
            assert "secret" not in str(fault)
            assert fault.message.startswith("https://s does not answer this: ")


def test_the_systems_own_word_is_reported() -> None:
    fault = faults.from_error(
        ConnectionRefusedError(111, "Connect call failed"), purpose="x", server="s"
    )
    assert fault.message == "s does not answer x: Connection refused"
