"""Which published devices a scheduler gives to a claim: the first that fits.

After staging/src/k8s.io/dynamic-resource-allocation/structured of Kubernetes 1.36, as far as a
claim for one device of a kind goes: pools are complete or not used, slices are gone through by
their objects' names and devices in their order; what is free of a counter is what the allocated
devices that are in the slices leave; devices with a NoSchedule taint are passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nodeagent.claims.offering.resource_slices import read_quantity

DRIVER = "gpu.nodeagent.io"
Device = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pool:
    """One pool as it is published: its counters, and its devices in their order, each with what it
    takes of them.
    """

    totals: Mapping[str, int]
    devices: tuple[tuple[Device, Mapping[str, int]], ...]


def complete_pools(slices: Iterable[Device]) -> dict[str, Pool]:
    """The driver's pools by name, of each its newest generation; none that are incomplete."""
    found: dict[str, list[Device]] = {}
    for one in slices:
        if one["spec"]["driver"] == DRIVER:
            found.setdefault(one["spec"]["pool"]["name"], []).append(one)
    newest = {
        pool: [s for s in slices if _generation(s) == max(map(_generation, slices))]
        for pool, slices in found.items()
    }
    return {
        pool: _pool(sorted(slices, key=lambda one: str(one["metadata"]["name"])))
        for pool, slices in newest.items()
        if slices[0]["spec"]["pool"]["resourceSliceCount"] == len(slices)
    }


def first_fit(
    pools: Mapping[str, Pool],
    taken: Collection[tuple[str, str]],
    wanted: Callable[[Device], bool],
) -> tuple[str, str] | None:
    """Pool and name of the first device that is wanted and fits; `taken` are such of others."""
    for name, pool in sorted(pools.items()):
        free = dict(pool.totals)
        for device, consumed in pool.devices:
            for counter, amount in consumed.items() if (name, device["name"]) in taken else ():
                free[counter] -= amount
        for device, consumed in pool.devices:
            tainted = any(t["effect"] != "None" for t in device.get("taints", ()))
            if (name, device["name"]) in taken or tainted or not wanted(device):
                continue
            if all(free[counter] >= amount for counter, amount in consumed.items()):
                return name, str(device["name"])
    return None


def _pool(slices: Sequence[Device]) -> Pool:
    counters = (c for one in slices for c in one["spec"].get("sharedCounters", ()))
    totals = {name: amount for one in counters for name, amount in _amounts(one).items()}
    devices = (device for one in slices for device in one["spec"].get("devices", ()))
    return Pool(totals, tuple((device, _consumed(device)) for device in devices))


def of_profile(profile: str) -> Callable[[Device], bool]:
    """What the selector of a profile's device class says."""
    return _with_attribute("gpu.nvidia.com/profile", profile)


def of_type(kind: str) -> Callable[[Device], bool]:
    """What the selectors of the other classes say: `gpu`, `mig` or `mps`."""
    return _with_attribute("gpu.nvidia.com/type", kind)


def _with_attribute(name: str, value: str) -> Callable[[Device], bool]:
    def wanted(device: Device) -> bool:
        return bool(device["attributes"].get(name, {}).get("string") == value)

    return wanted


def _generation(one: Device) -> int:
    return int(one["spec"]["pool"]["generation"])


def _consumed(device: Device) -> dict[str, int]:
    taken = device.get("consumesCounters", ())
    return {name: amount for one in taken for name, amount in _amounts(one).items()}


def _amounts(counters: Device) -> dict[str, int]:
    return {name: read_quantity(one["value"]) for name, one in counters["counters"].items()}
