"""The model of the scheduler's choice beside a real scheduler, on a Node without a kubelet."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.machine_load import wait_until
from tests.real_cluster.conftest import FOREIGN
from tests.real_cluster.rig import CLAIMS, PODS, RESOURCE, Cluster
from tests.simulated_cluster.allocator import Allocated
from tests.simulated_cluster.test_allocator import CASES, LEAKS, Case, requests, written

CLASS = "nodeagent-suite"
NOW: dict[str, Any] = {"gracePeriodSeconds": 0}


@pytest.fixture(scope="module")
def scheduled(cluster: Cluster) -> Iterator[Cluster]:
    """Pods can be bound to the Node, although none of them will start."""
    room = {"pods": "110"}
    status = {"status": {"capacity": room, "allocatable": room}}
    cluster.ask("PATCH", f"/api/v1/nodes/{FOREIGN}/status", status)
    cluster.create(f"{RESOURCE}/deviceclasses", {"metadata": {"name": CLASS}, "spec": {}})
    yield cluster
    cluster.ask("DELETE", f"{RESOURCE}/deviceclasses/{CLASS}")


@pytest.fixture(params=[*CASES, *LEAKS], ids=lambda case: case.name)
def case(scheduled: Cluster, request: pytest.FixtureRequest) -> Iterator[Case]:
    """Its pool is published, until all claims are gone."""
    found: Case = request.param
    for one in found.slices():
        # Its own driver: a busy scheduler may still know the devices of the case before.
        one["spec"]["driver"] = _driver(found)
        scheduled.create(f"{RESOURCE}/resourceslices", one)
    yield found
    scheduled.ask("DELETE", PODS, NOW)
    scheduled.ask("DELETE", CLAIMS)
    wait_until(lambda: not scheduled.items(CLAIMS))
    scheduled.ask("DELETE", f"{RESOURCE}/resourceslices?fieldSelector=spec.nodeName={FOREIGN}")


def test_what_claims_get(scheduled: Cluster, case: Case) -> None:
    """As the model of this scheduler says."""
    got: list[str] = []
    for number, (asked, expected) in enumerate(case.claims):
        _ask_for(scheduled, case, f"pod-{number}", asked)

        def answered(pod: str = f"pod-{number}", waits: bool = not expected) -> str:
            if devices := scheduled.get(f"{CLAIMS}/{pod}").get("status", {}).get("allocation"):
                return written([Allocated.of(one) for one in devices["devices"]["results"]])
            reasons = [one["reason"] for one in _conditions(scheduled, pod)]
            return "waits" if waits and "Unschedulable" in reasons else ""

        got.append(wait_until(answered, said=lambda: got).replace("waits", ""))
    assert got == [expected for _, expected in case.claims]


def _conditions(cluster: Cluster, pod: str) -> list[Any]:
    found = cluster.get(f"{PODS}/{pod}")["status"].get("conditions", ())
    return [one for one in found if "reason" in one]


def _driver(case: Case) -> str:
    return f"{case.name}.nodeagent.example".replace(" ", "-")


def _ask_for(cluster: Cluster, case: Case, pod: str, asked: str) -> None:
    wanted = []
    for number, (kind, capacity) in enumerate(requests(asked)):
        matches = f"device.driver == '{_driver(case)}' && "
        matches += f"device.attributes['gpu.nvidia.com'].type == '{kind}'"
        exactly: dict[str, Any] = {"deviceClassName": CLASS}
        exactly["selectors"] = [{"cel": {"expression": matches}}]
        exactly["capacity"] = {"requests": {name: str(n) for name, n in capacity.items()}}
        wanted.append({"name": f"r{number}", "exactly": exactly})
    claim = {"metadata": {"name": pod}, "spec": {"devices": {"requests": wanted}}}
    cluster.create(CLAIMS, claim)
    named = {"key": "metadata.name", "operator": "In", "values": [FOREIGN]}
    here = {"nodeSelectorTerms": [{"matchFields": [named]}]}
    spec = {
        "containers": [{"name": "main", "image": "none"}],
        "resourceClaims": [{"name": "gpus", "resourceClaimName": pod}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": here}},
        "tolerations": [{"operator": "Exists"}],
    }
    cluster.create(PODS, {"metadata": {"name": pod}, "spec": spec})
