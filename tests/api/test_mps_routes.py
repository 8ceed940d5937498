import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, UnixConnector

from nodeagent.errors import DrainTimedOut, NodeagentError, StillInUse, UnknownDevice
from nodeagent.plan.shares import Account, Share, Sharing, WantedMps
from nodeagent.views.shapes import MpsDaemon, MpsServer, MpsWaiting
from tests.api.serving import Api, Doing, api, assert_described, observe
from tests.machine_load import cancelled, until
from tests.views.daemons import mps_client, mps_daemon

WANTED = WantedMps(Sharing((Share("small", 4, 8192, 15.0),), "report"), Account(1000, 1000))
RESTART, DRAIN = "/v1/mps/restart", "/v1/mps/drain"


async def _daemon() -> MpsDaemon:
    """The daemon of the node's second GPU, with everything that an answer can have."""
    node = await observe()
    return mps_daemon(
        node.gpus[1].uuid,
        "Fault",
        WANTED,
        "its server had a fatal fault",
        pid=815,
        restarts=2,
        pipe_directory="/run/nodeagent/mps/x/pipe",
        server=MpsServer(pid=816, user=1000, status="FAULT"),
        clients=(mps_client(4712, "python", 1000, "small", "small-0", 5, 8 << 30, 15.0, ("no",)),),
        waiting=(MpsWaiting(pid=99, user=1001, command="sleepy"),),
        last_lines=("the last",),
    )


@asynccontextmanager
async def over_socket(
    path: Path, doing: Doing, daemons: tuple[MpsDaemon, ...]
) -> AsyncIterator[tuple[Api, ClientSession]]:
    async with (
        api(unix_socket=path, doing=doing, daemons=daemons) as served,
        ClientSession(connector=UnixConnector(str(path)), base_url="http://agent") as session,
    ):
        yield served, session


async def post(session: ClientSession, path: str, body: Any) -> tuple[int, Any]:
    """Status and answer; bytes are sent as they are."""
    data = body if isinstance(body, bytes) else json.dumps(body)
    async with session.post(path, data=data) as answer:
        return answer.status, await answer.json()


async def test_daemons_are_shown_to_everyone() -> None:
    daemon = await _daemon()
    async with api(daemons=(daemon,)) as served:
        status, report = await served.get("/v1/mps")
        assert status == 200
        assert_described("/v1/mps", 200, report)
        assert [d["device"] for d in report["daemons"]] == [daemon.device]
        for name, there in ((daemon.device, 1), ("1", 1), ("0", 0)):
            status, report = await served.get(f"/v1/mps?device={name}")
            assert (status, len(report["daemons"])) == (200, there)
        status, report = await served.get("/v1/mps?device=7")
        assert status == 404
        assert "'7'" in report["error"]
        assert_described("/v1/mps", 404, report)
        assert_described("/v1/status", 200, (await served.get("/v1/status"))[1])


@pytest.mark.parametrize("path", [RESTART, DRAIN])
async def test_changes_are_refused_over_tcp(path: str) -> None:
    doing, daemon = Doing(), await _daemon()
    async with api(daemons=(daemon,), doing=doing) as served:
        for body in ({"device": "1"}, {"device": "1", "force": True}, b"", b"{"):
            status, answer = await post(served.session, served.base + path, body)
            assert status == 403
            assert "agent.sock" in answer["error"]
            assert_described(path, 403, answer, "post")
    assert doing.asked == []


NOT_UNDERSTOOD: tuple[tuple[str, Any, str], ...] = (
    (DRAIN, b"", "JSON object"),
    (DRAIN, b"[" * 60_000, "JSON object"),
    (DRAIN, b"\xff", "JSON object"),
    (DRAIN, {}, "device"),
    (DRAIN, {"device": "0\n1"}, "device"),
    (DRAIN, {"device": "x" * 101}, "device"),
    (DRAIN, {"device": "0", "timeout": -1}, "timeout"),
    (DRAIN, b'{"device": "0", "timeout": NaN}', "JSON"),
    (DRAIN, b'{"device": "0", "timeout": 1e999}', "out of range"),
    (DRAIN, b'{"device": "1", "timeout": 1%s}' % (b"0" * 400), "out of range"),
    (DRAIN, {"device": "0", "froce": True}, "froce"),
    (RESTART, {"device": "0", "timeout": 1}, "timeout"),
)


async def test_what_is_not_understood_is_refused(tmp_path: Path) -> None:
    doing, daemon = Doing(), await _daemon()
    async with over_socket(tmp_path / "agent.sock", doing, (daemon,)) as (_, session):
        for path, body, word in NOT_UNDERSTOOD:
            status, answer = await post(session, path, body)
            assert (status, doing.asked) == (400, []), body
            assert word in answer["error"], body


async def test_a_device_without_exactly_one_daemon_is_a_404(tmp_path: Path) -> None:
    doing, daemon = Doing(), await _daemon()
    for daemons, device, word, remedy in (
        ((daemon,), "7", "no device", "mps status"),
        ((daemon,), "0", "no MPS daemon", "mps status"),
        ((daemon, daemon), "1", "2 MPS daemons", daemon.device),
    ):
        async with over_socket(tmp_path / "agent.sock", doing, daemons) as (_, session):
            status, answer = await post(session, RESTART, {"device": device})
        assert (status, doing.asked) == (404, [])
        assert word in answer["error"]
        assert remedy in answer["remedy"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (UnknownDevice("gone meanwhile"), 404),
        (StillInUse("used by 4712 (python)", remedy="end it"), 409),
        (DrainTimedOut("4712 (python) is left"), 504),
        (NodeagentError("it did not come back"), 500),
    ],
)
async def test_how_it_can_fail(error: NodeagentError, expected: int, tmp_path: Path) -> None:
    doing, daemon = Doing(error), await _daemon()
    async with over_socket(tmp_path / "agent.sock", doing, (daemon,)) as (_, session):
        status, answer = await post(session, DRAIN, {"device": "1"})
    assert status == expected
    assert answer["error"] == error.message
    assert answer.get("remedy", "") == error.remedy
    assert_described(DRAIN, status, answer, "post")


async def _leave_once_asked(doing: Doing, asking: Coroutine[Any, Any, object]) -> None:
    task, before = asyncio.create_task(asking), len(doing.asked)
    await until(lambda: len(doing.asked) > before)
    await cancelled(task)


async def test_who_leaves_gives_up_a_drain_and_stops_no_restart(tmp_path: Path) -> None:
    """A restart half done would be worse than one that no client waits for. A drained device would
    take no clients, and no report would say why.
    """
    doing, daemon = Doing(), await _daemon()
    doing.go_on.clear()
    async with over_socket(tmp_path / "agent.sock", doing, (daemon,)) as (_, session):
        await _leave_once_asked(doing, post(session, RESTART, {"device": "1"}))
        assert doing.asked == [("restart", daemon.device, False)]
        # That it left is noticed, once it is of a client that left after it.
        await _leave_once_asked(doing, post(session, DRAIN, {"device": "1"}))
        await until(lambda: ("cancelled", "drain") in doing.asked)
        doing.go_on.set()
        await until(lambda: ("done", "restart") in doing.asked)
