"""Devices that reach one container together, of one claim or of several."""

from typing import Any

import pytest
from msgspec import json

from nodeagent.claims.model import ClaimedDevice, ClaimRecord, ClaimRefused
from nodeagent.claims.serving.containers import conflicts, on_one_daemon, refuse_conflicts
from nodeagent.claims.serving.pod_object import PodObject, read_pod
from nodeagent.plan.shares import Share, WantedMps
from nodeagent.structs import replace
from tests.claims.samples import Json, mig_device, mig_result, record, whole_device
from tests.plan.daemons import A, D

ALL: dict[str, str] = {"name": "trainer"}  # the whole claim
OTHER: dict[str, str] = {"name": "other"}


def pod(**containers: list[dict[str, str]]) -> PodObject:
    """The pod team/pod with the claims trainer and other, as its containers name them."""
    claims = [{"name": name, "resourceClaimName": name} for name in ("trainer", "other")]
    made = [{"name": name, "resources": {"claims": of}} for name, of in containers.items()]
    spec: Json = {"containers": made, "resourceClaims": claims}
    return read_pod(json.encode({"metadata": {"namespace": "team", "name": "pod"}, "spec": spec}))


def mps(request: str = "gpu", device: str = "mig-1g-10gb-4") -> ClaimedDevice:
    return mig_device(result=mig_result(request=request, device=device), mps=A)


def plain(request: str = "gpu") -> ClaimedDevice:
    return whole_device(request=request)


def other(*devices: ClaimedDevice, **changes: Any) -> ClaimRecord:
    return record(*devices, uid="2", name="other", **changes)


def of(request: str) -> dict[str, str]:
    return {"name": "trainer", "request": request}


TWO = record(mps("a"), mps("b/large", "mig-1g-10gb-5"))


@pytest.mark.parametrize(
    ("records", "found", "expected"),
    [
        ((TWO,), pod(main=[ALL]), ["main"]),
        ((TWO,), pod(main=[of("a"), of("b")]), ["main"]),
        ((TWO,), pod(one=[of("a")], two=[of("b")]), []),
        ((TWO,), pod(one=[of("a")], two=[ALL]), ["two"]),
        ((record(mps()), other(mps())), pod(main=[ALL, OTHER]), ["main"]),
        ((record(mps()), other(plain())), pod(main=[ALL, OTHER]), ["main"]),
        ((record(plain()), other(mps())), pod(main=[ALL, OTHER]), ["main"]),
        ((record(mps()), other(mps())), pod(one=[ALL], two=[OTHER]), []),
        ((record(plain()), other(plain())), pod(main=[ALL, OTHER]), []),
        ((record(mps()), other(whole_device(admin_access=True))), pod(main=[ALL, OTHER]), []),
        ((record(mps()), other(mps(), namespace="rivals")), pod(main=[ALL, OTHER]), []),
        ((record(mps()),), pod(one=[ALL], two=[ALL]), []),
    ],
    ids=[
        *("whole claim", "both requests", "a request each", "one has all", "two claims"),
        *("beside a GPU", "a GPU beside", "a claim each", "no MPS", "admin access"),
        *("another namespace", "one device for two"),
    ],
)
def test_containers_that_cannot_use_all(
    records: tuple[ClaimRecord, ...], found: PodObject, expected: list[str]
) -> None:
    where = [conflict.where for conflict in conflicts(found, records)]
    assert where == [f"container {name} of pod team/pod" for name in expected]


def test_what_is_refused() -> None:
    with pytest.raises(ClaimRefused) as refused:
        refuse_conflicts(record(mps("a")), [other(plain())], [pod(one=[], main=[ALL, OTHER])])
    assert refused.value.message == (
        "claim team/trainer: container main of pod team/pod has devices that exclude each other, "
        "since a program that uses MPS is a client of one daemon and sees no other device: request "
        "a (mig-1g-10gb-4), request gpu (gpu) of claim team/other"
    )
    assert "resources.claims" in refused.value.remedy
    both = other(mps("a"), mps("b"))
    refuse_conflicts(record(mps()), [both], [pod(one=[ALL], two=[OTHER])])
    with pytest.raises(ClaimRefused, match=r"^claim team/trainer: request gpu has devices that"):
        refuse_conflicts(record(mps(), mps("gpu", "mig-1g-10gb-5")), [], [])


# --- one daemon for several GPUs ------------------------------------------------------------------

X, Y, Z = "GPU-1", "GPU-2", "GPU-3"


def gpu(uuid: str, request: str = "gpu", wanted: WantedMps = A, **share: Any) -> ClaimedDevice:
    """A GPU with MPS as a whole, or a share of it with so many MiB and percent."""
    if share:
        one = Share(f"share-{uuid}", None, total=share["memory"], **share)
        wanted = replace(wanted, sharing=replace(wanted.sharing, shares=(one,)))
    found = whole_device(uuid, wanted, request=request, pool=f"node-1/{uuid}")
    return replace(found, shared=bool(share))


def daemons(devices: list[ClaimedDevice], *pods: PodObject) -> list[tuple[str, ...]]:
    """The GPUs of the daemon of each device, in their order."""
    found = on_one_daemon(record(*devices), pods)
    refuse_conflicts(found, [], pods)
    return [device.daemon for device in found.devices]


EACH = [gpu(Y, "a"), gpu(X, "b"), gpu(Z, "c")]


def test_the_gpus_of_one_container_have_one_daemon() -> None:
    """Of one request, whatever is known of pods, or of requests with a container in common."""
    assert daemons([gpu(Y), gpu(X)]) == [(X, Y)] * 2
    assert daemons(EACH) == [(Y,), (X,), (Z,)]
    assert daemons(EACH, pod(main=[ALL])) == [(X, Y, Z)] * 3
    apart = pod(one=[of("a"), of("b")], two=[of("c")])
    assert daemons(EACH, apart) == [(X, Y), (X, Y), (Z,)]
    assert daemons(EACH, apart, pod(one=[of("b"), of("c")])) == [(X, Y, Z)] * 3
    assert daemons(EACH, pod(other=[OTHER])) == [(Y,), (X,), (Z,)]


def test_limits_of_one_daemon() -> None:
    """Of memory on each GPU, what is the least of threads, and what there is together."""
    alike = on_one_daemon(
        record(gpu(X, memory=8, threads=20.0), gpu(Y, memory=8, threads=10.0)), ()
    )
    [one, other] = [device.mps for device in alike.devices]
    assert one is other
    assert one
    assert one.sharing.shares == (Share(f"share-{X}", None, 8, 10.0, total=8),)
    unlike = on_one_daemon(
        record(gpu(Y, memory=9, threads=None), gpu(X, memory=8, threads=5.0)), ()
    )
    assert unlike.devices[0].mps
    [share] = unlike.devices[0].mps.sharing.shares
    assert (share.by_device, share.threads) == (((X, 8, 8), (Y, 9, 9)), 5.0)


@pytest.mark.parametrize(
    "devices",
    [
        [gpu(X), gpu(Y, wanted=D)],
        [gpu(X), gpu(Y, wanted=replace(A, sharing=replace(A.sharing, enforce="terminate")))],
        [gpu(X), gpu(Y, memory=8, threads=20.0)],
        [gpu(X, memory=8, threads=20.0)] * 2,
        [gpu(X), gpu(Y), mps()],
        [gpu(X), plain()],
    ],
    ids=["users", "enforce", "unlimited", "one GPU twice", "beside MIG", "without MPS"],
)
def test_what_has_no_daemon_together(devices: list[ClaimedDevice]) -> None:
    with pytest.raises(ClaimRefused, match="request gpu has devices that exclude each other"):
        daemons(devices)
