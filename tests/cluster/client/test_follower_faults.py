"""Following a Node through faults of its watch and of requests, with the requests counted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from nodeagent.cluster.client import faults
from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.reflector import WatchIntervals
from nodeagent.structs import replace
from tests.cluster.client.rig import (
    PLAN,
    QUICK,
    Follower,
    follows,
    kubeconfig,
    requested,
    running,
    set_plan,
    until,
)
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
    Slow,
)

pytestmark = pytest.mark.virtual_time
DEEP = "[" * 20_000 + "\n"  # which Python's own reader of JSON answers with a RecursionError


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
        set_plan(server, "two")  # right behind the fault: it may be lost in it
        await until(lambda: seen.plan == "two")
        await until(lambda: requested(server) == "lw" + then)
        await follows(server, seen, "three")
        await asyncio.sleep(0.2)
    assert requested(server) == "lw" + then
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
        set_plan(server, "two")
        await until(lambda: seen.plan == "two")
    assert requested(server) == "lww"
    assert seen.faults == []


async def test_a_server_that_does_not_go_on_is_noticed(server: ApiServer, tmp_path: Path) -> None:
    """With the times of the product: by the watch that follows a silent one."""
    async with ClusterAccess(kubeconfig(tmp_path, server.url)) as access:
        seen = Follower(access, intervals=WatchIntervals())
        async with running(seen.follower.run()):
            await follows(server, seen, "one")
            server.faults.next(10**6, Freeze())
            server.faults.strike(Freeze())
            await asyncio.sleep(46.0)
            assert isinstance(seen.follower.fault, faults.ClusterUnreachable)
            server.faults.clear()
            await follows(server, seen, "two")


async def test_an_old_version_leads_to_one_list(server: ApiServer, access: ClusterAccess) -> None:
    """410 after compaction: one list, one watch, and the last plan wins."""
    seen = Follower(access)
    async with running(seen.follower.run()):
        await follows(server, seen, "one")
        await server.stop()
        for number in range(5):
            set_plan(server, str(number))
        server.expire()
        server.faults.next(1, Reset())  # so that the version is kept: the server was there
        await server.start()
        await until(lambda: seen.plan == "4")
        await follows(server, seen, "last")
    assert len(requested(server)) <= len("lw" + "w" + "w" + "lw")


# --- requests -------------------------------------------------------------------------------------


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
    if isinstance(fault, Freeze | Dribble):
        access.answer_within = 0.5
    server.faults.next(3, fault, watch=watch)
    set_plan(server, "one")
    seen = Follower(access)
    async with running(seen.follower.run()):
        await until(lambda: seen.plan == "one" and server.faults.struck == 3)
        await follows(server, seen, "two")
        server.faults.clear()
        await asyncio.sleep(0.1)
        await follows(server, seen, "three")
    assert len(requested(server)) <= 8, requested(server)
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
    assert 9 <= len(server.requests) <= 3 * 10, requested(server)


async def test_watches_that_end_at_once_make_no_storm(
    server: ApiServer, access: ClusterAccess
) -> None:
    """A proxy that hangs up politely every time is asked ever more slowly too."""
    server.faults.next(10**6, End(), watch=True)
    seen = Follower(access)
    async with running(seen.follower.run()):
        await asyncio.sleep(1.0)
    assert 2 <= len(server.requests) <= 17, requested(server)
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
        await until(lambda: requested(server).count("w") == 2)
    assert server.requests[-1].time - lost < QUICK.retry[1] / 2
