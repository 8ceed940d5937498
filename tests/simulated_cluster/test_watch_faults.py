"""The test API server's faults of watches, and its end while one is open."""

from __future__ import annotations

import asyncio
import time

import aiohttp
import pytest

from tests.machine_load import stretched
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.clients import KEY, Api, Following, exceptions, versions, watched
from tests.simulated_cluster.faults import Cut, End, ErrorEvent, Fault, Freeze, Repeat, Reset


@pytest.mark.parametrize("fault", [Reset(), Cut()], ids=["reset", "cut"])
async def test_an_open_watch_that_breaks(api: ApiServer, core: Api, fault: Fault) -> None:
    """What came before is heard, then the iterator raises an error of the payload."""
    async with Following(api, core) as following:
        api.annotate("gpu-0", **{KEY: "a"})
        await following.heard(1)
        assert api.faults.strike(fault) == 1
        with pytest.raises((aiohttp.ClientPayloadError, aiohttp.ClientOSError)):
            await following.task
    assert [one["type"] for one in following.events] == ["MODIFIED"]


async def test_an_open_watch_that_ends_in_mid_line(api: ApiServer, core: Api) -> None:
    """A clean end within a line yields the piece as text, as the client is known to do."""
    async with Following(api, core) as following:
        api.faults.strike(Cut(clean=True))
        await following.task
    assert [type(one) for one in following.events] == [str]


async def test_an_open_watch_that_freezes(api: ApiServer, core: Api) -> None:
    """A frozen watch hears nothing until it is thawed, then everything."""
    async with Following(api, core) as following:
        api.faults.strike(Freeze())
        await asyncio.sleep(0.02)
        api.annotate("gpu-0", **{KEY: "a"})
        await asyncio.sleep(0.1)
        assert following.events == []
        api.faults.thaw()
        await following.heard(1)


async def test_an_error_event(api: ApiServer, core: Api) -> None:
    """An ERROR event raises its code: at the start of a watch, and within an open one."""
    api.faults.next(1, ErrorEvent(410, "Expired"), watch=True)
    with pytest.raises(exceptions.ApiException, match="Expired") as caught:
        await watched(core, "gpu-0", version=versions(api))
    assert caught.value.status == 410
    async with Following(api, core) as following:
        api.faults.strike(ErrorEvent(500))
        with pytest.raises(exceptions.ApiException) as caught:
            await following.task
        assert caught.value.status == 500


async def test_an_early_end_and_a_repeated_event(api: ApiServer, core: Api) -> None:
    """A watch can be given its last event twice, and be ended cleanly before its time."""
    begin = time.monotonic()
    async with Following(api, core) as following:  # for a minute
        api.annotate("gpu-0", **{KEY: "a"})
        api.faults.strike(Repeat())
        api.faults.strike(End())
        await following.task
    assert [one["object"].metadata.annotations[KEY] for one in following.events] == ["a", "a"]
    assert time.monotonic() - begin < 30


async def test_a_server_that_goes_away(api: ApiServer, core: Api) -> None:
    """Stopping breaks off an open watch at once; on the same port the version still counts."""
    async with Following(api, core) as following:
        await api.stop()
        with pytest.raises((aiohttp.ClientPayloadError, aiohttp.ClientOSError)):
            await following.task
    version, url = versions(api), api.url
    api.annotate("gpu-0", **{KEY: "a"})
    await api.start()
    assert api.url == url
    assert [one["type"] for one in await watched(core, "gpu-0", version=version, until=1)] == [
        "MODIFIED"
    ]


async def test_a_client_that_goes_away(api: ApiServer, core: Api) -> None:
    """The server drops a watch as soon as its client is gone."""
    async with Following(api, core):
        assert len(api.faults.watching) == 1
    async with asyncio.timeout(stretched(30)):  # the watch would last for a minute
        while api.faults.watching:
            await asyncio.sleep(0.005)
