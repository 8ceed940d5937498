"""Whose time it is that pods hold devices, as the API server names their owners."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nodeagent.app.cluster_service import ClusterService
from nodeagent.app.paths import Paths
from nodeagent.app.shared import Shared
from nodeagent.app.use_service import UseService, use_file
from nodeagent.settings import KubernetesSettings, Settings
from nodeagent.telemetry.accounting import Accounts
from nodeagent.telemetry.ownership import uses
from tests.cluster.client.rig import kubeconfig, running
from tests.machine_load import until
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.faults import Answer, Freeze
from tests.simulated_cluster.fixtures import server
from tests.telemetry.nodes import divided, user

__all__ = ["server"]

pytestmark = pytest.mark.virtual_time

PODS = "/api/v1/pods"
HASH = "5d8f9c7b6d"


class Rig:
    """Accounts on the node `n`, and who has held what in them, by workload."""

    def __init__(self) -> None:
        self.accounts = Accounts(longest_gap=120.0)
        self._now = 0.0

    def hold(self, *pods: str, then: tuple[str, ...] = ()) -> None:
        """Ten seconds for each, on slices of their own; then they let go, or others hold them."""
        for seen in (pods, then):
            self._now += 10.0
            node = divided({number: [user(0, pod)] for number, pod in enumerate(seen)})
            self.accounts.observe(self._now, node, uses(node, {}, lambda _: None), {})

    @property
    def named(self) -> bool:
        return not self.accounts.records.pods

    @property
    def held(self) -> dict[str, float]:
        found = [(use.holder.name, use.held) for use in self.accounts.records.uses()]
        assert len(found) == len(dict(found)), found
        return dict(found)


@pytest.fixture
async def rig(server: ApiServer, tmp_path: Path) -> AsyncIterator[Rig]:
    settings = KubernetesSettings(kubeconfig=kubeconfig(tmp_path, server.url).path)
    found = Settings(node_name="n", kubernetes=settings)
    cluster, made = ClusterService(Shared.of(found, Paths(found, None))), Rig()
    service = UseService(None, made.accounts, 14, cluster.workloads)
    async with cluster.access, running(service.run()):
        yield made


def add_pod(server: ApiServer, name: str, kind: str = "", owner: str = "") -> None:
    server.add_pod(name, namespace="team", node="n", labels={"pod-template-hash": HASH})
    by = [{"apiVersion": "v1", "kind": kind, "name": owner, "uid": "1", "controller": True}]
    if kind:
        server.patch_pod(name, {"metadata": {"ownerReferences": by}}, namespace="team")


def lists(server: ApiServer) -> int:
    return sum(request.path == PODS for request in server.requests)


async def test_time_is_of_the_owner(server: ApiServer, rig: Rig) -> None:
    """Whatever the pods' names look like, and what they held before the answer, too."""
    add_pod(server, f"web-{HASH}-x2k4z", "ReplicaSet", f"web-{HASH}")
    add_pod(server, "odd", "ReplicaSet", f"web-{HASH}")
    add_pod(server, "worker-0", "StatefulSet", "worker")
    add_pod(server, "worker-1")
    await asyncio.sleep(100.0)  # there is nothing to be asked
    assert lists(server) == 0
    for _ in range(2):
        rig.hold(f"web-{HASH}-x2k4z", "odd", "worker-0", "worker-1")
    assert rig.held == {"web": 20.0, "odd": 20.0, "worker": 40.0}  # by their names
    await until(lambda: rig.named)
    expected = {"web": 40.0, "worker": 20.0, "worker-1": 20.0}
    assert rig.held == expected
    rig.hold("odd", "worker-1")
    assert rig.named
    assert rig.held == expected | {"web": 50.0, "worker-1": 30.0}
    assert lists(server) == 1


async def test_time_waits_for_an_answer(server: ApiServer, rig: Rig) -> None:
    """What was held is counted once it comes, for a pod that has gone as by its name."""
    add_pod(server, "worker-1")
    server.access.withheld.add(("list", "pods"))
    server.faults.next(3, Answer(503), path=PODS)
    server.faults.next(1, Freeze(), path=PODS)
    for _ in range(3):
        rig.hold("worker-1", "worker-0")
    await until(lambda: lists(server) == 6, within=300)
    assert rig.held == {"worker": 60.0}  # by their names
    server.access.withheld.clear()
    await until(lambda: rig.named)
    assert rig.held == {"worker-1": 30.0, "worker": 30.0}


async def test_who_holds_something_is_listed_late(server: ApiServer, rig: Rig) -> None:
    """The list is of the server's cache: until the pod is in it, nothing is decided."""
    rig.hold("odd", then=("odd",))
    await until(lambda: lists(server) == 2, within=90)
    assert not rig.named
    add_pod(server, "odd", "ReplicaSet", f"web-{HASH}")
    await until(lambda: rig.named, within=90)
    assert rig.held == {"web": 10.0}


async def test_a_kill_loses_five_minutes(tmp_path: Path) -> None:
    rig, path = Rig(), tmp_path / "use.json"
    async with running(UseService(path, rig.accounts, 14, None).run()):
        rig.hold("web")
        await asyncio.sleep(299.0)
        assert not path.exists()
        await until(path.exists, within=10.0)
        rig.hold("other")
    kept = use_file(path).load()
    assert kept is not None
    assert "other" in str(kept)


async def test_thousands_of_pods(server: ApiServer, rig: Rig) -> None:
    """Of the list is kept what holds something; the pods of a batch are one list."""
    names = [f"odd-{number}-{number:08}-{'x' * (number % 200 + 1)}" for number in range(3000)]
    for name in names:
        add_pod(server, name, "Batch", "batch")
    for number in range(0, 3000, 300):
        rig.hold(*names[number:][:7])
    await until(lambda: rig.named)
    assert rig.held == {"batch": 700.0}
    assert lists(server) == 1
    workloads = rig.accounts.workloads
    assert workloads is not None
    assert len(workloads) == 70
