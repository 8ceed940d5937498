"""The test API server's own gifts: faults, foreign writers, tokens, pods, its journal, its life."""

from __future__ import annotations

import asyncio
import io
import ssl
import subprocess
import time
from pathlib import Path
from typing import Any, Self

import aiohttp
import pytest
from kubernetes.aio import client, watch

from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.clients import MERGE, Api, core_api, watched
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
from tests.simulated_cluster.refusals import Refused

KEY = "nodeagent.io/plan"
exceptions = client.exceptions


def versions(api: ApiServer) -> str:
    """The present version, as a watch names it."""
    return str(api.store.version)


class Following:
    """An open watch of `gpu-0` from the present version on, in a task of its own."""

    def __init__(self, api: ApiServer, core: Api, *, seconds: int = 60) -> None:
        self.events: list[Any] = []
        self._api, self._core, self._seconds = api, core, seconds
        self._from = str(api.store.version)

    async def __aenter__(self) -> Self:
        before = len(self._api.faults.watching)
        self.task = asyncio.create_task(self._follow())
        while len(self._api.faults.watching) == before:
            await asyncio.sleep(0.005)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def _follow(self) -> None:
        async with watch.Watch() as watching:
            async for event in watching.stream(
                self._core.list_node,
                field_selector="metadata.name=gpu-0",
                resource_version=self._from,
                timeout_seconds=self._seconds,
                _request_timeout=self._seconds + 1,
            ):
                self.events.append(event)

    async def heard(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.events) < count:
                await asyncio.sleep(0.005)


# --- faults of ordinary requests ----------------------------------------------------------------


@pytest.mark.parametrize("code", [401, 403, 409, 410, 429, 500, 503])
async def test_ordered_answers(api: ApiServer, core: Api, code: int) -> None:
    """As many requests as ordered are refused, with a Status object; the next is served."""
    api.faults.next(2, Answer(code, retry_after=7))
    for _ in range(2):
        with pytest.raises(exceptions.ApiException) as caught:
            await core.read_node("gpu-0")
        assert caught.value.status == code
        assert caught.value.headers["Retry-After"] == "7"
        assert f'"code": {code}' in caught.value.body
    assert (await core.read_node("gpu-0")).metadata.name == "gpu-0"
    assert [one.status for one in api.requests] == [code, code, 200]


async def test_faults_hit_only_what_they_name(api: ApiServer, core: Api) -> None:
    """A verb, a path or a watch narrows an order; what does not match passes."""
    api.faults.next(1, Answer(500), verb="PATCH")
    api.faults.next(1, Answer(503), path="/api/v1/namespaces/*/events")
    api.faults.next(1, Answer(429), watch=True)
    await core.list_node()
    with pytest.raises(exceptions.ServiceException, match="500"):
        await core.patch_node("gpu-0", {}, _content_type=MERGE)
    with pytest.raises(exceptions.ServiceException, match="503"):
        await core.create_namespaced_event(
            "default", {"metadata": {"name": "x"}, "involvedObject": {}}
        )
    with pytest.raises(exceptions.ApiException, match="429"):
        await watched(core, "gpu-0")
    assert api.faults.struck == 3


async def test_a_proxys_page(api: ApiServer, core: Api) -> None:
    """HTML with 502 is an error of a request, and text instead of events of a watch."""
    api.faults.next(1, Html())
    with pytest.raises(exceptions.ServiceException, match="nginx"):
        await core.read_node("gpu-0")
    api.faults.next(1, Html(code=200), watch=True)
    assert all(isinstance(one, str) for one in await watched(core, "gpu-0"))


@pytest.mark.parametrize(
    ("fault", "kind"),
    [(Reset(), aiohttp.ClientOSError), (Cut(), aiohttp.ClientPayloadError)],
    ids=["reset", "cut"],
)
async def test_broken_connections(
    api: ApiServer, core: Api, fault: Fault, kind: type[Exception]
) -> None:
    """A reset and a broken-off body are errors of the connection, not of the API.

    A GET whose connection is reset is sent once more by aiohttp itself.
    """
    api.faults.next(2, fault)
    with pytest.raises(kind):
        await core.read_node("gpu-0")
    api.faults.clear()
    await core.read_node("gpu-0")


async def test_a_frozen_request(api: ApiServer, core: Api) -> None:
    """No byte comes until the client gives up; thawed, a request is answered after all."""
    api.faults.next(2, Freeze())
    with pytest.raises(TimeoutError):
        await core.read_node("gpu-0", _request_timeout=0.2)
    late = asyncio.create_task(core.read_node("gpu-0"))
    await asyncio.sleep(0.1)
    assert not late.done()
    api.faults.thaw()
    assert (await late).metadata.name == "gpu-0"


@pytest.mark.parametrize("fault", [Slow(0.3), Dribble(0.3)], ids=["late", "in pieces"])
async def test_slow_answers(api: ApiServer, fault: Fault) -> None:
    """A late answer and one in pieces take their time, and are whole."""
    api.faults.next(1, fault)
    begin = time.monotonic()
    async with aiohttp.ClientSession() as session, session.get(f"{api.url}/api/v1/nodes") as answer:
        assert isinstance(await answer.json(), dict)
    assert time.monotonic() - begin > 0.29


async def test_a_closed_port(api: ApiServer, core: Api) -> None:
    """While it refuses connections nothing is noted; after it the objects are the same."""
    async with api.refusing():
        with pytest.raises(aiohttp.ClientConnectorError):
            await core.read_node("gpu-0")
        api.annotate("gpu-0", **{KEY: "meanwhile"})
    assert api.requests == []
    assert (await core.read_node("gpu-0")).metadata.annotations == {KEY: "meanwhile"}


# --- faults of watches --------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Reset(), Cut()], ids=["reset", "cut"])
async def test_an_open_watch_that_breaks(api: ApiServer, core: Api, fault: Fault) -> None:
    """What came before is heard, then the iterator raises an error of the payload."""
    async with Following(api, core) as following:
        api.annotate("gpu-0", **{KEY: "a"})
        await following.heard(1)
        assert api.faults.strike(fault) == 1
        with pytest.raises((aiohttp.ClientPayloadError, aiohttp.ClientOSError)):
            await following.task
    assert [one["type"] for one in following.events] == ["MODIFIED"]


async def test_an_open_watch_that_ends_in_mid_line(api: ApiServer, core: Api) -> None:
    """A clean end within a line yields the piece as text, as the client is known to do."""
    async with Following(api, core) as following:
        api.faults.strike(Cut(clean=True))
        await following.task
    assert [type(one) for one in following.events] == [str]


async def test_an_open_watch_that_freezes(api: ApiServer, core: Api) -> None:
    """A frozen watch hears nothing until it is thawed, then everything."""
    async with Following(api, core) as following:
        api.faults.strike(Freeze())
        await asyncio.sleep(0.02)
        api.annotate("gpu-0", **{KEY: "a"})
        await asyncio.sleep(0.1)
        assert following.events == []
        api.faults.thaw()
        await following.heard(1)


async def test_an_error_event(api: ApiServer, core: Api) -> None:
    """An ERROR event raises its code: at the start of a watch, and within an open one."""
    api.faults.next(1, ErrorEvent(410, "Expired"), watch=True)
    with pytest.raises(exceptions.ApiException, match="Expired") as caught:
        await watched(core, "gpu-0", version=versions(api))
    assert caught.value.status == 410
    async with Following(api, core) as following:
        api.faults.strike(ErrorEvent(500))
        with pytest.raises(exceptions.ApiException) as caught:
            await following.task
        assert caught.value.status == 500


async def test_an_early_end_and_a_repeated_event(api: ApiServer, core: Api) -> None:
    """A watch can be given its last event twice, and be ended cleanly before its time."""
    begin = time.monotonic()
    async with Following(api, core) as following:  # for a minute
        api.annotate("gpu-0", **{KEY: "a"})
        api.faults.strike(Repeat())
        api.faults.strike(End())
        await following.task
    assert [one["object"].metadata.annotations[KEY] for one in following.events] == ["a", "a"]
    assert time.monotonic() - begin < 30


async def test_a_server_that_goes_away(api: ApiServer, core: Api) -> None:
    """Stopping breaks off an open watch at once; on the same port the version still counts."""
    async with Following(api, core) as following:
        await api.stop()
        with pytest.raises((aiohttp.ClientPayloadError, aiohttp.ClientOSError)):
            await following.task
    version, url = versions(api), api.url
    api.annotate("gpu-0", **{KEY: "a"})
    await api.start()
    assert api.url == url
    assert [one["type"] for one in await watched(core, "gpu-0", version=version, until=1)] == [
        "MODIFIED"
    ]


async def test_a_client_that_goes_away(api: ApiServer, core: Api) -> None:
    """The server drops a watch as soon as its client is gone."""
    async with Following(api, core):
        assert len(api.faults.watching) == 1
    async with asyncio.timeout(30):  # the watch would last for a minute
        while api.faults.watching:
            await asyncio.sleep(0.005)


# --- versions -----------------------------------------------------------------------------------


async def test_even_the_last_lists_version_is_too_old_after_a_restart(
    api: ApiServer, core: Api
) -> None:
    """A fresh watch cache knows no earlier version, not even the newest one."""
    listed = await core.list_node()
    await api.restart()
    with pytest.raises(exceptions.ApiException, match="too old resource version") as caught:
        await watched(core, "gpu-0", version=listed.metadata.resource_version)
    assert caught.value.status == 410


async def test_compaction_and_the_end_of_the_history(core: Api, api: ApiServer) -> None:
    """Compaction makes older versions too old, the present one stays; so does a full history."""
    old = versions(api)
    api.annotate("gpu-0", **{KEY: "a"})
    async with Following(api, core) as following:
        api.expire()
        api.annotate("gpu-0", **{KEY: "b"})
        await following.heard(1)
    with pytest.raises(exceptions.ApiException, match=r"too old resource version: \d+ \(\d+\)"):
        await watched(core, "gpu-0", version=old)
    async with ApiServer(history=2) as short, core_api(short.url) as other:
        short.add_node("gpu-0")
        old = versions(short)
        for value in "abc":
            short.annotate("gpu-0", **{KEY: value})
        with pytest.raises(exceptions.ApiException, match="too old resource version"):
            await watched(other, "gpu-0", version=old)
        events = await watched(other, "gpu-0", version=str(int(old) + 1), until=2)
        assert [one["object"].metadata.annotations[KEY] for one in events] == ["b", "c"]


async def test_bookmarks_on_a_timer(api: ApiServer, core: Api) -> None:
    """Bookmarks come every so often to a watch that asks for them, to others never."""
    events = await watched(core, "gpu-0", version=versions(api), allow_watch_bookmarks=True)
    assert 1 <= len([one for one in events if one["type"] == "BOOKMARK"]) <= 6
    assert set(events[0]["object"]) == {"kind", "apiVersion", "metadata"}
    assert await watched(core, "gpu-0", version=versions(api)) == []


async def test_bookmarks_never_run_ahead(api: ApiServer, core: Api) -> None:
    """A change that a held-up watch has not sent yet is not covered by its bookmark."""
    version = versions(api)
    async with watch.Watch() as watching:
        events = watching.stream(
            core.list_node,
            resource_version=version,
            timeout_seconds=1,
            allow_watch_bookmarks=True,
        )
        first = asyncio.create_task(anext(events))
        while not api.faults.watching:
            await asyncio.sleep(0.005)
        api.faults.strike(Slow(1.1))  # beyond the watch's end
        await asyncio.sleep(0.02)
        api.annotate("gpu-0", **{KEY: "a"})
        reported = [await first, *[event async for event in events]]
    assert {one["type"] for one in reported} == {"BOOKMARK"}
    missed = await watched(core, "gpu-0", version=watching.resource_version, until=1)
    assert [one["type"] for one in missed] == ["MODIFIED"]


@pytest.mark.parametrize(
    ("query", "code"),
    [("resourceVersion=x", 400), ("timeoutSeconds=x", 400), ("sendInitialEvents=true", 422)],
)
async def test_queries_that_make_no_sense(api: ApiServer, query: str, code: int) -> None:
    """Watch parameters that the real server refuses are refused, before a stream begins."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{api.url}/api/v1/nodes?watch=1&{query}") as answer,
    ):
        assert answer.status == code


# --- the rest of the cluster --------------------------------------------------------------------


async def test_foreign_writers(api: ApiServer, core: Api) -> None:
    """Others' writes are seen as such: a heartbeat changes status and version, a copy nothing."""
    before = api.node("gpu-0")
    api.node("gpu-0")["metadata"]["name"] = "changed in a copy"
    assert api.node("gpu-0") == before
    api.heartbeat("gpu-0", "2026-01-01T00:00:00Z")
    found = await core.read_node("gpu-0")
    assert found.status.conditions[0].last_heartbeat_time.year == 2026
    patch = {"metadata": {"resourceVersion": before["metadata"]["resourceVersion"]}}
    with pytest.raises(exceptions.ConflictException):
        await core.patch_node("gpu-0", patch, _content_type=MERGE)
    with pytest.raises(Refused, match=r"metadata\.annotations"):
        api.patch_node("gpu-0", {"metadata": {"annotations": {KEY: 3}}})
    api.delete_node("gpu-0")
    assert api.add_node("gpu-0")["metadata"]["uid"] != before["metadata"]["uid"]


async def test_tokens(api: ApiServer) -> None:
    """Several tokens are valid at once, a revoked one is refused, also when it was the last."""
    api.tokens.update({"old": "agent", "new": "agent"})
    async with core_api(api.url, token="old") as old, core_api(api.url, token="new") as new:
        await old.list_node()
        api.revoke("old")
        with pytest.raises(exceptions.UnauthorizedException, match="Unauthorized"):
            await old.list_node()
        await new.list_node()
        api.revoke("new")
        with pytest.raises(exceptions.UnauthorizedException):
            await new.list_node()
    assert [(one.who, one.status) for one in api.requests] == [
        ("old", 200),
        ("old", 401),
        ("new", 200),
        ("new", 401),
    ]
    assert "old" not in repr(api.requests[0])


@pytest.mark.parametrize(
    ("code", "kind"),
    [(422, exceptions.UnprocessableEntityException), (403, exceptions.ForbiddenException)],
)
async def test_own_node_only(api: ApiServer, code: int, kind: type[Exception]) -> None:
    """A token that is bound to a Node reads all and writes only its own, on both paths."""
    api.add_node("gpu-1")
    api.tokens["t"] = "agent"
    api.access.own_node["t"], api.access.denial = "gpu-0", code
    patch = {"metadata": {"labels": {"a": "b"}}}
    async with core_api(api.url, token="t") as core:
        await core.read_node("gpu-1")
        await core.patch_node("gpu-0", patch, _content_type=MERGE)
        for write in (core.patch_node, core.patch_node_status):
            with pytest.raises(kind, match="ValidatingAdmissionPolicy"):
                await write("gpu-1", patch, _content_type=MERGE)


async def test_pods_that_linger_and_budgets(api: ApiServer, core: Api) -> None:
    """A deleted pod can stay marked until it is gone; a budget refuses evictions with 429."""
    api.add_pod("plugin", namespace="gpu", node="gpu-0", labels={"app": "plugin"}, lingers=True)
    await core.delete_namespaced_pod("plugin", "gpu")
    assert "deletionTimestamp" in api.pod("plugin", namespace="gpu")["metadata"]
    api.pods.gone("plugin", "gpu")
    with pytest.raises(Refused):
        api.pod("plugin", namespace="gpu")
    api.add_pod("trainer", node="gpu-0")
    api.pods.budgets["default", "trainer"] = "keep-training"
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "trainer"}}
    with pytest.raises(exceptions.ApiException, match="keep-training") as caught:
        await core.create_namespaced_pod_eviction("trainer", "default", eviction)
    assert caught.value.status == 429
    assert api.evictions == []
    del api.pods.budgets["default", "trainer"]
    await core.create_namespaced_pod_eviction("trainer", "default", eviction)
    assert [one["metadata"]["name"] for one in api.evictions] == ["trainer"]


async def test_a_pod_that_leaves_the_selection(api: ApiServer, core: Api) -> None:
    """A pod that no longer matches a watch's selector is reported as deleted."""
    api.add_pod("trainer", node="gpu-0")
    version = versions(api)
    api.patch_pod("trainer", {"status": {"phase": "Succeeded"}})
    async with watch.Watch() as watching:
        events = [
            event["type"]
            async for event in watching.stream(
                core.list_pod_for_all_namespaces,
                field_selector="spec.nodeName=gpu-0,status.phase!=Succeeded",
                resource_version=version,
                timeout_seconds=1,
            )
        ]
    assert events == ["DELETED"]


async def test_events_are_kept(api: ApiServer, core: Api) -> None:
    """Events are there to be read by a test, until they are dropped; then a patch is 404."""
    event = {"metadata": {"name": "one"}, "involvedObject": {"kind": "Node", "name": "gpu-0"}}
    await core.create_namespaced_event("default", event)
    assert [one["metadata"]["name"] for one in api.events] == ["one"]
    api.drop_events()
    with pytest.raises(exceptions.NotFoundException):
        await core.patch_namespaced_event("one", "default", {"count": 2}, _content_type=MERGE)


async def test_the_journal(api: ApiServer, core: Api) -> None:
    """Each request is noted with what a test counts by: verb, path, query, type, body, time."""
    patch = {"metadata": {"annotations": {KEY: "a"}}}
    await core.patch_node("gpu-0", patch, _content_type=MERGE)
    await watched(core, "gpu-0", until=1)
    write, follow = api.requests
    assert (write.method, write.path, write.content_type) == ("PATCH", "/api/v1/nodes/gpu-0", MERGE)
    assert (write.body, write.write, write.watch, write.status) == (patch, True, False, 200)
    assert (follow.watch, follow.write) == (True, False)
    assert follow.query["fieldSelector"] == "metadata.name=gpu-0"
    assert follow.time >= write.time


async def test_unknown_paths_and_large_bodies(api: ApiServer) -> None:
    """What is not served is 404 or 405, a body over 3 MiB 413; each as a Status object."""
    node = f"{api.url}/api/v1/nodes/gpu-0"
    async with aiohttp.ClientSession() as session:
        for method, url, body, code in (
            ("GET", f"{api.url}/apis/apps/v1/deployments", None, 404),
            ("POST", node, None, 405),
            ("PATCH", node, io.BytesIO(b" " * (4 << 20)), 413),
        ):
            async with session.request(method, url, data=body) as answer:
                assert (answer.status, (await answer.json())["kind"]) == (code, "Status")
        async with session.get(f"{api.url}/readyz") as answer:
            assert await answer.text() == "ok"


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and its key, in files."""
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    names = ["-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)
    return certificate, key


async def test_over_tls(certificate: tuple[Path, Path]) -> None:
    """With a certificate the server speaks TLS, and a client that trusts it gets through."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    async with ApiServer(tls=context) as api:
        assert api.url.startswith("https://")
        async with core_api(api.url, ca_file=str(certificate[0])) as trusting:
            assert (await trusting.list_node()).items == []
        async with core_api(api.url) as doubting:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await doubting.list_node()
