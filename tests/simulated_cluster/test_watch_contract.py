"""How an API server's watches behave, as the agent relies on it; ours and a real one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kubernetes.aio import watch

from tests.machine_load import stretched
from tests.simulated_cluster.clients import KEY, Api, annotation, exceptions, merge, watched
from tests.simulated_cluster.conftest import Cluster


async def test_watch_hears_while_it_is_open(cluster_api: Api, node: str) -> None:
    """Changes arrive while the watch is open, well before its end; other Nodes' do not."""
    listed = await cluster_api.list_node(field_selector=f"metadata.name={node}")
    async with watch.Watch() as watching:
        events = watching.stream(
            cluster_api.list_node,
            field_selector=f"metadata.name={node}",
            resource_version=listed.metadata.resource_version,
            timeout_seconds=30,
            _request_timeout=40,
        )
        first = asyncio.create_task(anext(events))
        await asyncio.sleep(0.1)
        await cluster_api.create_node({"metadata": {"name": "another"}})
        await cluster_api.delete_node("another")
        await merge(cluster_api, node, annotation("a"))
        async with asyncio.timeout(stretched(30)):
            event = await first
        assert event["object"].metadata.name == node
        assert watching.resource_version == event["object"].metadata.resource_version


async def test_a_node_that_is_made_again(cluster_api: Api, node: str) -> None:
    """Deleted and created again: both are reported, and the uid is another one."""
    old = await cluster_api.read_node(node)
    await cluster_api.delete_node(node)
    await cluster_api.create_node({"metadata": {"name": node}})
    events = await watched(cluster_api, node, version=old.metadata.resource_version, until=2)
    assert [one["type"] for one in events] == ["DELETED", "ADDED"]
    gone, new = (one["object"].metadata for one in events)
    assert gone.uid == old.metadata.uid != new.uid
    assert int(old.metadata.resource_version) < int(gone.resource_version)
    assert int(gone.resource_version) < int(new.resource_version)


async def test_a_short_watch_ends_without_a_bookmark(cluster_api: Api, node: str) -> None:
    """Bookmarks come once a minute or so, and none before the end of a watch of a few seconds: who
    goes on from the last version that was seen may be behind what others have written.
    """
    listed = await cluster_api.list_node(field_selector=f"metadata.name={node}")
    await cluster_api.create_node({"metadata": {"name": "another"}})
    events = await watched(
        cluster_api,
        node,
        version=listed.metadata.resource_version,
        seconds=1,
        allow_watch_bookmarks=True,
    )
    await cluster_api.delete_node("another")
    assert events == []


@pytest.mark.parametrize(
    "asked",
    [
        {"send_initial_events": True, "resource_version_match": "NotOlderThan"},
        {"version": "0"},
        {},
    ],
    ids=["explicit", "from version 0", "from no version"],
)
async def test_watch_list(cluster_api: Api, node: str, asked: dict[str, Any]) -> None:
    """Initial events, also without having been asked for: the objects, then a bookmark that marks
    their end.
    """
    events = await watched(cluster_api, node, until=2, allow_watch_bookmarks=True, **asked)
    assert [one["type"] for one in events[:2]] == ["ADDED", "BOOKMARK"]
    marks = events[1]["object"]["metadata"]["annotations"]
    assert marks == {"k8s.io/initial-events-end": "true"}


async def test_versions_from_before_a_restart(
    cluster: Cluster, cluster_api: Api, node: str
) -> None:
    """After a restart a watch from an old version ends with 410, and a new list goes on."""
    old = (await merge(cluster_api, node, annotation("a"))).metadata.resource_version
    await merge(cluster_api, node, annotation("b"))
    await cluster.restart()
    with pytest.raises(exceptions.ApiException, match="too old resource version") as caught:
        await watched(cluster_api, node, version=old)
    assert (caught.value.status, caught.value.reason.split(":")[0]) == (410, "Expired")
    listed = await cluster_api.list_node(field_selector=f"metadata.name={node}")
    await merge(cluster_api, node, annotation("c"))
    version = listed.metadata.resource_version
    events = await watched(cluster_api, node, version=version, until=1)
    assert [one["object"].metadata.annotations[KEY] for one in events] == ["c"]
