"""What the test API server offers to tests: foreign writers, tokens, pods, its journal, TLS."""

from __future__ import annotations

import io
import time

import aiohttp
import pytest
from kubernetes.aio import watch

from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.clients import (
    KEY,
    MERGE,
    Api,
    Following,
    core_api,
    exceptions,
    versions,
)
from tests.simulated_cluster.faults import Dribble, End, Fault, Repeat, Slow
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


# --- faults that change nothing of what a client hears in the end ---------------------------------


@pytest.mark.parametrize("fault", [Slow(0.3), Dribble(0.3)], ids=["late", "in pieces"])
async def test_slow_answers(api: ApiServer, fault: Fault) -> None:
    """A late answer and one in pieces take their time, and are whole."""
    api.faults.next(1, fault)
    begin = time.monotonic()
    async with aiohttp.ClientSession() as session, session.get(f"{api.url}/api/v1/nodes") as answer:
        assert isinstance(await answer.json(), dict)
    assert time.monotonic() - begin > 0.29


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
