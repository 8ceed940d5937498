"""ResourceSlices: as Kubernetes wants them, within its limits, and back; and the writes that bring
them to the offers, against a small model of the API server.
"""

import copy
import json
import random
from collections.abc import Callable
from typing import Any

import kubernetes_validate
import pytest

from nodeagent.claims.offering.devices import OfferedDevice, Taint
from nodeagent.claims.offering.gpu_rules import GpuRules
from nodeagent.claims.offering.pool_offer import OfferContext, PoolOffer, pool_offer
from nodeagent.claims.offering.resource_slices import (
    Dropped,
    Json,
    NodeReference,
    SliceDiff,
    UnreadableSlice,
    compare,
    quantity,
    read_offer,
    read_quantity,
    resource_slices,
    slice_diff,
)
from nodeagent.plan.observed import HealthLimits
from nodeagent.simulation.boards import board_names
from nodeagent.structs import replace
from tests.claims.boards import NODE
from tests.claims.slice_limits import check_slices
from tests.plan.cards import card

NODE_REFERENCE = NodeReference(NODE, "2b0e7b6a-0000-1111-2222-333344445555")


def published(board: str, *, unhealthy: int = 0, generation: int = 1) -> tuple[Json, ...]:
    return resource_slices(_offer(board, unhealthy), NODE_REFERENCE, generation)


def _offer(board: str, unhealthy: int = 0) -> PoolOffer:
    gpu = replace(card(board), health_limits=HealthLimits(slices=unhealthy))
    return pool_offer(gpu, OfferContext(NODE, GpuRules(), 1_800_000_000))


def test_two_slices() -> None:
    counters, devices = published("h100-80gb", unhealthy=1, generation=7)
    metadata: dict[str, Any] = {
        "name": f"{NODE}-gpu.nodeagent.io-gpu-h100-80gb-counters",
        "ownerReferences": [
            {
                "apiVersion": "v1",
                "kind": "Node",
                "name": NODE,
                "uid": NODE_REFERENCE.uid,
                "controller": True,
            }
        ],
    }
    spec = {
        "driver": "gpu.nodeagent.io",
        "nodeName": NODE,
        "pool": {"name": f"{NODE}/gpu-h100-80gb", "generation": 7, "resourceSliceCount": 2},
    }
    amounts = {name: {"value": "1"} for name in [*(f"memory-slice-{n}" for n in range(8)), "me"]}
    assert counters == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": metadata,
        "spec": {**spec, "sharedCounters": [{"name": "gpu", "counters": amounts}]},
    }
    assert devices["metadata"]["name"] == metadata["name"].replace("counters", "devices-00")
    assert {k: v for k, v in devices["spec"].items() if k != "devices"} == spec
    (device,) = [d for d in devices["spec"]["devices"] if d["name"] == "mig-1g-10gb-me-0"]
    assert device == {
        "name": "mig-1g-10gb-me-0",
        "attributes": {
            "gpu.nvidia.com/type": {"string": "mig"},
            "gpu.nvidia.com/parentUUID": {"string": "GPU-h100-80gb"},
            "gpu.nvidia.com/profile": {"string": "1g.10gb+me"},
            "gpu.nvidia.com/productName": {"string": "NVIDIA H100 80GB HBM3"},
            "gpu.nvidia.com/architecture": {"string": "Hopper"},
            "gpu.nvidia.com/cudaComputeCapability": {"version": "9.0.0"},
            "resource.kubernetes.io/pciBusID": {"string": "0000:1a:00.0"},
        },
        "capacity": {
            "gpu.nvidia.com/memory": {"value": "9984Mi"},
            "gpu.nvidia.com/multiprocessors": {"value": "16"},
            "gpu.nvidia.com/copyEngines": {"value": "1"},
            "gpu.nvidia.com/decoders": {"value": "1"},
            "gpu.nvidia.com/encoders": {"value": "0"},
            "gpu.nvidia.com/jpegEngines": {"value": "1"},
            "gpu.nvidia.com/ofaEngines": {"value": "1"},
        },
        "consumesCounters": [
            {
                "counterSet": "gpu",
                "counters": {"memory-slice-0": {"value": "1"}, "me": {"value": "1"}},
            }
        ],
        "taints": [
            {
                "key": "gpu.nodeagent.io/unhealthy",
                "effect": "NoSchedule",
                "timeAdded": "2027-01-15T08:00:00Z",
            }
        ],
    }


@pytest.mark.parametrize("board", board_names())
def test_every_board(board: str) -> None:
    """Of every board they are what an API server takes, small, and read back as they were."""
    slices = published(board, unhealthy=2)
    check_slices(slices)
    text = json.dumps(slices)
    assert len(text) < 40_000
    assert read_offer(json.loads(text)) == _offer(board, 2)


@pytest.mark.parametrize("version", ["1.34", "1.36", "1.37"])
def test_schemas(version: str) -> None:
    for board in ("rtx-pro-6000", "t4"):
        for one in published(board, unhealthy=2):
            kubernetes_validate.validate(json.loads(json.dumps(one)), version, strict=True)


def test_under_nvidias_name() -> None:
    """What is in the driver's own domain has its bare name, as requests for capacities write it."""
    context = OfferContext(NODE, GpuRules(share="memory"), 0)
    offer = pool_offer(replace(card("l40s"), uuid="GPU-1"), context)
    named = resource_slices(offer, replace(NODE_REFERENCE, driver="gpu.nvidia.com"), 1)
    assert read_offer(json.loads(json.dumps(named))) == offer
    (spec,) = (one["spec"] for one in named)
    assert spec["driver"] == "gpu.nvidia.com"
    [device] = spec["devices"]
    assert device["capacity"].keys() == {"memory", "threads", "clients"}
    assert {"type", "uuid", "sharing", "resource.kubernetes.io/pciBusID"} <= set(
        device["attributes"]
    )
    assert not [name for name in device["attributes"] if "nvidia" in name]
    former = resource_slices(offer, NODE_REFERENCE, 1)
    renamed = slice_diff(offer, former, replace(NODE_REFERENCE, driver="gpu.nvidia.com"))
    assert renamed.delete == tuple(one["metadata"]["name"] for one in former)
    assert [one["spec"]["driver"] for one in renamed.write] == ["gpu.nvidia.com"]


def test_nothing_offered() -> None:
    empty = PoolOffer(f"{NODE}/gpu-x", {}, ())
    assert resource_slices(empty, NODE_REFERENCE, 1) == ()
    assert read_offer([]) is None


def test_many_devices_take_several_slices() -> None:
    devices = tuple(OfferedDevice(f"mig-{n}", {}, {}, {"me": 1}) for n in range(150))
    offer = PoolOffer(f"{NODE}/gpu-x", {"me": 1}, devices)
    slices = resource_slices(offer, NODE_REFERENCE, 1)
    assert [len(s["spec"].get("devices", ())) for s in slices] == [0, 64, 64, 22]
    assert {s["spec"]["pool"]["resourceSliceCount"] for s in slices} == {4}
    assert [s["metadata"]["name"][-10:] for s in slices[1:]] == [f"devices-0{n}" for n in range(3)]
    assert read_offer(slices[::-1]) == offer


def test_slices_of_an_earlier_generation_do_not_count() -> None:
    """They are on their way out."""
    old, new = published("a30"), published("t4", generation=2)
    found = read_offer([*old, *new])
    assert found is not None
    assert [d.name for d in found.devices] == ["gpu"]


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: spec["devices"][0].pop("name"),
        lambda spec: spec["devices"][0].update(attributes={"x": {"strings": ["a"]}}),
        lambda spec: spec["devices"][0].update(capacity={"x": {"value": "1.5Gi"}}),
        lambda spec: spec["devices"][0].update(taints=[{"key": "x", "effect": "NoSchedule"}]),
        lambda spec: spec.update(devices=7),
        lambda spec: spec.update(devices=["gpu"]),
    ],
)
def test_reads_only_its_own(change: Callable[[dict[str, Any]], object]) -> None:
    slices = copy.deepcopy(published("a30"))
    change(slices[1]["spec"])
    with pytest.raises(UnreadableSlice, match="a30-counters, or another of its pool, is"):
        read_offer(slices)


def test_quantities() -> None:
    """As Kubernetes itself would write them, and as it may answer."""
    cases = [(0, "0"), (1, "1"), (132, "132"), (9984 << 20, "9984Mi"), (80 << 30, "80Gi")]
    for amount, text in cases:
        assert quantity(amount) == text
        assert read_quantity(text) == amount
    assert read_quantity("2k") == 2000
    assert read_quantity("1E") == 10**18
    for text in ("", "-1", "1.5", "1e3", "500m", "1 Gi", "\u0661"):
        with pytest.raises(ValueError, match="is not a quantity"):
            read_quantity(text)


# --- what the server made of it -------------------------------------------------------------------


def test_what_the_server_adds_does_not_matter() -> None:
    for sent in published("h100-80gb", unhealthy=1):
        answered = json.loads(json.dumps(sent).replace('"9984Mi"', '"10468982784"'))
        answered["metadata"].update(uid="1", resourceVersion="2")
        for device in answered["spec"].get("devices", ()):
            device["bindsToNode"] = False
        assert compare(sent, answered) == ()


def test_names_what_was_dropped() -> None:
    counters, devices = copy.deepcopy(published("h100-80gb", unhealthy=1))
    kept = copy.deepcopy((counters, devices))
    del kept[0]["spec"]["sharedCounters"]
    (found,) = compare(counters, kept[0])
    assert found == Dropped("spec.sharedCounters", "DRAPartitionableDevices")
    for device in kept[1]["spec"]["devices"]:
        del device["consumesCounters"]
        device.pop("taints", None)
    gone = {found.path: found.gate for found in compare(devices, kept[1])}
    assert gone == {
        "spec.devices[].consumesCounters": "DRAPartitionableDevices",
        "spec.devices[].taints": "DRADeviceTaints",
    }
    assert str(found) == (
        "the API server did not keep spec.sharedCounters (feature gate DRAPartitionableDevices)"
    )


def test_names_what_was_changed() -> None:
    _, devices = published("a30")

    def changed(change: Callable[[dict[str, Any]], object]) -> list[str]:
        answered = copy.deepcopy(devices)
        change(answered["spec"])
        return [str(found) for found in compare(devices, answered)]

    lost = "the API server did not keep "
    assert changed(lambda s: s["pool"].update(generation=3)) == [f"{lost}spec.pool.generation"]
    assert changed(lambda s: s["devices"].pop()) == [f"{lost}spec.devices"]
    assert f"{lost}spec.devices[].name" in changed(lambda s: s["devices"].reverse())
    memory = "gpu.nvidia.com/memory"
    assert changed(lambda s: s["devices"][0]["capacity"][memory].update(value="odd")) == [
        f"{lost}spec.devices[].capacity.{memory}.value"
    ]


# --- what is written ------------------------------------------------------------------------------


OWNER = NodeReference("gpu-node-0", "11111111-2222-3333-4444-555555555555")


class Server:
    """Slices by name; each write needs the version that it replaces."""

    def __init__(self) -> None:
        self.slices: dict[str, Any] = {}
        self.version = 0

    def diff(self, offer: PoolOffer) -> SliceDiff:
        found = self.slices.values()
        present = [one for one in found if one["spec"]["pool"]["name"] == offer.pool]
        return slice_diff(offer, present, OWNER)

    def take(self, diff: SliceDiff, most: int | None = None) -> None:
        """Write all of it, or the first requests."""
        for name in diff.delete[:most]:
            del self.slices[name]
        left = None if most is None else max(0, most - len(diff.delete))
        for body in diff.write[:left]:
            self.version += 1
            there = self.slices.get(body["metadata"]["name"])
            version = there and there["metadata"]["resourceVersion"]
            assert body["metadata"].get("resourceVersion") == version
            metadata = {**body["metadata"], "resourceVersion": str(self.version), "uid": "made"}
            self.slices[body["metadata"]["name"]] = {**body, "metadata": metadata}

    def publish(self, offer: PoolOffer) -> None:
        self.take(self.diff(offer))

    def pools(self) -> dict[str, list[Any]]:
        pools: dict[str, list[Any]] = {}
        for one in self.slices.values():
            pools.setdefault(one["spec"]["pool"]["name"], []).append(one["spec"])
        return pools


def offer_of(board: str, number: int = 0) -> PoolOffer:
    gpu = replace(card(board), uuid=f"GPU-{number}", index=number)
    return pool_offer(gpu, OfferContext("gpu-node-0", GpuRules(), now=1_700_000_000))


def tainted(offer: PoolOffer, number: int) -> PoolOffer:
    taint = Taint("gpu.nodeagent.io/unhealthy", 1_700_000_100)
    devices = list(offer.devices)
    devices[number] = replace(devices[number], taints=(taint,))
    return replace(offer, devices=tuple(devices))


NOTHING = SliceDiff()


def test_after_the_largest_generation_it_begins_anew() -> None:
    """Another program may have set it; the API server takes no larger one."""
    server, offer = Server(), offer_of("h100-80gb")
    server.publish(offer)
    for body in server.slices.values():
        body["spec"]["pool"]["generation"] = 2**63 - 1
    del server.slices[min(server.slices)]
    server.publish(offer)
    assert {s["pool"]["generation"] for specs in server.pools().values() for s in specs} == {1}


@pytest.mark.parametrize("rounds", [60, pytest.param(600, marks=pytest.mark.full)])
def test_random_changes_always_end_in_the_offers(rounds: int) -> None:
    """Whatever was there before, by another agent or half written: consistent, and then quiet."""
    rng = random.Random(5)
    boards = ["a30", "h100-80gb", "rtx-pro-6000"]
    server = Server()
    for _ in range(rounds):
        offer = offer_of(rng.choice(boards), rng.randrange(3))
        offer = tainted(offer, rng.randrange(5)) if rng.random() < 0.4 else offer
        diff = server.diff(offer)
        if rng.random() < 0.3:  # the agent is killed in between
            server.take(diff, rng.randint(0, len(diff.delete) + len(diff.write)))
            server.publish(offer)
        else:
            server.take(diff)
        specs = server.pools()[offer.pool]
        assert len({spec["pool"]["generation"] for spec in specs}) == 1
        assert {spec["pool"]["resourceSliceCount"] for spec in specs} == {len(specs)}
        assert server.diff(offer) == NOTHING
        for name in rng.sample(sorted(server.slices), rng.randint(0, len(server.slices))):
            if rng.random() < 0.3:
                del server.slices[name]
