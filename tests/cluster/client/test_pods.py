"""The requests about pods: which are asked for, and how they are asked to go."""

from __future__ import annotations

import pytest

from nodeagent.cluster.client import faults, requests
from nodeagent.cluster.client.access import ClusterAccess, read_object
from nodeagent.cluster.drain.pods import read_pod
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.faults import Answer, Fault, Html


async def test_only_the_nodes_pods_are_listed(server: ApiServer, access: ClusterAccess) -> None:
    """By a field selector, and from the server's cache."""
    server.add_pod("here", node="n")
    server.add_pod("there", node="m")
    listed = await access.listed(requests.list_pods("n"), read_pod)
    assert [pod.name for pod in listed.items] == ["here"]
    assert server.requests[-1].query == {"fieldSelector": "spec.nodeName=n", "resourceVersion": "0"}


async def test_one_pod(server: ApiServer, access: ClusterAccess) -> None:
    """The newest there is of it; None where there is none."""
    server.add_pod("p", namespace="a", node="n")
    found = await access.find(requests.get_pod("a", "p"), read_object)
    assert found is not None
    assert found["spec"]["nodeName"] == "n"
    assert await access.find(requests.get_pod("a", "q"), read_object) is None


@pytest.mark.parametrize("fault", [Html(404), Html(404, "404 page not found"), Answer(404)])
async def test_a_404_that_names_no_object(
    server: ApiServer, access: ClusterAccess, fault: Fault
) -> None:
    """A proxy's, or of a server that does not serve such objects: that says nothing of this one."""
    server.faults.next(1, fault)
    with pytest.raises(faults.ObjectMissing):
        await access.find(requests.get_claim("a", "p"), read_object)


async def test_a_pod_is_deleted_only_if_it_is_the_one_that_was_meant(
    server: ApiServer, access: ClusterAccess
) -> None:
    """One of the same name with another uid stays."""
    uid = server.add_pod("p", namespace="a")["metadata"]["uid"]
    with pytest.raises(faults.WriteConflict):
        await access.send(requests.delete_pod("a", "p", uid="another"))
    assert await access.find(requests.get_pod("a", "p"), read_object) is not None
    await access.send(requests.delete_pod("a", "p", uid=uid))
    assert await access.find(requests.get_pod("a", "p"), read_object) is None
    with pytest.raises(faults.ObjectMissing):
        await access.send(requests.delete_pod("a", "p", uid=uid))


async def test_an_eviction_and_a_budget(server: ApiServer, access: ClusterAccess) -> None:
    """Of this very pod; refused with the budget's own words; to be busy is something else."""
    uid = server.add_pod("p", namespace="a")["metadata"]["uid"]
    with pytest.raises(faults.WriteConflict):
        await access.send(requests.evict_pod("a", "p", uid="another"))
    server.pods.budgets["a", "p"] = "keep"
    with pytest.raises(faults.DisruptionRefused, match="budget keep needs 1 healthy pods"):
        await access.send(requests.evict_pod("a", "p", uid=uid))
    server.pods.budgets.clear()
    server.faults.next(1, Answer(429, retry_after=1))
    with pytest.raises(faults.ServerBusy):
        await access.send(requests.evict_pod("a", "p", uid=uid))
    await access.send(requests.evict_pod("a", "p", uid=uid))
    assert await access.find(requests.get_pod("a", "p"), read_object) is None
    with pytest.raises(faults.ObjectMissing):
        await access.send(requests.evict_pod("a", "p", uid=uid))
