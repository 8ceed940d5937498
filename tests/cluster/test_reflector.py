import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, cast

import pytest

from nodeagent.cluster.client import requests
from nodeagent.cluster.client.access import ClusterAccess, Listed
from nodeagent.cluster.reflector import Reflector
from tests.cluster.client.rig import running

pytestmark = pytest.mark.virtual_time


@dataclass(frozen=True)
class Thing:
    name: str
    resource_version: str


def read(text: bytes) -> Thing:
    metadata = json.loads(text)["metadata"]
    return Thing(metadata["name"], metadata["resourceVersion"])


class Server:
    """Answers a list when the test says, and sends the watch what the test puts in."""

    def __init__(self) -> None:
        self.lists: asyncio.Queue[Listed[Thing]] = asyncio.Queue()
        self.lines: asyncio.Queue[bytes] = asyncio.Queue()

    async def listed(self, *_: object) -> Listed[Thing]:
        return await self.lists.get()

    @contextlib.asynccontextmanager
    async def watch(self, _: object) -> AsyncIterator[None]:
        yield

    async def next_line(self, *_: object, **__: object) -> bytes:
        return await self.lines.get()

    def lists_at(self, version: int, *things: int) -> None:
        self.lists.put_nowait(Listed(tuple(Thing("x", str(n)) for n in things), str(version)))

    def reports(self, kind: str, version: int) -> None:
        metadata = {"name": "x", "resourceVersion": str(version)}
        self.lines.put_nowait(json.dumps({"type": kind, "object": {"metadata": metadata}}).encode())


async def versions(reflector: Reflector[Thing]) -> list[str]:
    """The versions that it has once everything was taken in."""
    await asyncio.sleep(1)
    return [thing.resource_version for thing in reflector.objects.values()]


@contextlib.asynccontextmanager
async def following(*things: int) -> AsyncIterator[tuple[Server, Reflector[Thing]]]:
    server = Server()
    reflector = Reflector[Thing](
        cast("ClusterAccess", cast("Any", server)),
        requests.list_node("n"),
        read,
        on_change=lambda _: None,
    )
    server.lists_at(5, *things)
    async with running(reflector.run()):
        assert await versions(reflector) == [str(n) for n in things]
        yield server, reflector


async def test_an_answer_that_the_watch_has_overtaken() -> None:
    async with following() as (server, reflector):
        server.reports("ADDED", 6)
        server.reports("DELETED", 7)
        assert await versions(reflector) == []
        assert not reflector.learn(Thing("x", "6"), None)
        assert await versions(reflector) == []
        assert reflector.learn(Thing("x", "8"), None)
        assert await versions(reflector) == ["8"]


@pytest.mark.parametrize(("listed_at", "left"), [(10, []), (7, ["8"])])
async def test_an_answer_while_a_list_is_read(listed_at: int, left: list[str]) -> None:
    async with following(4) as (server, reflector):
        looking = asyncio.create_task(reflector.list())
        await versions(reflector)
        reflector.learn(Thing("x", "8"), Thing("x", "4"))
        server.lists_at(listed_at)
        await looking
        assert await versions(reflector) == left


@pytest.mark.parametrize(("listed", "left"), [(12, ["12"]), (4, [])])
async def test_a_deletion_while_a_list_is_read(listed: int, left: list[str]) -> None:
    """What the list has may have been created anew since."""
    async with following(4) as (server, reflector):
        looking = asyncio.create_task(reflector.list())
        await versions(reflector)
        server.reports("DELETED", 11)
        await versions(reflector)
        server.lists_at(12, listed)
        await looking
        assert await versions(reflector) == left


async def test_events_that_come_late_or_twice() -> None:
    async with following() as (server, reflector):
        for kind, version in (("ADDED", 10), ("MODIFIED", 9), ("DELETED", 9), ("DELETED", 10)):
            server.reports(kind, version)
        assert await versions(reflector) == ["10"]
        server.reports("MODIFIED", 11)
        assert await versions(reflector) == ["11"]


async def test_an_answer_of_a_cluster_from_a_backup() -> None:
    async with following(4) as (_, reflector):
        assert reflector.learn(Thing("x", "2"), reflector.objects["x"])
        assert await versions(reflector) == ["2"]
