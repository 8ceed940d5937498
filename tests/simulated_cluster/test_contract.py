"""How an API server behaves, as the agent relies on it; the same for ours and for a real one."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from tests.simulated_cluster.clients import (
    KEY,
    MERGE,
    Api,
    annotation,
    exceptions,
    merge,
)
from tests.simulated_cluster.conftest import Cluster

# --- reading ------------------------------------------------------------------------------------


async def test_a_selector_that_is_not_supported(cluster_api: Api) -> None:
    """A field selector on another field is a bad request."""
    with pytest.raises(exceptions.BadRequestException, match="field label not supported"):
        await cluster_api.list_node(field_selector="metadata.annotations=x")


async def test_absent_maps_are_none(cluster_api: Api, node: str) -> None:
    """A Node without annotations has none of them, not an empty map."""
    assert (await cluster_api.read_node(node)).metadata.annotations is None


# --- writing ------------------------------------------------------------------------------------


async def test_merge_patch_sets_and_deletes(cluster_api: Api, node: str) -> None:
    """A merge patch adds keys beside others, and null takes one away."""
    await merge(cluster_api, node, annotation("a"))
    await merge(cluster_api, node, annotation("b", "other.io/key"))
    assert (await cluster_api.read_node(node)).metadata.annotations == {
        KEY: "a",
        "other.io/key": "b",
    }
    after = await merge(cluster_api, node, annotation(None))
    assert after.metadata.annotations == {"other.io/key": "b"}


async def test_another_name_is_refused(cluster_api: Api, node: str) -> None:
    """A body that names another object than the path is a bad request."""
    with pytest.raises(exceptions.BadRequestException):
        await merge(cluster_api, node, {"metadata": {"name": "somebody-else"}})


@pytest.mark.parametrize(
    "metadata",
    [
        {"annotations": {KEY: "x" * (256 * 1024)}},
        {"labels": {KEY: "x" * 64}},
    ],
    ids=["too long", "long label"],
)
async def test_metadata_that_is_invalid(
    cluster_api: Api, node: str, metadata: dict[str, Any]
) -> None:
    """Annotations over 256 KiB and long label values are 422 and change nothing."""
    before = await cluster_api.read_node(node)
    with pytest.raises(exceptions.UnprocessableEntityException, match="Invalid"):
        await merge(cluster_api, node, {"metadata": metadata})
    after = await cluster_api.read_node(node)
    assert after.metadata.resource_version == before.metadata.resource_version


@pytest.mark.parametrize("value", [3, True, ["a"], {"a": "b"}], ids=str)
async def test_annotations_are_text(cluster_api: Api, node: str, value: object) -> None:
    """An annotation that is no string is 422."""
    with pytest.raises(exceptions.UnprocessableEntityException):
        await merge(cluster_api, node, annotation(value))


async def test_a_long_annotation_within_the_limit(cluster_api: Api, node: str) -> None:
    """200 KiB with control characters are accepted and come back unchanged."""
    text = "\x00\x07é\n" * 40_000
    assert (await merge(cluster_api, node, annotation(text))).metadata.annotations == {KEY: text}


async def test_paths_of_status_and_spec(cluster_api: Api, node: str) -> None:
    """The status path leaves spec alone but not labels; the main path leaves status alone."""
    both = {
        "metadata": {"labels": {"through": "status"}},
        "spec": {"unschedulable": True},
        "status": {"phase": "Running"},
    }
    after = await cluster_api.patch_node_status(node, both, _content_type=MERGE)
    assert after.metadata.labels["through"] == "status"
    assert not (after.spec and after.spec.unschedulable)
    assert after.status.phase == "Running"
    both["status"] = {"phase": "Terminated"}
    after = await merge(cluster_api, node, both)
    assert after.spec.unschedulable
    assert after.status.phase == "Running"


@pytest.mark.parametrize(
    ("content_type", "body", "code"),
    [
        ("application/json", "{}", 415),
        ("text/plain", "{}", 415),
        (MERGE, "{", 400),
    ],
    ids=["json", "text", "no JSON"],
)
async def test_bodies_that_are_no_patch(
    cluster: Cluster, node: str, content_type: str, body: str, code: int
) -> None:
    """Another content type is 415, a body that is no such patch 400; both as Status objects."""
    async with aiohttp.ClientSession() as session:
        answer = await session.patch(
            f"{cluster.url}/api/v1/nodes/{node}",
            data=body,
            headers={"Content-Type": content_type, "Authorization": f"Bearer {cluster.token}"},
            ssl=False,
        )
        status = await answer.json()
    assert (answer.status, status["kind"], status["code"]) == (code, "Status", code)


# --- who asks, and other objects ----------------------------------------------------------------
