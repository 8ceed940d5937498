"""The HTTP surface, over a real listener: answers, refusals, limits, and the event stream."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from aiohttp import ClientSession, UnixConnector

from nodeagent.api.limits import TCP_LIMITS
from nodeagent.api.listening import listen
from nodeagent.api.openapi import DESCRIPTION
from nodeagent.api.routes import create_app
from nodeagent.plan.plan import Policy
from nodeagent.plan.planner import layout_of
from nodeagent.reconcile.event_log import EventType
from nodeagent.reconcile.preview import preview
from nodeagent.simulation import simulated
from nodeagent.views.node_state import NodeState
from nodeagent.views.shapes import Cluster, ClusterProblem
from nodeagent.views.status_report import status_json
from tests.api.serving import Api, api, assert_described
from tests.rig import open_driver, plan_text

GOOD, BAD = plan_text("{1g.10gb: 7}"), plan_text("{1g.10gb: 8}")


async def test_every_answer_is_as_described() -> None:
    """Each path's answer fits the schema that /openapi.json gives for it."""
    async with api() as served:
        served.events.add(EventType.APPLIED, "done", gpu="GPU-1")
        for path in (
            "/healthz",
            "/readyz",
            "/v1/status",
            "/v1/plan",
            "/v1/mps",
            "/v1/events",
            "/openapi.json",
        ):
            status, body = await served.get(path)
            assert status == 200
            assert_described(path, 200, body)


@pytest.mark.parametrize(
    "cluster",
    [
        Cluster(server="https://api:6443", reachable=True, registered=True),
        Cluster(
            server="https://api:6443",
            reachable=False,
            registered=False,
            since="2030-01-02T00:00:00.000Z",
            problem=ClusterProblem(message="no", remedy="do"),
        ),
    ],
)
def test_the_cluster_in_the_status_is_as_described(cluster: Cluster) -> None:
    """Whether all is well or nothing is, and no key of it is undescribed."""
    status = status_json(NodeState("node-a", "annotation", cluster=cluster))
    assert status is not None
    assert_described("/v1/status", 200, status)
    described = DESCRIPTION["components"]["schemas"]["Cluster"]["properties"]
    assert status["cluster"].keys() <= described.keys()


async def test_the_description_lists_exactly_the_routes() -> None:
    """Nothing undescribed is served, and nothing described is missing."""
    async with api() as served:
        app = create_app(served.answers, listen_host="", limits=TCP_LIMITS)
        routes = {
            (route.method.lower(), route.resource.canonical)
            for route in app.router.routes()
            if route.resource and route.method != "HEAD"
        }
    described = {(method, path) for path, item in DESCRIPTION["paths"].items() for method in item}
    assert routes == described


def test_the_descriptions_schemas_are_valid() -> None:
    """Every schema is one, and every reference leads somewhere."""
    for schema in DESCRIPTION["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    names = {
        part.split('"')[0] for part in json.dumps(DESCRIPTION).split("#/components/schemas/")[1:]
    }
    assert names <= set(DESCRIPTION["components"]["schemas"])


async def test_reasons_make_a_503() -> None:
    """Not alive and not ready come with their reasons."""
    async with api() as served:
        served.reasons.append("the reconciler has not been heard of")
        for path in ("/healthz", "/readyz"):
            status, body = await served.get(path)
            assert status == 503
            assert body["reasons"] == served.reasons
            assert_described(path, 503, body)


async def test_the_status_of_one_gpu() -> None:
    """By UUID; one that is not there is a 404 that names it."""
    async with api() as served:
        _, whole = await served.get("/v1/status")
        uuid = whole["gpus"][1]["uuid"]
        status, one = await served.get(f"/v1/status?gpu={uuid}")
        assert (status, [gpu["uuid"] for gpu in one["gpus"]]) == (200, [uuid])
        status, error = await served.get("/v1/status?gpu=GPU-none")
        assert status == 404
        assert "GPU-none" in error["error"]


@pytest.mark.parametrize(
    ("body", "status", "verdict"),
    [
        (GOOD, 200, "applicable"),
        (BAD, 422, "unsatisfiable"),
        (plan_text("{1g.10gb: 1}", "[7]"), 422, "invalid"),
        (b"{", 400, "invalid"),
        (b"\xff\xfe", 400, "invalid"),
        (b"", 400, "invalid"),
    ],
)
async def test_a_preview(body: bytes, status: int, verdict: str) -> None:
    """A plan that can be, one that cannot, and what is no plan; each in the shape of a plan."""
    async with api() as served:
        async with served.session.post(f"{served.base}/v1/plan/preview", data=body) as answer:
            found = await answer.json()
        assert (answer.status, found["verdict"]) == (status, verdict)
        assert bool(found["problems"]) == (status != 200)
        assert bool(found["gpus"]) == (status == 200)
        assert_described("/v1/plan/preview", status, found, "post")


async def test_a_preview_touches_nothing() -> None:
    """It is computed from what was seen; the GPUs are neither changed nor asked."""
    with simulated("h100-80gb:1") as node:
        async with open_driver() as driver:
            before = await driver.observe()
            node.unload_driver()
            found = preview(GOOD, None, before, Policy())
            node.load_driver()
            assert found.report["verdict"] == "applicable"
            assert len(found.report["gpus"][0]["steps"]) == 8
            after = await driver.observe()
    assert layout_of(after.gpus[0]) == layout_of(before.gpus[0])


MIG_PARTED = b"""version: v1
mig-configs:
  small:
  - {devices: [0], mig-enabled: true, mig-devices: {1g.10gb: 7}}
  none:
  - {devices: [0], mig-enabled: false}
"""


async def test_a_preview_of_a_mig_parted_configuration() -> None:
    """The name of the configuration comes in the query."""
    async with api() as served:
        url = f"{served.base}/v1/plan/preview?configuration="
        async with served.session.post(url + "small", data=MIG_PARTED) as answer:
            assert (await answer.json())["verdict"] == "applicable"
        async with served.session.post(url + "none", data=MIG_PARTED) as answer:
            assert (await answer.json())["verdict"] == "inSync"
        async with served.session.post(url + "other", data=MIG_PARTED) as answer:
            assert answer.status == 400


async def test_no_preview_before_the_first_look() -> None:
    """Without an observation there is nothing to plan for."""
    async with (
        api(observed=False) as served,
        served.session.post(f"{served.base}/v1/plan/preview", data=GOOD) as answer,
    ):
        assert answer.status == 503


async def test_a_body_that_is_too_large() -> None:
    """64 KiB are taken, one byte more is not."""
    async with api() as served:
        for size, status in ((64 * 1024, 400), (64 * 1024 + 1, 413)):
            url = f"{served.base}/v1/plan/preview"
            async with served.session.post(url, data=b"#" * size) as answer:
                assert answer.status == status


HOSTS: tuple[tuple[str, int], ...] = (
    ("localhost", 200),
    ("localhost:9470", 200),
    ("LOCALHOST.:1", 200),
    ("127.0.0.1:80", 200),
    ("[::1]:9470", 200),
    ("[0:0:0:0:0:0:0:1]", 200),
    ("localhost:", 200),
    ("node-a.example", 403),
    ("evil.example", 403),
    ("evil.example:9470", 403),
    ("localhost.evil.example", 403),
    ("127.0.0.1.evil.example", 403),
    ("[::1].evil", 403),
    ("[::1]evil:80", 403),
    ("[::1", 403),
    ("::1", 403),
    ("[localhost]", 403),
    ("127.0.0.1:1:evil", 403),
    ("127.0.0.1:evil", 403),
    ("127.0.0.1:80@evil.example", 403),
    ("localhost/evil", 403),
    ("localhost..", 403),
    ("evil@localhost", 403),
    ("", 403),
)


async def test_foreign_hosts_are_refused() -> None:
    """A web page whose name was pointed at this machine learns nothing."""
    async with api() as served:
        for host, status in HOSTS:
            found, _ = await served.get("/v1/status", Host=host)
            assert found == status, host


async def test_the_address_that_is_listened_on_is_no_foreign_host() -> None:
    """A loopback address beside the usual one is named in the setting, so it is accepted."""
    async with api(host="127.0.0.2") as served:
        assert (await served.get("/healthz"))[0] == 200
        assert (await served.get("/healthz", Host="127.0.0.3"))[0] == 403


async def test_two_hosts_are_refused() -> None:
    """A request that names two hosts is not taken for either."""
    async with api() as served:
        answer = await raw(
            served, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n"
        )
        assert answer.split()[1] in (b"400", b"403")


async def raw(served: Api, request: bytes) -> bytes:
    """The first bytes of the answer to exactly these bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(served.base.rsplit(":")[-1]))
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(4000), 30)
    writer.close()
    await writer.wait_closed()
    return answer


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/v1/../etc/passwd", 404),
        ("GET", "/static/", 404),
        ("POST", "/v1/status", 405),
        ("DELETE", "/v1/plan", 405),
        ("GET", "/v1/plan/preview", 405),
    ],
)
async def test_what_is_not_there(method: str, path: str, status: int) -> None:
    """Unknown paths and methods are refused as JSON."""
    async with api() as served, served.session.request(method, served.base + path) as answer:
        assert answer.status == status
        assert "error" in await answer.json()


async def test_headers_say_nothing_of_versions_and_forbid_what_is_not_needed() -> None:
    """No server version; no sniffing, caching, framing."""
    async with api() as served:
        for path in ("/", "/v1/status", "/nothing"):
            async with served.session.get(served.base + path) as answer:
                assert answer.headers["Server"] == "nodeagent"
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
                assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]


async def test_even_garbage_learns_nothing_of_versions() -> None:
    """What is no HTTP at all is refused, without a word on who refused it."""
    async with api() as served:
        answer = await raw(served, b"\x16\x03\x01 garbage\r\n\r\n")
        assert answer.split()[1] == b"400"
        assert b"aiohttp" not in answer


async def test_oversized_headers_are_refused() -> None:
    """A header of a megabyte costs nothing."""
    headers = {"X": "x" * 100_000}
    async with (
        api() as served,
        served.session.get(served.base + "/healthz", headers=headers) as answer,
    ):
        assert answer.status == 400


async def test_the_page_needs_nothing_from_elsewhere() -> None:
    """One file, allowed to run only its own script and style, and to ask only this address."""
    async with api() as served:
        async with served.session.get(served.base + "/") as answer:
            page = await answer.text()
            policy = answer.headers["Content-Security-Policy"]
        assert answer.content_type == "text/html"
        assert "http://" not in page
        assert "https://" not in page
        assert "innerHTML" not in page
        assert page.index('id="headline"') < page.index("<h1>")
        assert policy.count("sha256-") == 2
        assert "unsafe" not in policy


async def test_events_as_a_list() -> None:
    """Oldest first, times in UTC."""
    async with api() as served:
        served.events.add(EventType.PLAN_ACCEPTED, "one")
        served.events.add(EventType.APPLIED, "two", gpu="GPU-1")
        _, events = await served.get("/v1/events")
        assert [(e["id"], e["type"], e["message"], e.get("gpu")) for e in events] == [
            (1, "PlanAccepted", "one", None),
            (2, "Applied", "two", "GPU-1"),
        ]
        assert events[0]["time"].endswith("Z")


async def read_events(answer: Any, count: int) -> list[dict[str, Any]]:
    """The next events of a stream."""
    events: list[dict[str, Any]] = []
    async with asyncio.timeout(30):
        while len(events) < count:
            line = (await answer.content.readline()).decode()
            if line.startswith("data: "):
                events.append(json.loads(line.removeprefix("data: ")))
    return events


async def test_events_as_a_stream() -> None:
    """A follower gets the events from now on."""
    async with api() as served:
        served.events.add(EventType.STARTED, "before")
        headers = {"Accept": "text/event-stream"}
        async with served.session.get(f"{served.base}/v1/events", headers=headers) as answer:
            assert answer.content_type == "text/event-stream"
            assert (await answer.content.readline()).startswith(b":")
            served.events.add(EventType.APPLIED, "after")
            assert [e["message"] for e in await read_events(answer, 1)] == ["after"]


async def test_a_cut_stream_goes_on_where_it_ended() -> None:
    """With the id of the last event received, none is missed and none comes twice."""
    async with api() as served:
        for number in range(1, 4):
            served.events.add(EventType.APPLIED, str(number))
        headers = {"Accept": "text/event-stream", "Last-Event-ID": "1"}
        async with served.session.get(f"{served.base}/v1/events", headers=headers) as answer:
            assert [e["message"] for e in await read_events(answer, 2)] == ["2", "3"]


async def test_followers_do_not_hold_up_the_end() -> None:
    """When the log is closed the streams end, and so does the listener."""
    async with api() as served:
        headers = {"Accept": "text/event-stream"}
        answer = await served.session.get(f"{served.base}/v1/events", headers=headers)
        await answer.content.readline()
        served.events.close()
        async with asyncio.timeout(30):
            assert b"data" not in await answer.content.read()
        answer.close()


async def test_the_unix_socket_is_for_its_owner_alone(tmp_path: Path) -> None:
    """Mode 0600, the same answers, any Host; gone when the agent is gone."""
    path = tmp_path / "agent.sock"
    path.touch()  # left by an agent that was killed
    async with api(unix_socket=path):
        assert path.stat().st_mode & 0o777 == 0o600
        async with (
            ClientSession(connector=UnixConnector(str(path))) as session,
            session.get("http://agent/healthz") as answer,
        ):
            assert answer.status == 200
    assert not path.exists()


async def test_a_taken_address_is_reported_in_a_sentence() -> None:
    """Who starts a second agent learns what to set."""
    from nodeagent.errors import NodeagentError

    async with api() as served:
        port = int(served.base.rsplit(":")[-1])
        with pytest.raises(NodeagentError, match=r"cannot listen on 127\.0\.0\.1"):
            async with listen(served.answers, "127.0.0.1", port, served.refusals):
                pass


async def test_previews_wait_for_those_whose_askers_left() -> None:
    """A thread cannot be ended: asking and leaving again and again must not take them all."""
    now, most, go_on = 0, 0, threading.Event()

    def slow(_: bytes, __: str | None) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        go_on.wait(60)
        now -= 1

    async with api(previewing=slow) as served:
        url = f"{served.base}/v1/plan/preview"
        refused = None
        while refused is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(0.05), served.session.post(url, data=GOOD) as answer:
                    assert answer.status == 503, "it cannot be answered yet"
                    refused = (await answer.json())["error"]
        assert "too many" in refused
        go_on.set()
        async with asyncio.timeout(30):
            while any(task.get_name() == "preview" for task in asyncio.all_tasks()):
                await asyncio.sleep(0.01)
        assert (now, most) == (0, 1)
