"""Offers as the ResourceSlice objects of `resource.k8s.io/v1`, both ways, and what to write so that
a pool's slices are as its offer has them. Pure.

Since Kubernetes 1.35 counters and devices are in slices of their own. The counters come first: a
server that knows no counters drops the field without a word, and devices without counters could
all be allocated at once. `compare` finds that out by comparing the answer with what was sent.
Objects have fixed names, since a scheduler goes through the slices of a pool in their order.

A pool is consistent for schedulers only where all its slices have one generation and are as many
as each of them says. So a change of one slice keeps the generation, and any other raises it for
all. Counters are written before the devices that take from them, deletions first of all.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from nodeagent.claims.capacity import RequestPolicy
from nodeagent.claims.names import DRIVER
from nodeagent.claims.offering.devices import (
    AttributeValue,
    OfferedDevice,
    Taint,
    Version,
    read_name,
    written_name,
)
from nodeagent.claims.offering.pool_offer import PoolOffer
from nodeagent.errors import NodeagentError
from nodeagent.structs import Struct

API_VERSION = "resource.k8s.io/v1"
COUNTER_SET = "gpu"  # there is one in each pool
MAX_DEVICES = 64  # in a slice, where they have counters or taints; else twice as many
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_QUANTITY = re.compile(r"([0-9]{1,19})([KMGTPE]i|[kMGTPE]|)")


Json = Mapping[str, Any]


class UnreadableSlice(NodeagentError):
    """A ResourceSlice of this driver is not as this agent writes it."""


class NodeReference(Struct, frozen=True):
    """The Node that owns the slices, and the name of its driver."""

    name: str
    uid: str
    driver: str = DRIVER


def resource_slices(offer: PoolOffer, node: NodeReference, generation: int) -> tuple[Json, ...]:
    """The objects in the order in which they have to be written; none when nothing is offered."""
    devices = [_device_json(device, node.driver) for device in offer.devices]
    parts = [devices[first : first + MAX_DEVICES] for first in range(0, len(devices), MAX_DEVICES)]
    contents: list[tuple[str, Json]] = [
        (f"devices-{number:02}", {"devices": part}) for number, part in enumerate(parts)
    ]
    if offer.totals:
        counters = {"name": COUNTER_SET, "counters": _counters_json(offer.totals)}
        contents.insert(0, ("counters", {"sharedCounters": [counters]}))
    pool = {"name": offer.pool, "generation": generation, "resourceSliceCount": len(contents)}
    return tuple(_slice_json(node, pool, name, content) for name, content in contents)


def _slice_json(node: NodeReference, pool: Json, name: str, content: Json) -> Json:
    gpu = str(pool["name"]).rpartition("/")[2]
    owner = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}
    return {
        "apiVersion": API_VERSION,
        "kind": "ResourceSlice",
        "metadata": {
            "name": f"{node.name}-{node.driver}-{gpu}-{name}",
            "ownerReferences": [{**owner, "controller": True}],
        },
        "spec": {"driver": node.driver, "pool": dict(pool), "nodeName": node.name, **content},
    }


def _device_json(device: OfferedDevice, driver: str) -> Json:
    attributes, capacity = device.attributes.items(), device.capacity.items()
    found: dict[str, Any] = {
        "name": device.name,
        "attributes": {written_name(k, driver): _attribute_json(v) for k, v in attributes},
        "capacity": {
            written_name(k, driver): _capacity_json(v, device.policies.get(k)) for k, v in capacity
        },
    }
    if device.policies:
        found["allowMultipleAllocations"] = True
    if device.consumes:
        taken = {"counterSet": COUNTER_SET, "counters": _counters_json(device.consumes)}
        found["consumesCounters"] = [taken]
    if device.taints:
        found["taints"] = list(map(_taint_json, device.taints))
    return found


def _taint_json(taint: Taint) -> Json:
    added = datetime.fromtimestamp(taint.added, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"key": taint.key, "effect": "NoSchedule", "timeAdded": added}


def _capacity_json(value: int, policy: RequestPolicy | None) -> Json:
    if policy is None:
        return {"value": quantity(value)}
    valid = {"min": quantity(policy.least)}
    if policy.least + policy.step <= value:  # the API has no step that leads beyond
        valid["step"] = quantity(policy.step)
    policy_json = {"default": quantity(policy.default), "validRange": valid}
    return {"value": quantity(value), "requestPolicy": policy_json}


def _attribute_json(value: AttributeValue) -> Json:
    match value:
        case bool():
            return {"bool": value}
        case int():
            return {"int": value}
        case str():
            return {"string": value}
        case Version(text):
            return {"version": text}


def _counters_json(amounts: Mapping[str, int]) -> Json:
    return {name: {"value": quantity(amount)} for name, amount in amounts.items()}


def quantity(amount: int) -> str:
    """A whole number of 0 or more as Kubernetes writes it, with the largest binary suffix."""
    power = 0
    while amount and amount % 1024 == 0 and power < len(_BINARY) - 1:
        amount, power = amount // 1024, power + 1
    return f"{amount}{_BINARY[power]}"


def read_quantity(text: str) -> int:
    """A quantity that `quantity` wrote, or the API server in its place; raises ValueError."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a quantity in whole units")
    suffix = match[2]
    if suffix in _BINARY:
        return int(match[1]) << 10 * _BINARY.index(suffix)
    return int(match[1] + "000" * ("kMGTPE".index(suffix) + 1))


# --- what was published ---------------------------------------------------------------------------


def read_offer(slices: Iterable[Json]) -> PoolOffer | None:
    """The offer that these slices of one pool were made of; None when there are none.

    Those of an earlier generation do not count. Raises UnreadableSlice for what this agent would
    not have written.
    """
    known = sorted(slices, key=lambda one: str(one["metadata"]["name"]))
    if not known:
        return None
    try:
        newest = max(one["spec"]["pool"]["generation"] for one in known)
        specs = [s["spec"] for s in known if s["spec"]["pool"]["generation"] == newest]
        totals: dict[str, int] = {}
        for spec in specs:
            for counters in spec.get("sharedCounters", ()):
                totals |= _read_amounts(counters["counters"])
        devices = tuple(
            _read_device(d, spec["driver"]) for spec in specs for d in spec.get("devices", ())
        )
        return PoolOffer(str(specs[0]["pool"]["name"]), totals, devices)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        name = known[0]["metadata"]["name"]
        message = f"ResourceSlice {name}, or another of its pool, is not as this agent writes it"
        raise UnreadableSlice(f"{message}: {error!r}") from error


def _read_device(device: Json, driver: str) -> OfferedDevice:
    def named(values: Json) -> dict[str, Any]:
        return {read_name(name, driver): value for name, value in values.items()}

    attributes, capacity = named(device.get("attributes", {})), named(device.get("capacity", {}))
    consumes: dict[str, int] = {}
    for taken in device.get("consumesCounters", ()):
        consumes |= _read_amounts(taken["counters"])
    return OfferedDevice(
        str(device["name"]),
        {key: _read_attribute(value) for key, value in attributes.items()},
        _read_amounts(capacity),
        consumes,
        tuple(map(_read_taint, device.get("taints", ()))),
        dict(_read_policies(capacity)) if device.get("allowMultipleAllocations") else {},
    )


def _read_taint(taint: Json) -> Taint:
    return Taint(str(taint["key"]), int(datetime.fromisoformat(taint["timeAdded"]).timestamp()))


def _read_policies(capacities: Json) -> Iterator[tuple[str, RequestPolicy]]:
    for name, capacity in capacities.items():
        if policy := capacity.get("requestPolicy"):
            valid = policy["validRange"]
            step = valid.get("step", valid["min"])
            amounts = map(read_quantity, (policy["default"], valid["min"], step))
            yield str(name), RequestPolicy(*amounts)


def _read_amounts(amounts: Json) -> dict[str, int]:
    return {str(name): read_quantity(amount["value"]) for name, amount in amounts.items()}


def _read_attribute(value: Json) -> AttributeValue:
    match value:
        case {"bool": bool(known)} | {"int": int(known)} | {"string": str(known)}:
            return known
        case {"version": str(text)}:
            return Version(text)
    raise ValueError(f"an attribute cannot be {value!r}")


# --- what the server made of it -------------------------------------------------------------------

_SHARED = "DRAConsumableCapacity"
_GATES = {
    "spec.sharedCounters": "DRAPartitionableDevices",
    "spec.devices[].consumesCounters": "DRAPartitionableDevices",
    "spec.devices[].taints": "DRADeviceTaints",
    "spec.devices[].allowMultipleAllocations": _SHARED,
}


_QUANTITIES = (".value", ".default", ".min", ".step")


class Dropped(Struct, frozen=True):
    """A field that the server did not keep; `gate` is the feature gate behind which it is."""

    path: str
    gate: str = ""

    def __str__(self) -> str:
        why = f" (feature gate {self.gate})" if self.gate else ""
        return f"the API server did not keep {self.path}{why}"

    @property
    def remedy(self) -> str:
        if not self.gate:
            return "use Kubernetes 1.36 or newer"
        return f"switch the feature gate {self.gate} on in kube-apiserver and kube-scheduler"


def compare(sent: Json, answered: Json) -> tuple[Dropped, ...]:
    """What of a slice is missing or different in the server's answer; each field is named once.

    What the server adds does not matter, nor do apiVersion and kind: items of a list have none.
    """
    parts = {key: sent[key] for key in ("metadata", "spec")}
    paths = dict.fromkeys(_differences("", parts, answered))
    return tuple(Dropped(path, _gate_of(path)) for path in paths)


def _gate_of(path: str) -> str:
    return _SHARED if path.endswith(".requestPolicy") else _GATES.get(path, "")


def _differences(path: str, sent: object, answered: object) -> Iterator[str]:
    match sent, answered:
        case dict(), dict():
            for key, value in sent.items():
                yield from _differences(f"{path}.{key}".lstrip("."), value, answered.get(key))
        case list(), list() if len(sent) == len(answered):
            for ours, theirs in zip(sent, answered, strict=True):
                yield from _differences(f"{path}[]", ours, theirs)
        case str(), str() if path.endswith(_QUANTITIES):
            if not _same_quantity(sent, answered):
                yield path
        case _:
            if sent != answered:
                yield path


def _same_quantity(one: str, other: str) -> bool:
    try:
        return read_quantity(one) == read_quantity(other)
    except ValueError:
        return one == other


# --- what is to be written ------------------------------------------------------------------------


class SliceDiff(Struct, frozen=True):
    """The slices to delete, by name, and then whole objects to write, in this order. One with a
    `resourceVersion` replaces that version, the others are new.
    """

    delete: tuple[str, ...] = ()
    write: tuple[Json, ...] = ()


def slice_diff(offer: PoolOffer, present: Sequence[Json], node: NodeReference) -> SliceDiff:
    """What leads from the pool's slices that are `present` to its offer."""
    known = {str(one["metadata"]["name"]): one for one in present}
    generation = max((one["spec"]["pool"]["generation"] for one in present), default=0)
    wanted = resource_slices(offer, node, generation)
    changed = [one for one in wanted if not _is_as(one, known.get(one["metadata"]["name"]))]
    gone = known.keys() - {str(one["metadata"]["name"]) for one in wanted}
    if not changed and not gone:
        return SliceDiff()
    alone = len(changed) == 1 and not gone and str(changed[0]["metadata"]["name"]) in known
    if present and not alone:
        # After the largest that the API server takes, it begins anew.
        changed = list(resource_slices(offer, node, generation % (2**63 - 1) + 1))
    write = (_replacing(one, known.get(str(one["metadata"]["name"]))) for one in changed)
    return SliceDiff(tuple(sorted(gone)), tuple(write))


def _is_as(sent: Json, found: Json | None) -> bool:
    """Whether it is there and has nothing less, else or more."""
    if found is None or compare(sent, found):
        return False
    try:
        return read_offer([sent]) == read_offer([found])
    except UnreadableSlice:
        return False


def _replacing(body: Json, found: Json | None) -> Json:
    if found is None:
        return body
    version = {"resourceVersion": found["metadata"]["resourceVersion"]}
    return {**body, "metadata": {**body["metadata"], **version}}
