"""Versions of the test API server's watches: too old ones, bookmarks, and bad queries."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from kubernetes.aio import watch

from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.clients import (
    KEY,
    Api,
    Following,
    core_api,
    exceptions,
    versions,
    watched,
)
from tests.simulated_cluster.faults import Slow


async def test_even_the_last_lists_version_is_too_old_after_a_restart(
    api: ApiServer, core: Api
) -> None:
    """A fresh watch cache knows no earlier version, not even the newest one."""
    listed = await core.list_node()
    await api.restart()
    with pytest.raises(exceptions.ApiException, match="too old resource version") as caught:
        await watched(core, "gpu-0", version=listed.metadata.resource_version)
    assert caught.value.status == 410


async def test_compaction_and_the_end_of_the_history(core: Api, api: ApiServer) -> None:
    """Compaction makes older versions too old, the present one stays; so does a full history."""
    old = versions(api)
    api.annotate("gpu-0", **{KEY: "a"})
    async with Following(api, core) as following:
        api.expire()
        api.annotate("gpu-0", **{KEY: "b"})
        await following.heard(1)
    with pytest.raises(exceptions.ApiException, match=r"too old resource version: \d+ \(\d+\)"):
        await watched(core, "gpu-0", version=old)
    async with ApiServer(history=2) as short, core_api(short.url) as other:
        short.add_node("gpu-0")
        old = versions(short)
        for value in "abc":
            short.annotate("gpu-0", **{KEY: value})
        with pytest.raises(exceptions.ApiException, match="too old resource version"):
            await watched(other, "gpu-0", version=old)
        events = await watched(other, "gpu-0", version=str(int(old) + 1), until=2)
        assert [one["object"].metadata.annotations[KEY] for one in events] == ["b", "c"]


async def test_bookmarks_on_a_timer(api: ApiServer, core: Api) -> None:
    """Bookmarks come every so often to a watch that asks for them, to others never."""
    events = await watched(core, "gpu-0", version=versions(api), allow_watch_bookmarks=True)
    assert 1 <= len([one for one in events if one["type"] == "BOOKMARK"]) <= 6
    assert set(events[0]["object"]) == {"kind", "apiVersion", "metadata", "spec", "status"}
    assert await watched(core, "gpu-0", version=versions(api)) == []


async def test_bookmarks_never_run_ahead(api: ApiServer, core: Api) -> None:
    """A change that a held-up watch has not sent yet is not covered by its bookmark."""
    version = versions(api)
    async with watch.Watch() as watching:
        events = watching.stream(
            core.list_node,
            resource_version=version,
            timeout_seconds=1,
            allow_watch_bookmarks=True,
        )
        first = asyncio.create_task(anext(events))
        while not api.faults.watching:
            await asyncio.sleep(0.005)
        api.faults.strike(Slow(1.1))  # beyond the watch's end
        await asyncio.sleep(0.02)
        api.annotate("gpu-0", **{KEY: "a"})
        reported = [await first, *[event async for event in events]]
    assert {one["type"] for one in reported} == {"BOOKMARK"}
    missed = await watched(core, "gpu-0", version=watching.resource_version, until=1)
    assert [one["type"] for one in missed] == ["MODIFIED"]


@pytest.mark.parametrize(
    ("query", "code"),
    [("resourceVersion=x", 400), ("timeoutSeconds=x", 400), ("sendInitialEvents=true", 422)],
)
async def test_queries_that_make_no_sense(api: ApiServer, query: str, code: int) -> None:
    """Watch parameters that the real server refuses are refused, before a stream begins."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{api.url}/api/v1/nodes?watch=1&{query}") as answer,
    ):
        assert answer.status == code


@pytest.mark.parametrize("version", ["", "0"])
async def test_an_etcd_without_progress_notifications(version: str) -> None:
    """A watch with bookmarks that begins with what is there ends at once; others are as ever."""
    async with ApiServer(progress=False) as api, core_api(api.url) as core:
        api.add_node("gpu-0")
        with pytest.raises(exceptions.ApiException, match="RequestWatchProgress") as caught:
            await watched(core, "gpu-0", version=version or None, allow_watch_bookmarks=True)
        assert caught.value.status == 500
        (found,) = await watched(core, "gpu-0", version=version or None)
        assert found["type"] == "ADDED"
        assert await watched(core, "gpu-0", version=versions(api), allow_watch_bookmarks=True) == []
