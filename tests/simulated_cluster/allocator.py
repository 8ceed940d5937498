"""Which published devices a scheduler gives to a claim: the first that fit.

After staging/src/k8s.io/dynamic-resource-allocation/structured of Kubernetes 1.36.2: pools are
complete or not used, slices are gone through by their objects' names and devices in their order;
what is free of a counter is what the allocated devices that are in the slices leave; devices with
a NoSchedule taint are passed over. A device that allows several allocations is given as long as
its capacity lasts, and takes from the counters once.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from nodeagent.claims.offering.resource_slices import quantity, read_quantity

DRIVER = "gpu.nodeagent.io"
Device = Mapping[str, Any]
Amounts = Mapping[str, int]
Version = tuple[int, int, int]
V1_36_2: Version = (1, 36, 2)


@dataclass(frozen=True, slots=True)
class Request:
    """For one device that is wanted, with so much of its capacities, by names as published."""

    wanted: Callable[[Device], bool]
    capacity: Amounts = field(default_factory=dict)


class Allocated(NamedTuple):
    """A device, and what is consumed of its capacities; None where no other claim can have it."""

    pool: str
    device: str
    consumed: Amounts | None = None

    def result(self, request: str, share: str) -> dict[str, Any]:
        """As an allocation has it; `share` is the shareID where other claims may have others."""
        found = {"request": request, "driver": DRIVER, "pool": self.pool, "device": self.device}
        if self.consumed is None:
            return found
        consumed = {name: quantity(amount) for name, amount in self.consumed.items()}
        return {**found, "shareID": share, "consumedCapacity": consumed}

    @classmethod
    def of(cls, result: Device) -> Self:
        """Reverses `result`."""
        consumed = result.get("consumedCapacity")
        amounts = None if consumed is None else {k: read_quantity(v) for k, v in consumed.items()}
        return cls(result["pool"], result["device"], amounts)


@dataclass(frozen=True, slots=True)
class Pool:
    """A published pool: its counters, and its devices in order, with what each takes of them."""

    totals: Amounts
    devices: tuple[tuple[Device, Amounts], ...]


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
    taken: Iterable[Allocated],
    *requests: Request,
    version: Version = V1_36_2,
) -> tuple[Allocated, ...]:
    """A device for each request of a claim; () where there are none. `taken`: other claims'."""
    return _Search(pools, taken, version).find(requests) or ()


class _Search:
    """One claim's, with what is used of devices, capacities and counters as far as it has come.

    Before 1.36.2 the counters of devices that are shared are forgotten (kubernetes #139034). Before
    1.37 a shared or tainted device that is tried in vain keeps what it takes of the counters
    (#140436).
    """

    def __init__(
        self, pools: Mapping[str, Pool], taken: Iterable[Allocated], version: Version
    ) -> None:
        self._pools = sorted(pools.items())
        self._leaks = version < (1, 37, 0)
        self._whole: set[tuple[str, str]] = set()
        self._shared: dict[tuple[str, str], Counter[str]] = {}
        for one in taken:
            self._add(one)
        counted = self._whole | (self._shared.keys() if version >= V1_36_2 else set())
        self._free = {name: Counter(pool.totals) for name, pool in self._pools}
        for name, pool in self._pools:
            for device, takes in pool.devices:
                if (name, device["name"]) in counted:
                    self._free[name].subtract(takes)

    def find(self, requests: Sequence[Request]) -> tuple[Allocated, ...] | None:
        """The first of all solutions."""
        if not requests:
            return ()
        for name, pool in self._pools:
            free = self._free[name]
            for device, takes in pool.devices:
                key = name, str(device["name"])
                if key in self._whole or not requests[0].wanted(device):
                    continue
                consumed = _consumed(device, requests[0].capacity, self._shared.get(key, {}))
                shared = bool(device.get("allowMultipleAllocations"))
                pays = not (shared and key in self._shared)
                if consumed is None or (pays and any(free[c] < n for c, n in takes.items())):
                    continue
                free.subtract(takes if pays else {})
                tainted = any(t["effect"] != "None" for t in device.get("taints", ()))
                if not tainted:
                    one = Allocated(*key, consumed if shared else None)
                    self._add(one)
                    if (others := self.find(requests[1:])) is not None:
                        return one, *others
                    self._remove(one)
                if pays and not (self._leaks and (shared or tainted)):
                    free.update(takes)
        return None

    def _add(self, one: Allocated) -> None:
        if one.consumed is None:
            self._whole.add((one.pool, one.device))
        else:
            self._shared.setdefault((one.pool, one.device), Counter()).update(one.consumed)

    def _remove(self, one: Allocated) -> None:
        key = one.pool, one.device
        self._whole.discard(key)
        if one.consumed is not None:
            self._shared[key].subtract(one.consumed)
            if not any(self._shared[key].values()):
                del self._shared[key]


def _consumed(device: Device, asked: Amounts, used: Amounts) -> Amounts | None:
    """How much an allocation takes of each capacity; None where there is not so much of one."""
    capacities = device.get("capacity", {})
    if asked.keys() - capacities.keys():
        return None
    consumed = {}
    for name, capacity in capacities.items():
        amount = _by_policy(capacity, asked.get(name))
        if amount is None or used.get(name, 0) + amount > read_quantity(capacity["value"]):
            return None
        consumed[name] = amount
    return consumed


def _by_policy(capacity: Device, asked: int | None) -> int | None:
    """What is consumed for an amount, or for none; None where no such amount can be had."""
    policy = capacity.get("requestPolicy", {})
    if asked is None:
        return read_quantity(policy.get("default", capacity["value"]))
    if "validValues" in policy:
        return next((v for v in map(read_quantity, policy["validValues"]) if v >= asked), None)
    if "validRange" not in policy:
        return asked
    least, step, most = (
        read_quantity(policy["validRange"].get(key, default))
        for key, default in (("min", "0"), ("step", "1"), ("max", capacity["value"]))
    )
    amount = least + max(-(-(asked - least) // step), 0) * step
    return amount if amount <= most else None


def _pool(slices: Sequence[Device]) -> Pool:
    counters = (c for one in slices for c in one["spec"].get("sharedCounters", ()))
    totals = {name: amount for one in counters for name, amount in _amounts(one).items()}
    devices = (device for one in slices for device in one["spec"].get("devices", ()))
    return Pool(totals, tuple((device, _takes(device)) for device in devices))


def of_profile(profile: str) -> Callable[[Device], bool]:
    return _with_attribute("gpu.nvidia.com/profile", profile)


def of_type(kind: str) -> Callable[[Device], bool]:
    """What the selectors of the other classes say: `gpu` or `mig`."""
    return _with_attribute("gpu.nvidia.com/type", kind)


def _with_attribute(name: str, value: str) -> Callable[[Device], bool]:
    def wanted(device: Device) -> bool:
        return bool(device["attributes"].get(name, {}).get("string") == value)

    return wanted


def _generation(one: Device) -> int:
    return int(one["spec"]["pool"]["generation"])


def _takes(device: Device) -> dict[str, int]:
    taken = device.get("consumesCounters", ())
    return {name: amount for one in taken for name, amount in _amounts(one).items()}


def _amounts(counters: Device) -> dict[str, int]:
    return {name: read_quantity(one["value"]) for name, one in counters["counters"].items()}
