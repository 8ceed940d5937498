"""The examples for teams at a real API server: what each lets through, and what it refuses."""

import json
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.machine_load import wait_until
from tests.manifests import rendering
from tests.manifests.rendering import MANIFESTS
from tests.simulated_cluster.real_api_server import RealApiServer, why_not

_WHY_NOT = why_not() or rendering.why_not()
pytestmark = pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT)
EXAMPLES = MANIFESTS.parent / "examples/teams"
CLASSES = MANIFESTS / "components/dra/classes.yaml"
SIZE = "may have slices of 20 GB at most, not "
SHARE = "may have shares of 20Gi at most"
QUOTA = "exceeded quota: gpus, requested: "


def _claim(*requests: dict[str, Any], template: bool = False) -> dict[str, Any]:
    named = [{"name": f"r{n}", **request} for n, request in enumerate(requests)]
    spec: dict[str, Any] = {"devices": {"requests": named}}
    kind = "ResourceClaimTemplate" if template else "ResourceClaim"
    body = {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": "x"}}
    return {**body, "spec": {"spec": spec} if template else spec}


def _of(name: str, count: int = 1, memory: str = "") -> dict[str, Any]:
    """A request of a class."""
    capacity = {"capacity": {"requests": {"gpu.nvidia.com/memory": memory}}} if memory else {}
    return {"exactly": {"deviceClassName": name, "count": count, **capacity}}


def _slices(profile: str, count: int = 1) -> dict[str, Any]:
    return _of(f"mig-{profile.replace('.', '-')}.nodeagent.io", count)


def _pod(limits: dict[str, Any], *, init: bool = False) -> dict[str, Any]:
    container = {"name": "main", "image": "none"}
    asks = {**container, "name": "asks", "resources": {"limits": limits}}
    spec = {"containers": [container], "initContainers": [asks]} if init else {"containers": [asks]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}


def _from_limit(claim: dict[str, Any]) -> dict[str, Any]:
    """As the scheduler makes it for a pod's limit."""
    mark = {"resource.kubernetes.io/extended-resource-claim": "true"}
    return claim | {"metadata": {"name": "x", "annotations": mark}}


IMPLICIT = "deviceclass.resource.kubernetes.io/mig-{}.nodeagent.io"
EITHER = [{"name": p, "deviceClassName": f"mig-{p}.nodeagent.io"} for p in ("1g-10gb", "3g-40gb")]
CASES = {
    # the largest slice
    "a class": (_claim(_slices("2g.20gb")), ""),
    "a class too large": (_claim(_slices("1g.10gb"), _slices("3g.40gb")), SIZE + "mig-3g-40gb"),
    "a choice": (_claim({"firstAvailable": EITHER[:1]}), ""),
    "a choice too large": (_claim({"firstAvailable": EITHER}), SIZE + "mig-3g-40gb"),
    "a template": (_claim(_slices("2g.20gb"), template=True), ""),
    "a template too large": (_claim(_slices("4g.40gb"), template=True), SIZE + "mig-4g-40gb"),
    "any slice": (_claim(_of("mig.nodeagent.io"), template=True), SIZE + "mig.nodeagent.io"),
    "a limit": (_pod({"nvidia.com/mig-2g.20gb": 1, "cpu": 1}), ""),
    "a limit too large": (_pod({"nvidia.com/mig-3g.40gb": 1}), SIZE + "nvidia.com/mig-3g.40gb"),
    "a first container's": (_pod({"nvidia.com/gpu": 1}, init=True), SIZE + "nvidia.com/gpu"),
    "a limit by class": (_pod({IMPLICIT.format("1g-10gb"): 1}), ""),
    "that too large": (_pod({IMPLICIT.format("7g-80gb"): 1}), SIZE + "deviceclass"),
    "a share": (_claim(_of("mps.nodeagent.io", memory="20Gi")), ""),
    "a share too large": (_claim(_of("mps.nodeagent.io", memory="21Gi")), SHARE),
    "a share of all": (_claim(_of("mps.nodeagent.io"), template=True), SHARE),
    "another driver's": (_claim(_of("nic.example.com")), ""),
    # the quota
    "eight": (_claim(_slices("1g.10gb", 8)), ""),
    "nine": (_claim(_slices("1g.10gb", 9)), QUOTA + "requests.nvidia.com/mig-1g.10gb=9"),
    "eight by a limit": (_pod({"nvidia.com/mig-1g.10gb": 8}), ""),
    "nine by a limit": (_pod({"nvidia.com/mig-1g.10gb": 9}), QUOTA),
    "three of a class": (_claim(_slices("2g.20gb", 3)), QUOTA + "mig-2g-20gb.nodeagent.io.device"),
    "three by a limit, at first": (_pod({"nvidia.com/mig-2g.20gb": 3}), ""),
    "the claim that comes of it": (
        _from_limit(_claim(_slices("2g.20gb", 3))),
        QUOTA + "mig-2g-20gb",
    ),
    # what is beside a GPU
    "much memory": (_pod({"memory": "64Gi"}), ""),
    "too much memory": (_pod({"memory": "65Gi"}), "maximum memory usage per Container is 64Gi"),
}


def _refusal(server: RealApiServer, name: str, namespace: str = "team-a") -> str:
    """Why one of CASES is not let through there; none is kept."""
    dry = ("create", "--dry-run=server", f"--namespace={namespace}", "-f-")
    return server.kubectl(*dry, given=CASES[name][0])


def _until_refused(server: RealApiServer, name: str) -> None:
    """What refuses it comes in force some time after it was made."""
    wait_until(lambda: CASES[name][1] in _refusal(server, name))


@pytest.fixture(scope="module")
def server(real_server: RealApiServer | None) -> RealApiServer:
    """With the examples in force but the one that this server has no API for."""
    assert real_server
    names = ("namespace", "largest-slice", "limit-range", "quota")
    for path in (*(EXAMPLES / f"{name}.yaml" for name in names), CLASSES):
        assert not real_server.kubectl("apply", "--server-side", "-f", str(path))
    # As the controller of quotas does, which is not there.
    hard = yaml.safe_load((EXAMPLES / "quota.yaml").read_text(encoding="utf-8"))["spec"]["hard"]
    status = {"status": {"hard": hard, "used": dict.fromkeys(hard, "0")}}
    patch = ("--subresource=status", "--type=merge", f"--patch={json.dumps(status)}")
    assert not real_server.kubectl("patch", "resourcequota", "gpus", "--namespace=team-a", *patch)
    for name in ("a limit too large", "nine", "too much memory"):
        _until_refused(real_server, name)
    return real_server


@pytest.mark.parametrize("name", CASES)
def test_what_a_team_may_ask_for(server: RealApiServer, name: str) -> None:
    words, refusal = CASES[name][1], _refusal(server, name)
    assert words in refusal if words else not refusal


def test_namespaces_without_the_label_are_free(server: RealApiServer) -> None:
    assert not _refusal(server, "a limit too large", "default")


@pytest.mark.parametrize("version", ["1.36", "1.37"])
def test_the_taint_of_one_gpu(version: str) -> None:
    """Its API is off by default in a server; this is its schema."""
    document = yaml.safe_load((EXAMPLES / "maintenance.yaml").read_text(encoding="utf-8"))
    kubernetes_validate.validate(document, version, strict=True)
