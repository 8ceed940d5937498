"""Following a Node through everything that a server and a network do, with requests counted."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from nodeagent.cluster.client import faults
from nodeagent.cluster.client.access import ClusterAccess
from tests.cluster.client.rig import PLAN, QUICK, Follower, kubeconfig, running, until
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
    Repeat,
    Reset,
    Slow,
)

pytestmark = pytest.mark.virtual_time


def asked(server: ApiServer) -> str:
    """What was asked so far: `l` for each list, `w` for each watch."""
    return "".join("w" if request.watch else "l" for request in server.requests)


def plan(server: ApiServer, text: str) -> None:
    """A user asks for this plan."""
    server.annotate("n", **{PLAN: text})


async def reported(seen: Follower, text: str) -> None:
    """The plan arrives."""
    await until(lambda: seen.plan == text)


async def follows(server: ApiServer, seen: Follower, text: str) -> None:
    """A change made now is reported, by the watch that is open."""
    await until(lambda: server.faults.watching)
    plan(server, text)
    await until(lambda: seen.plan == text)
    assert seen.follower.is_reachable
    assert seen.follower.fault is None


# --- without faults -----------------------------------------------------------------------------


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
    assert asked(server) == "lw"
    assert [view and view.annotations for view in seen.views] == [{}, {PLAN: "one"}, {PLAN: "one"}]
    assert seen.faults == []
    for request in server.requests:
        assert request.query["fieldSelector"] == "metadata.name=n"
    watch = server.requests[1].query
    assert watch["allowWatchBookmarks"] == "true"
    assert watch["timeoutSeconds"] == "30"


async def test_only_the_own_node_is_reported(server: ApiServer, access: ClusterAccess) -> None:
    """Another Node's changes do not arrive."""
    server.add_node("other")
    seen = Follower(access)
    async with running(seen.follower.run()):
        await until(lambda: server.faults.watching)
        server.annotate("other", **{PLAN: "theirs"})
        await follows(server, seen, "ours")
    assert [view and view.name for view in seen.views] == ["n", "n"]


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
    assert asked(server) == "lw"
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


async def test_a_watch_that_ends_in_time_goes_on_where_it_was(
    server: ApiServer, access: ClusterAccess
) -> None:
    """Its successor starts at once from the last version, without a list and without a fault."""
    seen = Follower(access, intervals=replace(QUICK, watch=(1.0, 1.0)))
    async with running(seen.follower.run()):
        await follows(server, seen, "one")
        await until(lambda: asked(server) == "lww")
        await follows(server, seen, "two")
    versions = [int(r.query["resourceVersion"]) for r in server.requests if r.watch]
    assert versions[1] > versions[0]
    assert seen.faults == []


async def test_a_list_guards_against_events_that_were_lost(
    server: ApiServer, access: ClusterAccess
) -> None:
    """When it is due, the next watch is preceded by one."""
    seen = Follower(access, intervals=replace(QUICK, list_every=(1.0, 1.0)))
    async with running(seen.follower.run()):
        await until(lambda: asked(server) == "lwlw")
        await follows(server, seen, "one")


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
                await until(lambda: asked(server) == "lww")
                await follows(server, seen, "one")
    assert asked(server) == "lww"
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
    assert asked(server) == "lw"


DEEP = "[" * 20_000 + "\n"  # which Python's own reader of JSON answers with a RecursionError


# --- faults of the watch that is open -----------------------------------------------------------


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
        (ErrorEvent(504, "Timeout"), "lw"),
        (ErrorEvent(401), "lw"),
        (Slow(0.2), ""),
        (Dribble(0.2), ""),
    ],
)
async def test_a_watch_that_breaks(
    server: ApiServer, access: ClusterAccess, fault: Fault, then: str
) -> None:
    """It goes on from where it was, or from a list where that is unsure; nothing else is asked."""
    seen = Follower(access)
    async with running(seen.follower.run()):
        await follows(server, seen, "one")
        server.faults.strike(fault)
        plan(server, "two")  # right behind the fault: it may be lost in it
        await until(lambda: seen.plan == "two")
        await until(lambda: asked(server) == "lw" + then)
        await follows(server, seen, "three")
        await asyncio.sleep(0.2)
    assert asked(server) == "lw" + then
    assert [view and view.annotations.get(PLAN) for view in seen.views] == [
        None,
        "one",
        "two",
        "three",
    ]


async def test_a_frozen_watch_is_noticed_and_replaced(
    server: ApiServer, access: ClusterAccess
) -> None:
    """Silence leads to a new watch, and where that is answered nothing counts as broken."""
    seen = Follower(access, intervals=replace(QUICK, silence=0.5))
    async with running(seen.follower.run()):
        await follows(server, seen, "one")
        server.faults.strike(Freeze())
        plan(server, "two")
        await until(lambda: seen.plan == "two")
    assert asked(server) == "lww"
    assert seen.faults == []


async def test_an_old_version_leads_to_one_list(server: ApiServer, access: ClusterAccess) -> None:
    """410 after compaction: one list, one watch, and the last plan wins."""
    seen = Follower(access)
    async with running(seen.follower.run()):
        await follows(server, seen, "one")
        await server.stop()
        for number in range(5):
            plan(server, str(number))
        server.expire()
        server.faults.next(1, Reset())  # so that the version is kept: the server was there
        await server.start()
        await until(lambda: seen.plan == "4")
        await follows(server, seen, "last")
    assert len(asked(server)) <= len("lw" + "w" + "w" + "lw")


# --- faults of the requests ---------------------------------------------------------------------

REFUSALS: list[tuple[Fault, type[faults.ClusterFault]]] = [
    (Answer(401), faults.NotAuthenticated),
    (Answer(403), faults.NotAllowed),
    (Answer(404), faults.ObjectMissing),
    (Answer(409), faults.WriteConflict),
    (Answer(410), faults.VersionExpired),
    (Answer(429), faults.ServerBusy),
    (Answer(500), faults.ClusterUnreachable),
    (Answer(503), faults.ServerBusy),
    (Html(), faults.ClusterUnreachable),
    (Html(200), faults.ClusterUnreachable),
    (Html(200, DEEP), faults.ClusterUnreachable),
    (Html(403, DEEP), faults.NotAllowed),
    (Reset(), faults.ClusterUnreachable),
    (Cut(), faults.ClusterUnreachable),
    (Cut(clean=True), faults.ClusterUnreachable),
    (Freeze(), faults.ClusterUnreachable),
    (Dribble(0.05), faults.ClusterUnreachable),
]


@pytest.mark.parametrize("watch", [False, True])
@pytest.mark.parametrize(("fault", "kind"), REFUSALS)
async def test_requests_that_fail_are_repeated_after_a_wait(
    server: ApiServer,
    access: ClusterAccess,
    fault: Fault,
    kind: type[faults.ClusterFault],
    watch: bool,
) -> None:
    """Each failure costs one request, with its list at most; the fault is reported by its kind."""
    server.faults.next(3, fault, watch=watch)
    plan(server, "one")
    seen = Follower(access)
    async with running(seen.follower.run()):
        await until(lambda: seen.plan == "one" and server.faults.struck == 3)
        await follows(server, seen, "two")
        server.faults.clear()
        await asyncio.sleep(0.1)
        await follows(server, seen, "three")
    assert len(asked(server)) <= 8, asked(server)
    reported = [type(fault) for fault in seen.faults if fault is not None]
    assert reported
    assert all(issubclass(each, kind) for each in reported)
    assert seen.faults[-1] is None


async def test_retry_after_is_obeyed(server: ApiServer, access: ClusterAccess) -> None:
    """A server that asks for a second of rest gets it."""
    server.faults.next(1, Answer(429, retry_after=1))
    seen = Follower(access)
    async with running(seen.follower.run()):
        await until(lambda: seen.views)
    first, second = server.requests[:2]
    assert second.time - first.time >= 1.0


@pytest.mark.parametrize(
    "fault",
    [Answer(401), Answer(410), Answer(500), Html(200), Reset(), Cut(clean=True), ErrorEvent(410)],
)
@pytest.mark.parametrize("watch", [False, True])
async def test_a_fault_that_stays_makes_no_storm(
    server: ApiServer, access: ClusterAccess, fault: Fault, watch: bool
) -> None:
    """In half a second there are no more attempts than waits of half their ceilings allow."""
    server.faults.next(10**6, fault, watch=watch)
    seen = Follower(access)
    async with running(seen.follower.run()):
        await asyncio.sleep(0.5)
    # 10, 20, 40 ms, then 80 ms each: 9 attempts. Each is a list and a watch at most, and aiohttp
    # asks once more by itself where a connection that it kept was reset.
    assert 9 <= len(server.requests) <= 3 * 10, asked(server)


async def test_watches_that_end_at_once_make_no_storm(
    server: ApiServer, access: ClusterAccess
) -> None:
    """A proxy that hangs up politely every time is asked ever more slowly too."""
    server.faults.next(10**6, End(), watch=True)
    seen = Follower(access)
    async with running(seen.follower.run()):
        await asyncio.sleep(1.0)
    assert 2 <= len(server.requests) <= 17, asked(server)
    assert seen.faults == []


async def test_health_makes_failures_small_again(server: ApiServer, access: ClusterAccess) -> None:
    """After a good while the first wait is the shortest again."""
    server.faults.next(6, Answer(500))
    seen = Follower(access, jitter=lambda: 0.0)
    async with running(seen.follower.run()):
        await until(lambda: server.faults.watching)
        await asyncio.sleep(QUICK.healthy_after + 0.1)
        server.faults.strike(Reset())
        lost = asyncio.get_running_loop().time()
        await until(lambda: asked(server).count("w") == 2)
    assert server.requests[-1].time - lost < QUICK.retry[1] / 2


# --- tokens -------------------------------------------------------------------------------------


async def test_a_new_token_is_taken_up_at_the_first_refusal(
    server: ApiServer, tmp_path: Path
) -> None:
    """The file is read again on 401: one more request, and nothing broken."""
    server.tokens["old"] = "agent"
    way = kubeconfig(tmp_path, server.url, token="old")
    async with ClusterAccess(way) as access:
        seen = Follower(access)
        async with running(seen.follower.run()):
            await follows(server, seen, "one")
            server.revoke("old")
            server.tokens["new"] = "agent"
            (tmp_path / "token").write_text("new\n")
            server.faults.strike(Reset())
            await until(lambda: asked(server) == "lwww")
            await follows(server, seen, "two")
    assert [request.who for request in server.requests] == ["old", "old", "old", "new"]
    assert not any(isinstance(fault, faults.NotAuthenticated) for fault in seen.faults)


async def test_a_token_that_is_refused_is_a_fault_until_there_is_another(
    server: ApiServer, tmp_path: Path
) -> None:
    """Requests stay few, the message holds no token, and the next one is taken up."""
    server.tokens["other"] = "agent"
    way = kubeconfig(tmp_path, server.url, token="very-secret")
    async with ClusterAccess(way) as access:
        seen = Follower(access)
        async with running(seen.follower.run()):
            await asyncio.sleep(0.5)
            count = len(server.requests)
            (tmp_path / "token").write_text("other")
            await follows(server, seen, "one")
    assert 3 <= count <= 10
    assert isinstance(seen.faults[0], faults.NotAuthenticated)
    assert "very-secret" not in str(seen.faults[0])
    assert len(seen.faults) == 2  # reported once, and its end


async def test_a_token_is_read_again_before_it_grows_old(server: ApiServer, tmp_path: Path) -> None:
    """Without any refusal, a rotated token is used once the last reading is old enough."""
    server.tokens.update(old="agent", new="agent")
    way = kubeconfig(tmp_path, server.url, token="old")
    clock = asyncio.get_running_loop().time
    async with ClusterAccess(way, reread_every=0.2, clock=clock) as access:
        await access.list_node("n")
        (tmp_path / "token").write_text("new")
        await access.list_node("n")
        await asyncio.sleep(0.25)
        await access.list_node("n")
    assert [request.who for request in server.requests] == ["old", "old", "new"]


async def test_credentials_that_come_later(server: ApiServer, tmp_path: Path) -> None:
    """Without them there is a fault and no request; when they are there, it goes on."""
    way = kubeconfig(tmp_path, server.url)
    hidden = way.path.rename(tmp_path / "hidden")
    async with ClusterAccess(way) as access:
        seen = Follower(access)
        async with running(seen.follower.run()):
            await until(lambda: seen.faults)
            assert isinstance(seen.faults[0], faults.CredentialsUnusable)
            hidden.rename(way.path)
            await follows(server, seen, "one")


# --- a server that is away ----------------------------------------------------------------------


async def test_a_restart_loses_nothing(server: ApiServer, access: ClusterAccess) -> None:
    """With every version too old, and changes made meanwhile, the last plan wins."""
    seen = Follower(access)
    async with running(seen.follower.run()):
        await follows(server, seen, "one")
        for number in range(3):
            await server.stop()
            plan(server, f"meanwhile {number}")
            await server.restart()
            await reported(seen, f"meanwhile {number}")
        await follows(server, seen, "last")
    # A watch, a list, and a watch at most for each time.
    assert len(asked(server)) <= 2 + 3 * 3, asked(server)


async def test_a_server_that_is_away_for_a_day(server: ApiServer, access: ClusterAccess) -> None:
    """The last view stays, attempts are few, and it goes on."""
    day = 0.0

    def clock() -> float:
        return asyncio.get_running_loop().time() + day

    seen = Follower(access, clock=clock)
    async with running(seen.follower.run()):
        await follows(server, seen, "one")
        async with server.refusing():
            await until(lambda: not seen.follower.is_reachable)
            draws = seen.draws
            await asyncio.sleep(0.8)
            assert 5 <= seen.draws - draws <= 16  # one for each attempt
            day = 86400.0
            await asyncio.sleep(0.2)
            assert not seen.follower.is_reachable
            assert isinstance(seen.follower.fault, faults.ClusterUnreachable)
            assert seen.follower.fault.message.endswith("Connection refused")
            plan(server, "two")
        await until(lambda: seen.plan == "two")
        await follows(server, seen, "three")
    kinds = [type(fault) for fault in seen.faults]
    assert kinds == [faults.ConnectionCut, faults.ClusterUnreachable, type(None)]
    assert [view and view.annotations.get(PLAN) for view in seen.views] == [
        None,
        "one",
        "two",
        "three",
    ]


@pytest.mark.parametrize("jump", [86400.0, -86400.0])
async def test_a_clock_that_jumps(server: ApiServer, access: ClusterAccess, jump: float) -> None:
    """A list may be due earlier or later; nothing breaks and nothing spins."""
    shift = 0.0

    def clock() -> float:
        return asyncio.get_running_loop().time() + shift

    seen = Follower(access, clock=clock, intervals=replace(QUICK, watch=(1.0, 1.0)))
    async with running(seen.follower.run()):
        await follows(server, seen, "one")
        shift = jump
        await follows(server, seen, "two")
        await asyncio.sleep(1.5)
        await follows(server, seen, "three")
    assert len(server.requests) <= 6, asked(server)


async def test_cancelling_leaves_nothing_open(server: ApiServer, access: ClusterAccess) -> None:
    """The server notices at once that no client listens any more."""
    seen = Follower(access)
    async with running(seen.follower.run()):
        await until(lambda: server.faults.watching)
    await until(lambda: not server.faults.watching)


async def test_strange_objects_are_a_fault_and_no_view(
    server: ApiServer, access: ClusterAccess
) -> None:
    """JSON of another kind is refused, and what was known stays known."""
    seen = Follower(access)
    async with running(seen.follower.run()):
        await follows(server, seen, "one")
        server.faults.next(1, Dribble(0.02))  # an empty object
        server.faults.strike(ErrorEvent(500))
        await until(lambda: len(asked(server)) == 5)
        await follows(server, seen, "two")
    kinds: list[Any] = [type(fault) for fault in seen.faults if fault]
    assert faults.ClusterUnreachable in kinds
    assert None not in seen.views
