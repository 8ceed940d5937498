"""What the API server would refuse of a ResourceSlice is not sent, and the error says what."""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.claims.offering.api_limits import SliceRefused
from nodeagent.claims.offering.devices import OfferedDevice, Taint, Version
from nodeagent.claims.offering.offer import Offer
from nodeagent.claims.offering.resource_slices import NodeReference, resource_slices
from nodeagent.structs import replace
from tests.claims.boards import NODE

NODE_REFERENCE = NodeReference(NODE, "uid")


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
        (
            _device(attributes={"x": Version("580.65.06")}),
            "x is 580.65.06, which is not a semantic",
        ),
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
    ("pool", "totals", "message"),
    [
        (f"{NODE}/{'a' * 260}", {}, "name has [0-9]+ characters, and Kubernetes takes 253"),
        ("Node/gpu-x", {}, "a part of its pool's name cannot be 'Node'"),
        (f"{NODE}/gpu-x", {"memorySlice0": 1}, "name of counter memorySlice0 cannot be"),
        (f"{NODE}/gpu-x", {f"c{n}": 1 for n in range(33)}, "has 33 counters"),
    ],
)
def test_limits_of_a_pool(pool: str, totals: dict[str, int], message: str) -> None:
    """Of names and counters."""
    with pytest.raises(SliceRefused, match=message):
        resource_slices(Offer(pool, totals, (_device(),)), NODE_REFERENCE, 1)


def test_a_device_that_is_there_twice() -> None:
    """Also in two slices of its pool."""
    offer = Offer(f"{NODE}/gpu-x", {}, (_device(), *(_device(name=f"a{n}") for n in range(64))))
    twice = replace(offer, devices=(*offer.devices, _device()))
    assert len(resource_slices(offer, NODE_REFERENCE, 1)) == 2
    with pytest.raises(SliceRefused, match="device gpu is there twice in its pool"):
        resource_slices(twice, NODE_REFERENCE, 1)
