"""Writing to a Node beside others who write: in the end as wanted, and never at full rate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from nodeagent.cluster.client.access import ClusterAccess
from tests.cluster.client.rig import (
    QUICK_WRITES,
    STATUS,
    Follower,
    kubeconfig,
    running,
    settled,
    status,
    until,
    wanted,
    writes,
    written,
)
from tests.simulated_cluster.api_server import ApiServer

pytestmark = pytest.mark.virtual_time


async def test_what_was_edited_by_hand_is_restored(
    server: ApiServer, access: ClusterAccess
) -> None:
    """Changed or taken away: it comes back, with one request each time."""
    made = Follower(access)
    async with made.running() as writer:
        writer.want(wanted("true"))
        await settled(server, writer, "true")
        server.annotate("n", **{STATUS: "edited"})
        await settled(server, writer, "true")
        server.annotate("n", **{STATUS: None})
        await settled(server, writer, "true")
        assert len(writes(server)) == 3
        await asyncio.sleep(0.2)
        assert writer.overwritten == ()
    assert len(writes(server)) == 3
    assert made.overwritten == []


async def test_a_key_that_is_overwritten_is_written_ever_more_seldom(
    server: ApiServer, access: ClusterAccess
) -> None:
    """A program that always writes back at once does not make us write at full rate for ever."""
    intervals = replace(QUICK_WRITES, interval=0.01, retry=(0.1, 1.0))
    made = Follower(access, writes=intervals)

    async def overwrite() -> None:
        while True:
            if status(server) == "ours":
                server.annotate("n", **{STATUS: "theirs"})
            await asyncio.sleep(0.001)

    async with made.running() as writer, running(overwrite()):
        writer.want(wanted("ours"))
        await asyncio.sleep(1.5)
        # After waits of half of 0.1, 0.2, 0.4, 0.8 seconds; at full rate it would be over 100.
        assert 3 <= len(writes(server)) <= 7
        assert made.overwritten == [(STATUS,)]
        assert writer.overwritten == (STATUS,)
        count = len(writes(server))
        writer.want(wanted("new"))  # a new wish does not wait for the contest
        await until(lambda: len(writes(server)) > count, seconds=0.2)


async def test_a_node_made_anew_gets_everything_again(
    server: ApiServer, access: ClusterAccess
) -> None:
    """What is wanted of a Node is wanted of its successor."""
    made = Follower(access)
    async with made.running() as writer:
        writer.want(wanted("same"))
        await settled(server, writer, "same")
        server.delete_node("n")
        await until(lambda: made.views[-1] is None)
        writer.want(wanted("other"))
        await asyncio.sleep(0.15)
        assert len(writes(server)) == 1
        server.add_node("n")
        await settled(server, writer, "other")
        for count in range(3, 7):
            server.delete_node("n")
            server.add_node("n")
            await written(server, count)
            await settled(server, writer, "other")
    assert made.overwritten == []  # no program undid it


@asynccontextmanager
async def restored(server: ApiServer, text: str) -> AsyncIterator[None]:
    """The cluster goes on from a backup: the versions are lower, and the status is this one."""
    server.store.version += 1000
    yield
    async with server.refusing():
        await asyncio.sleep(5.0)  # restoring takes a while
        server.store.version -= 500
        server.annotate("n", **{STATUS: f"before {text}"})
        server.annotate("n", **{STATUS: text})
        server.store.forget()


async def test_a_cluster_from_a_backup_gets_the_status_again(
    server: ApiServer, access: ClusterAccess
) -> None:
    """Its versions are lower, so its Node looks older than the own write; not for ever."""
    made = Follower(access)
    async with made.running() as writer:
        async with restored(server, "old"):
            writer.want(wanted("new"))
            await settled(server, writer, "new")
        await until(lambda: made.views[-1] and made.views[-1].annotations[STATUS] == "new")
        await asyncio.sleep(70.0)
        assert status(server) == "new"
        server.annotate("n", **{STATUS: "edited"})
        await asyncio.sleep(1.0)  # and what is reported from then on is believed at once
        assert status(server) == "new"
    assert len(writes(server)) == 3
    assert made.overwritten == []


async def test_a_list_that_is_older_than_the_own_write(tmp_path: Path) -> None:
    """It was answered before, and arrives after it: what was written counts."""
    asked, answer = asyncio.Event(), asyncio.Event()
    lists, patches = 0, 0

    def node(version: int, text: str) -> dict[str, object]:
        metadata = {"name": "n", "uid": "u", "resourceVersion": str(version)}
        return {"metadata": {**metadata, "annotations": {STATUS: text}}}

    async def nodes(request: web.Request) -> web.StreamResponse:
        nonlocal lists
        if "watch" in request.query:
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            await response.prepare(request)
            await asyncio.sleep(60)
            return response
        lists += 1
        if lists > 1:
            asked.set()
            await answer.wait()
        return web.json_response({"items": [node(1, "old")], "metadata": {"resourceVersion": "1"}})

    async def patch(_: web.Request) -> web.Response:
        nonlocal patches
        patches += 1
        return web.json_response(node(5, "new"))

    application = web.Application()
    application.router.add_get("/api/v1/nodes", nodes)
    application.router.add_patch("/api/v1/nodes/n", patch)
    async with (
        TestServer(application) as server,
        ClusterAccess(kubeconfig(tmp_path, str(server.make_url("")))) as access,
    ):
        made = Follower(access)
        async with made.running() as writer:
            looking = asyncio.create_task(writer.look())
            await asked.wait()
            writer.want(wanted("new"))
            await until(lambda: patches)
            await writer.settled()
            answer.set()
            await looking
            await asyncio.sleep(1.0)
            assert patches == 1
            assert writer.view
            assert writer.view.annotations == {STATUS: "new"}
