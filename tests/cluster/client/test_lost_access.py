from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from nodeagent.cluster.client import faults, requests
from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.node_view import read_node
from nodeagent.cluster.reflector import WatchIntervals
from tests.cluster.client.rig import (
    PLAN,
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
from tests.simulated_cluster.faults import (
    Reset,
)

pytestmark = pytest.mark.virtual_time


async def test_a_new_token_is_taken_up_at_the_first_refusal(
    server: ApiServer, tmp_path: Path
) -> None:
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
            await until(lambda: requested(server) == "lwww")
            await follows(server, seen, "two")
    assert [request.who for request in server.requests] == ["old", "old", "old", "new"]
    assert not any(isinstance(fault, faults.NotAuthenticated) for fault in seen.faults)


async def test_a_token_that_is_refused_is_a_fault_until_there_is_another(
    server: ApiServer, tmp_path: Path
) -> None:
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
    server.tokens.update(old="agent", new="agent")
    way = kubeconfig(tmp_path, server.url, token="old")
    clock = asyncio.get_running_loop().time
    async with ClusterAccess(way, reread_every=0.2, clock=clock) as access:
        await access.listed(requests.list_node("n"), read_node)
        (tmp_path / "token").write_text("new")
        await access.listed(requests.list_node("n"), read_node)
        await asyncio.sleep(0.25)
        await access.listed(requests.list_node("n"), read_node)
    assert [request.who for request in server.requests] == ["old", "old", "new"]


async def test_credentials_that_come_later(server: ApiServer, tmp_path: Path) -> None:
    way = kubeconfig(tmp_path, server.url)
    hidden = way.path.rename(tmp_path / "hidden")
    async with ClusterAccess(way) as access:
        seen = Follower(access)
        async with running(seen.follower.run()):
            await until(lambda: seen.faults)
            assert isinstance(seen.faults[0], faults.CredentialsUnusable)
            hidden.rename(way.path)
            await follows(server, seen, "one")


async def test_a_restart_loses_nothing(server: ApiServer, access: ClusterAccess) -> None:
    seen = Follower(access)
    async with running(seen.follower.run()):
        await follows(server, seen, "one")
        for number in range(3):
            await server.stop()
            set_plan(server, f"meanwhile {number}")
            await server.restart()
            await reported(seen, f"meanwhile {number}")
        await follows(server, seen, "last")
    # A watch, a list, and a watch at most for each time.
    assert len(requested(server)) <= 2 + 3 * 3, requested(server)


async def test_a_server_that_is_away_for_hours(server: ApiServer, access: ClusterAccess) -> None:
    seen = Follower(access, intervals=WatchIntervals())
    async with running(seen.follower.run()):
        await follows(server, seen, "one")
        async with server.refusing():
            await until(lambda: not seen.follower.is_reachable)
            draws = seen.draws
            await asyncio.sleep(10800.0)
            assert 10800 / 30 <= seen.draws - draws <= 10800 / 14  # one for each attempt
            assert not seen.follower.is_reachable
            assert isinstance(seen.follower.fault, faults.ClusterUnreachable)
            assert seen.follower.fault.message.endswith("Connection refused")
            set_plan(server, "two")
        await asyncio.sleep(30.0)
        assert seen.plan == "two"
        await follows(server, seen, "three")
    kinds = [type(fault) for fault in seen.faults]
    assert kinds == [faults.ConnectionCut, faults.ClusterUnreachable, type(None)]
    assert [view and view.annotations.get(PLAN) for view in seen.views] == [
        None,
        "one",
        "two",
        "three",
    ]
