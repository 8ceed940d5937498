"""Which containers of a pod run as another user than the MPS of their claim serves."""

from typing import Any

import pytest
from msgspec import json

from nodeagent.claims.model import ClaimRecord
from nodeagent.claims.reporting.pod_problems import has_mps, pod_problems
from nodeagent.claims.serving.pod_object import PodObject, read_pod
from nodeagent.plan.shares import Account, Share, Sharing, WantedMps
from tests.claims.samples import GPU, Json, mig_device, mig_result, record

BY_NAME: Json = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "trainer"}]}
BY_TEMPLATE: Json = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "any"}]}
MADE: Json = {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "trainer"}]}


def daemon(uid: int = 1000, *, any_user: bool = False) -> WantedMps:
    account = Account(0 if any_user else uid, 1000, any_user=any_user)
    return WantedMps(Sharing((Share("clients", None, None, None, ""),), "report"), account)


def shared(*requests: str, **account: bool) -> ClaimRecord:
    """A claim team/trainer whose devices, one for each of these requests, have MPS."""
    found = requests or ("gpu",)
    return record(*(mig_device(result=mig_result(request=r), mps=daemon(**account)) for r in found))


def container(
    name: str = "main", user: int | None = None, claim: str = "gpu", **claims: str
) -> Json:
    found: Json = {"name": name, "resources": {"claims": [{"name": claim, **claims}]}}
    return found | ({} if user is None else {"securityContext": {"runAsUser": user}})


def pod(*containers: Json, status: Json | None = None, **spec: Any) -> PodObject:
    wanted = {**BY_NAME, "containers": list(containers), **spec}
    found = {"metadata": {"namespace": "team", "name": "trainer-0"}, "spec": wanted}
    return read_pod(json.encode({**found, "status": status or {}}))


def named(claim: ClaimRecord, found: PodObject) -> list[str]:
    return [problem.message for problem in pod_problems(claim, found, [])]


def test_what_it_says() -> None:
    (problem,) = pod_problems(shared(), pod(container(user=0)), [])
    assert (problem.code, problem.gpu) == ("MpsClient", GPU)
    assert problem.message == (
        "container main of pod team/trainer-0 runs as user 0, but MPS of claim team/trainer serves "
        "user 1000 of the node: its CUDA programs wait for ever"
    )
    assert "runAsUser: 1000 in the securityContext" in problem.remedy
    assert "DeviceClass with mps.user 0 in" in problem.remedy
    (unsaid,) = pod_problems(shared(), pod(container()), [])
    assert "runs as its image's user, root as a rule, but MPS of" in unsaid.message
    assert "mps.user any" in unsaid.remedy


def test_users_of_its_own() -> None:
    found = pod(container(user=1000), hostUsers=False)
    (message,) = named(shared(), found)
    assert message == (
        "container main of pod team/trainer-0 runs as a user of the pod's own (hostUsers: false), "
        "but MPS of claim team/trainer serves user 1000 of the node: its CUDA programs wait for "
        "ever"
    )
    assert named(shared(any_user=True), found) == named(shared(), pod(container(user=1000))) == []


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (pod(container(user=1000)), []),
        (pod(container(), securityContext={"runAsUser": 1000}), []),
        (pod(container(user=7), securityContext={"runAsUser": 1000}), ["main"]),
        (pod(container("a", 1000), container("b")), ["b"]),
        (pod(container("a", claim="other"), container("b")), ["b"]),
        (pod({"name": "a"}, initContainers=[container("b")]), ["b"]),
        (pod(container(), status=MADE, **BY_TEMPLATE), ["main"]),
        (pod(container(), **BY_TEMPLATE), []),
    ],
    ids=["same", "pod's", "own first", "one of two", "other claim", "init", "template", "no claim"],
)
def test_whom_it_names(found: PodObject, expected: list[str]) -> None:
    assert [text.split()[1] for text in named(shared(), found)] == expected


def test_a_request_of_the_claim() -> None:
    """A container has the devices of the requests that it names, and is named once."""
    claim = record(mig_device(), mig_device(result=mig_result(request="mps/large"), mps=daemon()))
    assert named(claim, pod(container(request="gpu"))) == []
    assert len(named(claim, pod(container(request="mps")))) == 1
    assert len(named(shared("a", "b"), pod(container()))) == 1


def test_a_limit() -> None:
    """The claim that the scheduler made for it names the containers."""
    mapping = {"containerName": "b", "requestName": "gpu", "resourceName": "nvidia.com/gpu"}
    made = {"resourceClaimName": "trainer", "requestMappings": [mapping]}
    status = {"extendedResourceClaimStatus": made}
    found = pod({"name": "a"}, {"name": "b"}, status=status, resourceClaims=[])
    assert [text.split()[1] for text in named(shared(), found)] == ["b"]


def test_a_daemon_of_root() -> None:
    """Whoever says no user is root as a rule."""
    claim = record(mig_device(mps=daemon(0)))
    found = pod(container("a"), container("b", 0), container("c", 1000))
    assert [text.split()[1] for text in named(claim, found)] == ["c"]


def test_devices_of_everybody() -> None:
    """Without MPS, or with MPS for all users, no user is wrong."""
    for claim in (record(), shared(any_user=True)):
        assert named(claim, pod(container())) == []

    assert [has_mps(claim) for claim in (record(), shared(any_user=True))] == [False, True]


def test_devices_that_exclude_each_other() -> None:
    """Of the claims that are ready; a container that has one of them is not named."""
    claim = shared("a", "b", any_user=True)
    found = pod(container("both"), container("one", request="a"))
    (problem,) = pod_problems(claim, found, [claim])
    assert (problem.code, problem.message.split()[1]) == ("MpsClient", "both")
