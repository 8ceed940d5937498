"""Devices that reach one container together, of one claim or of several."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import json

from nodeagent.claims.model import ClaimedDevice, ClaimRecord, ClaimRefused
from nodeagent.claims.serving.containers import conflicts, refuse_conflicts
from nodeagent.claims.serving.pod_object import PodObject, read_pod
from tests.claims.samples import Json, mig_device, mig_result, record, whole_device
from tests.plan.daemons import A

ALL: dict[str, str] = {"name": "trainer"}  # the whole claim
OTHER: dict[str, str] = {"name": "other"}


def pod(**containers: list[dict[str, str]]) -> PodObject:
    """The pod team/pod with the claims trainer and other, as its containers name them."""
    claims = [{"name": name, "resourceClaimName": name} for name in ("trainer", "other")]
    made = [{"name": name, "resources": {"claims": of}} for name, of in containers.items()]
    spec: Json = {"containers": made, "resourceClaims": claims}
    return read_pod(json.encode({"metadata": {"namespace": "team", "name": "pod"}, "spec": spec}))


def mps(request: str = "gpu", device: str = "mig-1g-10gb-4") -> ClaimedDevice:
    """A device with MPS."""
    return mig_device(result=mig_result(request=request, device=device), mps=A)


def plain(request: str = "gpu") -> ClaimedDevice:
    """A whole GPU without MPS."""
    return whole_device(request=request)


def other(*devices: ClaimedDevice, **changes: Any) -> ClaimRecord:
    """The claim team/other."""
    return record(*devices, uid="2", name="other", **changes)


def of(request: str) -> dict[str, str]:
    """One request of the claim trainer."""
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
        "whole claim",
        "both requests",
        "a request each",
        "one has all",
        "two claims",
        "beside a GPU",
        "a GPU beside",
        "a claim each",
        "no MPS",
        "admin access",
        "another namespace",
        "one device for two",
    ],
)
def test_containers_that_cannot_use_all(
    records: tuple[ClaimRecord, ...], found: PodObject, expected: list[str]
) -> None:
    """Those with another device beside one with MPS."""
    assert [conflict.container for conflict in conflicts(found, records)] == expected


def test_what_is_refused() -> None:
    """With the container, all of its devices, and how to mend it; another claim's trouble is not
    this one's.
    """
    with pytest.raises(ClaimRefused) as refused:
        refuse_conflicts(record(mps("a")), [other(plain())], [pod(one=[], main=[ALL, OTHER])])
    assert refused.value.message == (
        "claim team/trainer: container main of pod team/pod has devices that exclude each other, "
        "since a program that uses MPS is a client of one of them alone and sees no other: request "
        "a (mig-1g-10gb-4), request gpu (gpu) of claim team/other"
    )
    assert "resources.claims" in refused.value.remedy
    both = other(mps("a"), mps("b"))
    refuse_conflicts(record(mps()), [both], [pod(one=[ALL], two=[OTHER])])
