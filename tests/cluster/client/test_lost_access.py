from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from nodeagent.cluster.client import faults, requests
from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.node_view import read_node
from nodeagent.cluster.reflector import WatchIntervals
from tests.cluster.client.rig import PLAN, Follower, follows, kubeconfig, running, set_plan, until
from tests.simulated_cluster.api_server import ApiServer

pytestmark = pytest.mark.virtual_time


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
