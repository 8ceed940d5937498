"""What the test API server offers to tests: foreign writers, tokens, pods, its journal, TLS."""

from __future__ import annotations

import io
import ssl
import subprocess
from pathlib import Path

import aiohttp
import pytest
from kubernetes.aio import watch

from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.clients import KEY, MERGE, Api, core_api, exceptions, versions, watched
from tests.simulated_cluster.refusals import Refused


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
