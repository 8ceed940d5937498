"""Allocates published devices to claims as Kubernetes' scheduler does: the first that fits.

After staging/src/k8s.io/dynamic-resource-allocation/structured of Kubernetes 1.36, as far as a
claim for one device of a kind goes: pools are complete or not used, slices are gone through by
their objects' names and devices in their order; what is free of a counter is what the allocated
devices that are in the slices leave; devices with a NoSchedule taint are passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from nodeagent.claims.offering.resource_slices import read_quantity
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.store import Key

DRIVER = "gpu.nodeagent.io"
Device = Mapping[str, Any]


class Scheduler:
    """Keeps the claims of one API server allocated; the tests say when."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api

    def claim(self, namespace: str, name: str) -> dict[str, Any]:
        """A claim that waits for its allocation."""
        return self._api.store.create("resourceclaims", namespace, {"metadata": {"name": name}})

    def allocate(self, namespace: str, name: str, wanted: Callable[[Device], bool]) -> str:
        """Give the claim the first device that fits; its name, "" when none does."""
        pools = complete_pools(self._api.store.all("resourceslices"))
        found = first_fit(pools, set(self._allocated()), wanted)
        if found is None:
            return ""
        self._write(namespace, name, *found)
        return found[1]

    def delete(self, namespace: str, name: str) -> None:
        """The claim goes, with its allocation."""
        self._api.store.delete(Key("resourceclaims", namespace, name))

    def _allocated(self) -> Iterator[tuple[str, str]]:
        for claim in self._api.store.all("resourceclaims"):
            allocation = claim.get("status", {}).get("allocation")
            for result in allocation["devices"]["results"] if allocation else ():
                yield result["pool"], result["device"]

    def _write(self, namespace: str, name: str, pool: str, device: str) -> None:
        result = {"request": "gpu", "driver": DRIVER, "pool": pool, "device": device}

        def allocated(claim: dict[str, Any]) -> dict[str, Any]:
            return {**claim, "status": {"allocation": {"devices": {"results": [result]}}}}

        self._api.store.change(Key("resourceclaims", namespace, name), allocated)


def complete_pools(slices: Iterable[Device]) -> dict[str, list[Device]]:
    """The driver's slices by pool, of each its newest generation; none of incomplete pools."""
    found: dict[str, list[Device]] = {}
    for one in slices:
        if one["spec"]["driver"] == DRIVER:
            found.setdefault(one["spec"]["pool"]["name"], []).append(one)
    newest = {
        pool: [s for s in slices if _generation(s) == max(map(_generation, slices))]
        for pool, slices in found.items()
    }
    return {
        pool: sorted(slices, key=lambda one: str(one["metadata"]["name"]))
        for pool, slices in newest.items()
        if slices[0]["spec"]["pool"]["resourceSliceCount"] == len(slices)
    }


def first_fit(
    pools: Mapping[str, Sequence[Device]],
    taken: Collection[tuple[str, str]],
    wanted: Callable[[Device], bool],
) -> tuple[str, str] | None:
    """Pool and name of the first device that is wanted and fits; `taken` are such of others."""
    for pool, slices in sorted(pools.items()):
        for device in (d for one in slices for d in one["spec"].get("devices", ())):
            tainted = any(t["effect"] != "None" for t in device.get("taints", ()))
            if (pool, device["name"]) in taken or tainted or not wanted(device):
                continue
            if _fits(device, slices, {d for p, d in taken if p == pool}):
                return pool, str(device["name"])
    return None


def _fits(device: Device, slices: Sequence[Device], taken: Collection[str]) -> bool:
    free = {
        name: read_quantity(counter["value"])
        for one in slices
        for counters in one["spec"].get("sharedCounters", ())
        for name, counter in counters["counters"].items()
    }
    for other in (d for one in slices for d in one["spec"].get("devices", ())):
        if other["name"] in taken:
            for name, amount in _consumed(other).items():
                free[name] -= amount
    return all(free[name] >= amount for name, amount in _consumed(device).items())


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
    return {
        name: read_quantity(counter["value"])
        for consumed in device.get("consumesCounters", ())
        for name, counter in consumed["counters"].items()
    }
