import asyncio
from pathlib import Path

import pytest

from nodeagent.cluster.client import faults, requests
from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.node_view import read_node
from nodeagent.cluster.reflector import WatchIntervals
from nodeagent.structs import replace
from tests.cluster.client import rig
from tests.machine_load import until
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.faults import (
    Answer,
    Cut,
    Dribble,
    End,
    ErrorEvent,
    Fault,
    Freeze,
    Html,
    Reset,
)

pytestmark = pytest.mark.virtual_time
DEEP = "[" * 20_000 + "\n"  # which Python's own reader of JSON answers with a RecursionError


async def test_one_list_one_watch_then_silence(server: ApiServer, access: ClusterAccess) -> None:
    seen = rig.Follower(access)
    assert not seen.follower.is_reachable
    async with rig.running(seen.follower.run()):
        await rig.follows(server, seen, "one")
        for number in range(20):
            server.heartbeat("n", f"2026-01-01T00:00:{number:02}Z")
            server.annotate("n", **{"other/key": str(number)})
        server.patch_node("n", {"spec": {"unschedulable": True}})
        await until(lambda: seen.views[-1] and seen.views[-1].unschedulable)
        await asyncio.sleep(0.3)
    assert rig.requested(server) == "lw"
    assert [view and view.annotations for view in seen.views] == [
        {},
        {rig.PLAN: "one"},
        {rig.PLAN: "one"},
    ]
    assert seen.faults == []
    for request in server.requests:
        assert request.query["fieldSelector"] == "metadata.name=n"
    watch = server.requests[1].query
    assert watch["allowWatchBookmarks"] == "true"
    assert watch["timeoutSeconds"] == "30"


@pytest.mark.parametrize("progress", [True, False])
async def test_an_hour_without_a_change(tmp_path: Path, progress: bool) -> None:
    async with (
        ApiServer(progress=progress) as server,
        ClusterAccess(rig.kubeconfig(tmp_path, server.url)) as access,
    ):
        server.add_node("n")
        seen = rig.Follower(access, intervals=WatchIntervals())
        async with rig.running(seen.follower.run()):
            for minutes in range(0, 60, 5):
                await asyncio.sleep(300.0)
                server.heartbeat("n", f"2026-01-01T00:{minutes:02}:00Z")
            assert set(rig.requested(server)) == {"l", "w"}
            assert len(server.requests) <= 130  # a watch after each half minute of silence
            assert 5 <= rig.requested(server).count("l") <= 7
            await rig.follows(server, seen, "one")
        assert seen.faults == []


async def test_a_node_made_anew_while_not_watched(server: ApiServer, access: ClusterAccess) -> None:
    seen = rig.Follower(access)
    async with rig.running(seen.follower.run()):
        await rig.follows(server, seen, "one")
        await server.stop()
        server.delete_node("n")
        server.add_node("n", annotations={rig.PLAN: "one"})
        server.expire()
        await server.start()
        await until(lambda: len(seen.views) == 4)
    first, _, gone, new = seen.views
    assert gone is None
    assert first
    assert new
    assert first.uid != new.uid


async def test_the_next_list_brings_what_was_lost(tmp_path: Path) -> None:
    async with ApiServer(bookmark_seconds=0.2) as server:
        server.add_node("n")
        async with ClusterAccess(rig.kubeconfig(tmp_path, server.url)) as access:
            seen = rig.Follower(access, intervals=replace(rig.QUICK, watch=(1.0, 1.0)))
            async with rig.running(seen.follower.run()):
                await rig.follows(server, seen, "one")
                with server.unsent():
                    rig.set_plan(server, "two")
                await rig.reported(seen, "two")
                with server.unsent():
                    server.delete_node("n")
                await until(lambda: seen.views[-1] is None)
    assert seen.faults == []


async def test_bookmarks_move_the_version_and_tell_nothing(tmp_path: Path) -> None:
    async with ApiServer(bookmark_seconds=0.05, history=4) as server:
        server.add_node("n")
        async with ClusterAccess(rig.kubeconfig(tmp_path, server.url)) as access:
            seen = rig.Follower(access)
            async with rig.running(seen.follower.run()):
                await until(lambda: server.faults.watching)
                server.add_node("other")
                for number in range(20):
                    server.annotate("other", key=str(number))
                await asyncio.sleep(0.2)
                server.faults.strike(End())
                await until(lambda: rig.requested(server) == "lww")
                await rig.follows(server, seen, "one")
    assert rig.requested(server) == "lww"
    assert len(seen.views) == 2


# --- the watch that is open -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "then"),
    [
        (Reset(), "w"),
        (Cut(), "w"),
        (Cut(clean=True), "lw"),
        (Html(), "lw"),
        (Html(text=DEEP), "lw"),
        (End(), "w"),
        (ErrorEvent(410, "Expired"), "lw"),
        (ErrorEvent(500), "lw"),
        (Dribble(0.2), ""),
    ],
)
async def test_a_watch_that_breaks(
    server: ApiServer, access: ClusterAccess, fault: Fault, then: str
) -> None:
    seen = rig.Follower(access)
    async with rig.running(seen.follower.run()):
        await rig.follows(server, seen, "one")
        server.faults.strike(fault)
        rig.set_plan(server, "two")  # right behind the fault: it may be lost in it
        await until(lambda: seen.plan == "two")
        await until(lambda: rig.requested(server) == "lw" + then)
        await rig.follows(server, seen, "three")
        await asyncio.sleep(0.2)
    assert rig.requested(server) == "lw" + then
    assert [view and view.annotations.get(rig.PLAN) for view in seen.views] == [
        None,
        "one",
        "two",
        "three",
    ]


async def test_a_server_that_does_not_go_on_is_noticed(server: ApiServer, tmp_path: Path) -> None:
    async with ClusterAccess(rig.kubeconfig(tmp_path, server.url)) as access:
        seen = rig.Follower(access, intervals=WatchIntervals())
        async with rig.running(seen.follower.run()):
            await rig.follows(server, seen, "one")
            server.faults.next(10**6, Freeze())
            server.faults.strike(Freeze())
            await asyncio.sleep(46.0)
            assert isinstance(seen.follower.fault, faults.ClusterUnreachable)
            server.faults.clear()
            await rig.follows(server, seen, "two")


async def test_watches_that_end_at_once_no_storm(server: ApiServer, access: ClusterAccess) -> None:
    server.faults.next(10**6, End(), watch=True)
    seen = rig.Follower(access)
    async with rig.running(seen.follower.run()):
        await asyncio.sleep(1.0)
    assert 2 <= len(server.requests) <= 17, rig.requested(server)
    assert seen.faults == []


# --- requests -------------------------------------------------------------------------------------


async def test_health_makes_failures_small_again(server: ApiServer, access: ClusterAccess) -> None:
    server.faults.next(6, Answer(500))
    seen = rig.Follower(access, jitter=lambda: 0.0)
    async with rig.running(seen.follower.run()):
        await until(lambda: server.faults.watching)
        await asyncio.sleep(rig.QUICK.healthy_after + 0.1)
        server.faults.strike(Reset())
        lost = asyncio.get_running_loop().time()
        await until(lambda: rig.requested(server).count("w") == 2)
    assert server.requests[-1].time - lost < rig.QUICK.retry[1] / 2


# --- access that is lost ------------------------------------------------------------------------


async def test_a_token_is_read_again_before_it_grows_old(server: ApiServer, tmp_path: Path) -> None:
    server.tokens.update(old="agent", new="agent")
    way = rig.kubeconfig(tmp_path, server.url, token="old")
    clock = asyncio.get_running_loop().time
    async with ClusterAccess(way, reread_every=0.2, clock=clock) as access:
        await access.listed(requests.list_node("n"), read_node)
        (tmp_path / "token").write_text("new")
        await access.listed(requests.list_node("n"), read_node)
        await asyncio.sleep(0.25)
        await access.listed(requests.list_node("n"), read_node)
    assert [request.who for request in server.requests] == ["old", "old", "new"]


async def test_credentials_that_come_later(server: ApiServer, tmp_path: Path) -> None:
    way = rig.kubeconfig(tmp_path, server.url)
    hidden = way.path.rename(tmp_path / "hidden")
    async with ClusterAccess(way) as access:
        seen = rig.Follower(access)
        async with rig.running(seen.follower.run()):
            await until(lambda: seen.faults)
            assert isinstance(seen.faults[0], faults.CredentialsUnusable)
            hidden.rename(way.path)
            await rig.follows(server, seen, "one")


async def test_a_server_that_is_away_for_hours(server: ApiServer, access: ClusterAccess) -> None:
    seen = rig.Follower(access, intervals=WatchIntervals())
    async with rig.running(seen.follower.run()):
        await rig.follows(server, seen, "one")
        async with server.refusing():
            await until(lambda: not seen.follower.is_reachable)
            draws = seen.draws
            await asyncio.sleep(10800.0)
            assert 10800 / 30 <= seen.draws - draws <= 10800 / 14  # one for each attempt
            assert not seen.follower.is_reachable
            assert isinstance(seen.follower.fault, faults.ClusterUnreachable)
            assert seen.follower.fault.message.endswith("Connection refused")
            rig.set_plan(server, "two")
        await asyncio.sleep(30.0)
        assert seen.plan == "two"
        await rig.follows(server, seen, "three")
    kinds = [type(fault) for fault in seen.faults]
    assert kinds == [faults.ConnectionCut, faults.ClusterUnreachable, type(None)]
    assert [view and view.annotations.get(rig.PLAN) for view in seen.views] == [
        None,
        "one",
        "two",
        "three",
    ]
