"""Allocates published devices to claims as Kubernetes' scheduler does: the first that fits.

After staging/src/k8s.io/dynamic-resource-allocation/structured of Kubernetes 1.36, as far as a
claim for one device of a kind goes: pools are complete or not used, slices are gone through by
their objects' names and devices in their order; what is free of a counter is what the allocated
devices that are in the slices leave; devices with a NoSchedule taint are passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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

    def allocate(
        self,
        namespace: str,
        name: str,
        wanted: Callable[[Device], bool],
        parameters: Mapping[str, Any] | None = None,
    ) -> str:
        """Give the claim the first device that fits; its name, "" when none does. `parameters`:
        what its class has configured for the driver.
        """
        pools = complete_pools(self._api.store.all("resourceslices"))
        found = first_fit(pools, set(self._allocated()), wanted)
        if found is None:
            return ""
        self._write(namespace, name, *found, parameters)
        return found[1]

    def delete(self, namespace: str, name: str) -> None:
        """The claim goes, with its allocation."""
        self._api.store.delete(Key("resourceclaims", namespace, name))

    def _allocated(self) -> Iterator[tuple[str, str]]:
        for claim in self._api.store.all("resourceclaims"):
            allocation = claim.get("status", {}).get("allocation")
            for result in allocation["devices"]["results"] if allocation else ():
                yield result["pool"], result["device"]

    def _write(
        self,
        namespace: str,
        name: str,
        pool: str,
        device: str,
        parameters: Mapping[str, Any] | None,
    ) -> None:
        result = {"request": "gpu", "driver": DRIVER, "pool": pool, "device": device}
        devices: dict[str, Any] = {"results": [result]}
        if parameters is not None:
            opaque = {"driver": DRIVER, "parameters": parameters}
            devices["config"] = [{"source": "FromClass", "requests": ["gpu"], "opaque": opaque}]

        def allocated(claim: dict[str, Any]) -> dict[str, Any]:
            return {**claim, "status": {"allocation": {"devices": devices}}}

        self._api.store.change(Key("resourceclaims", namespace, name), allocated)


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
