"""Following a Node whose server answers: what is reported, and with how many requests."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.reflector import WatchIntervals
from nodeagent.structs import replace
from tests.cluster.client.rig import (
    PLAN,
    QUICK,
    Follower,
    follows,
    kubeconfig,
    reported,
    requested,
    running,
    set_plan,
    until,
)
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.faults import End, Repeat

pytestmark = pytest.mark.virtual_time


async def test_one_list_and_one_watch_and_then_silence(
    server: ApiServer, access: ClusterAccess
) -> None:
    """Changes are reported without another request, and irrelevant ones are not reported."""
    seen = Follower(access)
    assert not seen.follower.is_reachable
    async with running(seen.follower.run()):
        await follows(server, seen, "one")
        for number in range(20):
            server.heartbeat("n", f"2026-01-01T00:00:{number:02}Z")
            server.annotate("n", **{"other/key": str(number)})
        server.patch_node("n", {"spec": {"unschedulable": True}})
        await until(lambda: seen.views[-1] and seen.views[-1].unschedulable)
        await asyncio.sleep(0.3)
    assert requested(server) == "lw"
    assert [view and view.annotations for view in seen.views] == [{}, {PLAN: "one"}, {PLAN: "one"}]
    assert seen.faults == []
    for request in server.requests:
        assert request.query["fieldSelector"] == "metadata.name=n"
    watch = server.requests[1].query
    assert watch["allowWatchBookmarks"] == "true"
    assert watch["timeoutSeconds"] == "30"


@pytest.mark.parametrize("progress", [True, False])
async def test_an_hour_without_a_change(tmp_path: Path, progress: bool) -> None:
    """With the times of the product, whatever the kubelet writes meanwhile; also where etcd has no
    progress notifications.
    """
    async with (
        ApiServer(progress=progress) as server,
        ClusterAccess(kubeconfig(tmp_path, server.url)) as access,
    ):
        server.add_node("n")
        seen = Follower(access, intervals=WatchIntervals())
        async with running(seen.follower.run()):
            for minutes in range(0, 60, 5):
                await asyncio.sleep(300.0)
                server.heartbeat("n", f"2026-01-01T00:{minutes:02}:00Z")
            assert set(requested(server)) == {"l", "w"}
            assert len(server.requests) <= 130  # a watch after each half minute of silence
            assert 5 <= requested(server).count("l") <= 7
            await follows(server, seen, "one")
        assert seen.faults == []


async def test_a_node_that_comes_goes_and_comes_again(
    server: ApiServer, access: ClusterAccess
) -> None:
    """Absence is reported once, the Node is not polled for, and the new one has another uid."""
    server.delete_node("n")
    seen = Follower(access)
    async with running(seen.follower.run()):
        await until(lambda: seen.views)
        await asyncio.sleep(0.2)
        assert seen.views == [None]
        server.add_node("n", annotations={PLAN: "first"})
        await until(lambda: seen.plan == "first")
        server.delete_node("n")
        await until(lambda: seen.views[-1] is None)
        server.add_node("n", annotations={PLAN: "second"})
        await until(lambda: seen.plan == "second")
    assert requested(server) == "lw"
    assert len({view.uid for view in seen.views if view}) == 2


async def test_a_node_made_anew_while_no_watch_was_open(
    server: ApiServer, access: ClusterAccess
) -> None:
    """It is reported as gone and then as new, although its deletion was never seen."""
    seen = Follower(access)
    async with running(seen.follower.run()):
        await follows(server, seen, "one")
        await server.stop()
        server.delete_node("n")
        server.add_node("n", annotations={PLAN: "one"})
        server.expire()
        await server.start()
        await until(lambda: len(seen.views) == 4)
    first, _, gone, new = seen.views
    assert gone is None
    assert first
    assert new
    assert first.uid != new.uid


async def test_the_next_list_brings_what_was_lost(tmp_path: Path) -> None:
    """A change and a deletion that the server did not send, and went past with a bookmark."""
    async with ApiServer(bookmark_seconds=0.2) as server:
        server.add_node("n")
        async with ClusterAccess(kubeconfig(tmp_path, server.url)) as access:
            seen = Follower(access, intervals=replace(QUICK, watch=(1.0, 1.0)))
            async with running(seen.follower.run()):
                await follows(server, seen, "one")
                with server.unsent():
                    set_plan(server, "two")
                await reported(seen, "two")
                with server.unsent():
                    server.delete_node("n")
                await until(lambda: seen.views[-1] is None)
    assert seen.faults == []


async def test_bookmarks_move_the_version_and_tell_nothing(
    tmp_path: Path,
) -> None:
    """After the ring of events has moved on, a watch from the bookmark needs no list."""
    async with ApiServer(bookmark_seconds=0.05, history=4) as server:
        server.add_node("n")
        async with ClusterAccess(kubeconfig(tmp_path, server.url)) as access:
            seen = Follower(access)
            async with running(seen.follower.run()):
                await until(lambda: server.faults.watching)
                server.add_node("other")
                for number in range(20):
                    server.annotate("other", key=str(number))
                await asyncio.sleep(0.2)
                server.faults.strike(End())
                await until(lambda: requested(server) == "lww")
                await follows(server, seen, "one")
    assert requested(server) == "lww"
    assert len(seen.views) == 2


async def test_events_that_come_late_are_passed_over(tmp_path: Path) -> None:
    """An older change, or an older deletion, that is sent after a newer one changes nothing."""

    def event(kind: str, version: int, text: str) -> bytes:
        metadata = {"name": "n", "uid": "u", "resourceVersion": str(version)}
        node = {"metadata": {**metadata, "annotations": {PLAN: text}}}
        return json.dumps({"type": kind, "object": node}).encode() + b"\n"

    async def nodes(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return web.json_response({"items": [], "metadata": {"resourceVersion": "1"}})
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for line in (
            event("ADDED", 10, "ten"),
            event("MODIFIED", 9, "nine"),
            event("DELETED", 9, "nine"),
            event("MODIFIED", 11, "eleven"),
        ):
            await response.write(line)
        await asyncio.sleep(30)
        return response

    application = web.Application()
    application.router.add_get("/api/v1/nodes", nodes)
    async with (
        TestServer(application) as server,
        ClusterAccess(kubeconfig(tmp_path, str(server.make_url("")))) as access,
    ):
        seen = Follower(access)
        async with running(seen.follower.run()):
            await reported(seen, "eleven")
    assert [view and view.annotations[PLAN] for view in seen.views] == [None, "ten", "eleven"]


async def test_events_that_come_twice_are_reported_once(
    server: ApiServer, access: ClusterAccess
) -> None:
    """Only what is newer than the last is news."""
    seen = Follower(access)
    async with running(seen.follower.run()):
        await follows(server, seen, "one")
        server.faults.strike(Repeat())
        server.faults.strike(Repeat())
        await follows(server, seen, "two")
    assert len(seen.views) == 3
    assert requested(server) == "lw"


async def test_cancelling_leaves_nothing_open(server: ApiServer, access: ClusterAccess) -> None:
    """The server notices at once that no client listens any more."""
    seen = Follower(access)
    async with running(seen.follower.run()):
        await until(lambda: server.faults.watching)
    await until(lambda: not server.faults.watching)
