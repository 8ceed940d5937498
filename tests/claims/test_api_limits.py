"""What the API server would refuse of a ResourceSlice is not sent, and the error says what."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from nodeagent.claims.offering.api_limits import Json, SliceRefused, check_slices
from nodeagent.claims.offering.devices import OfferedDevice, Taint, Version
from nodeagent.claims.offering.offer import Offer, OfferContext, make_offer
from nodeagent.claims.offering.resource_slices import NodeReference, resource_slices
from nodeagent.claims.offering.wanted import Mode
from tests.claims.boards import NODE
from tests.plan.cards import card

NODE_REFERENCE = NodeReference(NODE, "uid")


def _published(board: str) -> tuple[Json, ...]:
    offer = make_offer(card(board), OfferContext(NODE, Mode.DYNAMIC, 0))
    return resource_slices(offer, NODE_REFERENCE, 1)


def _device(**changes: Any) -> OfferedDevice:
    given: dict[str, Any] = {"attributes": {}, "capacity": {}, **changes}
    return OfferedDevice(given.pop("name", "gpu"), **given)


def _keys(count: int) -> dict[str, Any]:
    return {f"gpu.nvidia.com/a{n}": 1 for n in range(count)}


@pytest.mark.parametrize(
    ("device", "message"),
    [
        (_device(name="a" * 64), "device a+: its name has 64 characters, and Kubernetes takes 63"),
        (_device(name="MIG"), "device MIG: its name cannot be 'MIG'"),
        (_device(name="mig-1g.10gb"), "its name cannot be"),
        (
            _device(attributes=_keys(20), capacity=_keys(13)),
            "gpu has 33 attributes and capacities together, and Kubernetes takes 32",
        ),
        (_device(attributes={"gpu.nvidia.com/x": "a" * 65}), "x has 65 bytes, and Kubernetes"),
        (_device(attributes={"gpu.nvidia.com/x": "\u00e9" * 33}), "x has 66 bytes"),
        (_device(attributes={"x": Version("580.65.06")}), "x is 580.65.06, which is no semantic"),
        (_device(attributes={"x": 2**63}), "x is beyond 64 bits"),
        (_device(attributes={"a/b/c": 1}), "the domain of a/b/c cannot be 'a/b'"),
        (_device(attributes={"gpu.nvidia.com/a-b": 1}), "the name of gpu.nvidia.com/a-b cannot"),
        (_device(attributes={"a" * 33: 1}), "has 33 characters, and Kubernetes takes 32"),
        (_device(attributes={"a" * 64 + "/b": 1}), "has 64 characters, and Kubernetes takes 63"),
        (_device(consumes={"other": 1}), "takes from counter gpu/other, which its pool lacks"),
        (
            _device(consumes={f"memory-slice-{n}": 1 for n in range(33)}),
            "has 33 counters, and Kubernetes takes 32",
        ),
        (
            _device(taints=tuple(Taint(f"a/{n}", 0) for n in range(17))),
            "has 17 taints, and Kubernetes takes 16",
        ),
        (_device(taints=(Taint("a/", 0),)), "the name of taint a/ cannot be ''"),
    ],
)
def test_limits_of_a_device(device: OfferedDevice, message: str) -> None:
    """The error names slice and device."""
    offer = Offer(f"{NODE}/gpu-x", {"me": 1}, (device,))
    with pytest.raises(SliceRefused, match=message) as refused:
        resource_slices(offer, NODE_REFERENCE, 1)
    assert "gpu-x-devices-00: device" in str(refused.value)


@pytest.mark.parametrize(
    ("pool", "totals", "generation", "message"),
    [
        (f"{NODE}/{'a' * 260}", {}, 1, "name has [0-9]+ characters, and Kubernetes takes 253"),
        ("Node/gpu-x", {}, 1, "a part of its pool's name cannot be 'Node'"),
        (f"{NODE}/gpu-x", {}, -1, "its generation is below 0"),
        (f"{NODE}/gpu-x", {"memorySlice0": 1}, 1, "name of counter memorySlice0 cannot be"),
        (f"{NODE}/gpu-x", {f"c{n}": 1 for n in range(33)}, 1, "has 33 counters"),
    ],
)
def test_limits_of_a_pool(pool: str, totals: dict[str, int], generation: int, message: str) -> None:
    """Of names, generation and counters."""
    with pytest.raises(SliceRefused, match=message):
        resource_slices(Offer(pool, totals, (_device(),)), NODE_REFERENCE, generation)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s[1].update(sharedCounters=[]), "must have either devices or counters"),
        (lambda s: s[1].pop("devices"), "must have either devices or counters"),
        (
            lambda s: s[1].update(devices=s[1]["devices"] * 5),
            "has 65 devices, and Kubernetes takes 64",
        ),
        (lambda s: s[1]["devices"].append(s[1]["devices"][0]), "is there twice in its pool"),
        (lambda s: s[1]["pool"].update(resourceSliceCount=0), "its pool has no slices"),
        (lambda s: s[1].update(driver="a" * 64), "its driver has 64 characters"),
        (
            lambda s: s[0].update(sharedCounters=s[0]["sharedCounters"] * 9),
            "has 9 sets of counters, and Kubernetes takes 8",
        ),
        (lambda s: s[0]["sharedCounters"][0].update(counters={}), "has no counters"),
        (
            lambda s: s[1]["devices"][0].update(
                consumesCounters=s[1]["devices"][0]["consumesCounters"] * 3
            ),
            "has 3 sets of counters to take from, and Kubernetes takes 2",
        ),
        (lambda s: s[1]["devices"][0]["attributes"].update(x={}), "attribute x has no type"),
    ],
)
def test_limits_that_no_offer_reaches(change: Callable[[list[Any]], object], message: str) -> None:
    """The rest of what the API server checks; a change gets the specs of both slices."""
    slices = copy.deepcopy(_published("a30"))
    change([one["spec"] for one in slices])
    with pytest.raises(SliceRefused, match=message):
        check_slices(slices)


def test_plain_devices_may_be_more() -> None:
    """Where none has counters or taints, 128 go into a slice."""
    (one,) = copy.deepcopy(_published("t4"))
    (device,) = one["spec"]["devices"]
    one["spec"]["devices"] = [{**device, "name": f"gpu-{n}"} for n in range(128)]
    check_slices([one])
    one["spec"]["devices"].append({**device, "name": "gpu-128"})
    with pytest.raises(SliceRefused, match="has 129 devices, and Kubernetes takes 128"):
        check_slices([one])
