"""The test API server's faults of ordinary requests, as the real client meets them."""

from __future__ import annotations

import asyncio
import time

import aiohttp
import pytest

from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.clients import KEY, MERGE, Api, exceptions, watched
from tests.simulated_cluster.faults import Answer, Cut, Dribble, Fault, Freeze, Html, Reset, Slow


@pytest.mark.parametrize("code", [401, 403, 409, 410, 429, 500, 503])
async def test_ordered_answers(api: ApiServer, core: Api, code: int) -> None:
    """As many requests as ordered are refused, with a Status object; the next is served."""
    api.faults.next(2, Answer(code, retry_after=7))
    for _ in range(2):
        with pytest.raises(exceptions.ApiException) as caught:
            await core.read_node("gpu-0")
        assert caught.value.status == code
        assert caught.value.headers["Retry-After"] == "7"
        assert f'"code": {code}' in caught.value.body
    assert (await core.read_node("gpu-0")).metadata.name == "gpu-0"
    assert [one.status for one in api.requests] == [code, code, 200]


async def test_faults_hit_only_what_they_name(api: ApiServer, core: Api) -> None:
    """A verb, a path or a watch narrows an order; what does not match passes."""
    api.faults.next(1, Answer(500), verb="PATCH")
    api.faults.next(1, Answer(503), path="/api/v1/namespaces/*/events")
    api.faults.next(1, Answer(429), watch=True)
    await core.list_node()
    with pytest.raises(exceptions.ServiceException, match="500"):
        await core.patch_node("gpu-0", {}, _content_type=MERGE)
    with pytest.raises(exceptions.ServiceException, match="503"):
        await core.create_namespaced_event(
            "default", {"metadata": {"name": "x"}, "involvedObject": {}}
        )
    with pytest.raises(exceptions.ApiException, match="429"):
        await watched(core, "gpu-0")
    assert api.faults.struck == 3


async def test_a_proxys_page(api: ApiServer, core: Api) -> None:
    """HTML with 502 is an error of a request, and text instead of events of a watch."""
    api.faults.next(1, Html())
    with pytest.raises(exceptions.ServiceException, match="nginx"):
        await core.read_node("gpu-0")
    api.faults.next(1, Html(code=200), watch=True)
    assert all(isinstance(one, str) for one in await watched(core, "gpu-0"))


@pytest.mark.parametrize(
    ("fault", "kind"),
    [(Reset(), aiohttp.ClientOSError), (Cut(), aiohttp.ClientPayloadError)],
    ids=["reset", "cut"],
)
async def test_broken_connections(
    api: ApiServer, core: Api, fault: Fault, kind: type[Exception]
) -> None:
    """A reset and a broken-off body are errors of the connection, not of the API.

    A GET whose connection is reset is sent once more by aiohttp itself.
    """
    api.faults.next(2, fault)
    with pytest.raises(kind):
        await core.read_node("gpu-0")
    api.faults.clear()
    await core.read_node("gpu-0")


async def test_a_frozen_request(api: ApiServer, core: Api) -> None:
    """No byte comes until the client gives up; thawed, a request is answered after all."""
    api.faults.next(2, Freeze())
    with pytest.raises(TimeoutError):
        await core.read_node("gpu-0", _request_timeout=0.2)
    late = asyncio.create_task(core.read_node("gpu-0"))
    await asyncio.sleep(0.1)
    assert not late.done()
    api.faults.thaw()
    assert (await late).metadata.name == "gpu-0"


@pytest.mark.parametrize("fault", [Slow(0.3), Dribble(0.3)], ids=["late", "in pieces"])
async def test_slow_answers(api: ApiServer, fault: Fault) -> None:
    """A late answer and one in pieces take their time, and are whole."""
    api.faults.next(1, fault)
    begin = time.monotonic()
    async with aiohttp.ClientSession() as session, session.get(f"{api.url}/api/v1/nodes") as answer:
        assert isinstance(await answer.json(), dict)
    assert time.monotonic() - begin > 0.29


async def test_a_closed_port(api: ApiServer, core: Api) -> None:
    """While it refuses connections nothing is noted; after it the objects are the same."""
    async with api.refusing():
        with pytest.raises(aiohttp.ClientConnectorError):
            await core.read_node("gpu-0")
        api.annotate("gpu-0", **{KEY: "meanwhile"})
    assert api.requests == []
    assert (await core.read_node("gpu-0")).metadata.annotations == {KEY: "meanwhile"}
