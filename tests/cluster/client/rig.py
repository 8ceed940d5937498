"""What the tests of the API server's client share: access, short times, a Node with a record."""

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.credentials import Kubeconfig
from nodeagent.cluster.client.faults import ClusterFault
from nodeagent.cluster.client.node_view import NodeView, Wanted
from nodeagent.cluster.keeper import WriteIntervals
from nodeagent.cluster.node import KeptNode
from nodeagent.cluster.reflector import WatchIntervals
from tests.machine_load import stretched, until
from tests.simulated_cluster import agent
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.journal import Request

PLAN = "nodeagent.io/plan"
STATUS = "nodeagent.io/status"
# Short, but with the same proportions: a first wait far below the longest, health above both.
QUICK = WatchIntervals(watch=(30.0, 30.0), silence=20.0, retry=(0.02, 0.16), healthy_after=0.4)
QUICK_WRITES = WriteIntervals(interval=0.1, burst=1, retry=(0.02, 0.16), denied=(0.02, 0.5))


def kubeconfig(folder: Path, url: str, *, token: str | None = None) -> Kubeconfig:
    """A kubeconfig in `folder`, whose token is read from the file `token` beside it."""
    path, token_file = folder / "kubeconfig", None
    if token is not None:
        token_file = folder / "token"
        token_file.write_text(token)
    path.write_text(agent.kubeconfig(url, token_file=token_file))
    return Kubeconfig(path)


def certificate(folder: Path) -> Path:
    """A new self-signed certificate for 127.0.0.1, with its key, in one file."""
    folder.mkdir(exist_ok=True)
    key, found = folder / "key.pem", folder / "certificate.pem"
    options = (
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=tests "
        "-addext subjectAltName=IP:127.0.0.1 "
        "-addext keyUsage=critical,digitalSignature,keyCertSign"
    )
    command = ["openssl", *options.split(), "-keyout", str(key), "-out", str(found)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@contextlib.asynccontextmanager
async def running(*coroutines: Coroutine[Any, Any, Any]) -> AsyncIterator[None]:
    """Run these in the block; fail if one of them ends by itself."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        yield
        ended = [task for task in tasks if task.done()]
        assert not ended, f"ended by itself: {ended}"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Follower:
    """A Node that is followed and kept, with a record of what was reported of it, of the faults of
    following and of writing, and of every wait that was drawn.
    """

    def __init__(
        self,
        access: ClusterAccess,
        name: str = "n",
        *,
        intervals: WatchIntervals = QUICK,
        writes: WriteIntervals = QUICK_WRITES,
        jitter: Callable[[], float] = lambda: 0.5,
    ) -> None:
        self.views: list[NodeView | None] = []
        self.faults: list[ClusterFault | None] = []
        self.writing: list[ClusterFault | None] = []
        self.overwritten: list[tuple[str, ...]] = []
        self.draws = 0
        self._jitter = jitter
        self.follower = KeptNode(
            access,
            name,
            on_view=self.views.append,
            on_following=self.faults.append,
            on_writing=self.writing.append,
            on_overwritten=self.overwritten.append,
            watches=intervals,
            writes=writes,
            jitter=self._drawn,
        )

    def _drawn(self) -> float:
        self.draws += 1
        return self._jitter()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[KeptNode]:
        """Run until the Node was seen, and in the block."""
        async with running(self.follower.run()):
            await until(lambda: self.views)
            yield self.follower

    @property
    def plan(self) -> str | None:
        view = self.views[-1] if self.views else None
        return view.annotations.get(PLAN) if view else None


def requested(server: ApiServer) -> str:
    return "".join("w" if request.watch else "l" for request in server.requests)


def set_plan(server: ApiServer, text: str) -> None:
    server.annotate("n", **{PLAN: text})


async def reported(seen: Follower, text: str) -> None:
    await until(lambda: seen.plan == text)


async def follows(server: ApiServer, seen: Follower, text: str) -> None:
    """A change made now is reported, by the watch that is open."""
    await until(lambda: server.faults.watching)
    set_plan(server, text)
    await reported(seen, text)
    assert seen.follower.is_reachable
    assert seen.follower.fault is None


def writes(server: ApiServer) -> list[Request]:
    return [request for request in server.requests if request.write]


def status(server: ApiServer) -> str | None:
    found = server.node("n")["metadata"].get("annotations", {}).get(STATUS)
    assert isinstance(found, str | None)
    return found


def wanted(text: str) -> Wanted:
    return Wanted({STATUS: text})


async def settled(server: ApiServer, made: Follower, text: str) -> None:
    """The status becomes this, and nothing is left to be written."""
    await until(lambda: status(server) == text)
    async with asyncio.timeout(stretched(30)):
        await made.follower.settled()


async def written(server: ApiServer, count: int) -> None:
    await until(lambda: len(writes(server)) == count)
