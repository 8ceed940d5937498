"""The scheduler's choice of devices, case by case; `real_cluster` has the same of a real one.

A case has one pool, and claims that come one after the other and stay. A claim is written as its
requests, each a type and what is asked of capacities, and as the devices with what they consume.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from nodeagent.claims.offering.resource_slices import quantity, read_quantity
from tests.simulated_cluster import allocator

Json = dict[str, Any]
NODE = "nodeagent-suite"
NOTHING = ""  # the claim has to wait


@dataclass(frozen=True, slots=True)
class Case:
    """What claims get on Kubernetes 1.36.2; `counters` are the pool's, one of each."""

    name: str
    devices: Sequence[Json]
    claims: Sequence[tuple[str, str]]
    counters: str = ""

    def slices(self) -> list[Json]:
        sets = [{"name": "gpu", "counters": _ones(self.counters)}] if self.counters else []
        contents = [{"sharedCounters": sets}] * bool(sets) + [{"devices": list(self.devices)}]
        pool = {"name": f"{NODE}/{self.name}", "generation": 1, "resourceSliceCount": len(contents)}
        return [
            {
                "metadata": {"name": f"{NODE}-{self.name}-{number}"},
                "spec": {"driver": allocator.DRIVER, "nodeName": NODE, "pool": pool, **content},
            }
            for number, content in enumerate(contents)
        ]


def device(name: str, kind: str = "gpu", takes: str = "", **more: Any) -> Json:
    """One with these of the counters, given once; its capacity is in `more`."""
    consumes = [{"counterSet": "gpu", "counters": _ones(takes)}] if takes else []
    attributes = {"gpu.nvidia.com/type": {"string": kind}}
    return {"name": name, "attributes": attributes, "consumesCounters": consumes, **more}


def shared(name: str, takes: str = "", **capacity: tuple[str, Json]) -> Json:
    """A GPU that several claims can have, with values and policies of its capacity."""
    found = {n: {"value": value, "requestPolicy": p} for n, (value, p) in capacity.items()}
    return device(name, takes=takes, allowMultipleAllocations=True, capacity=found)


def _ones(counters: str) -> Json:
    return {name: {"value": "1"} for name in counters.split()}


def _range(default: str, least: str, step: str, **most: str) -> Json:
    return {"default": default, "validRange": {"min": least, "step": step, **most}}


MEMORY = "10752Mi", _range("10Gi", "1Gi", "1Gi")  # half a step more than all can have
THREADS = "100", _range("0", "0", "1")
GPU, WHOLE = shared("gpu", memory=MEMORY), ("gpu", "gpu memory=10Gi")
CASES = (
    Case(
        "memory",
        [GPU],
        [
            ("gpu memory=3584Mi", "gpu memory=4Gi"),
            ("gpu memory=1", "gpu memory=1Gi"),
            ("gpu memory=6Gi", NOTHING),
            ("gpu", NOTHING),
            ("gpu memory=5Gi", "gpu memory=5Gi"),
            ("gpu memory=512Mi", NOTHING),
        ],
    ),
    Case("whole", [GPU], [WHOLE, ("gpu memory=1Gi", NOTHING), ("gpu", NOTHING)]),
    Case(
        "threads",
        [shared("gpu", memory=MEMORY, threads=THREADS)],
        [
            ("gpu memory=1Gi threads=60", "gpu memory=1Gi threads=60"),
            ("gpu memory=1Gi threads=41", NOTHING),
            ("gpu memory=1Gi", "gpu memory=1Gi threads=0"),
            ("gpu memory=1Gi threads=40", "gpu memory=1Gi threads=40"),
        ],
    ),
    Case(
        "names",
        [GPU, shared("other", memory=MEMORY, clients=("2", _range("1", "1", "1")))],
        [
            ("gpu clients=1 memory=1Gi", "other clients=1 memory=1Gi"),
            ("gpu gpu.nvidia.com/memory=1Gi", NOTHING),
            ("gpu clients=2", NOTHING),
        ],
    ),
    Case(
        "values",
        [
            shared("few", memory=("8Gi", {"default": "2Gi", "validValues": ["1Gi", "2Gi", "4Gi"]})),
            shared("most", memory=("8Gi", _range("2Gi", "1Gi", "1Gi", max="6Gi"))),
            shared("free", memory=("8Gi", {"default": "8Gi"})),
            device("one", capacity={"memory": {"value": "9Gi"}}),
        ],
        [
            ("gpu memory=3Gi", "few memory=4Gi"),
            ("gpu memory=7168001Ki", "free memory=7168001Ki"),
            ("gpu memory=5Gi", "most memory=5Gi"),
            ("gpu", "few memory=2Gi"),
            ("gpu memory=9Gi", "one"),
            ("gpu memory=1Gi", "few memory=1Gi"),
        ],
    ),
    Case(
        "counters",
        [device("a", "mig", "s0"), device("b", "mig", "s1"), shared("gpu", "s0 s1", memory=MEMORY)],
        [
            ("gpu memory=2Gi", "gpu memory=2Gi"),
            ("gpu memory=2Gi", "gpu memory=2Gi"),
            ("mig", NOTHING),
        ],
        counters="s0 s1",
    ),
    Case(
        "parts",
        [device("a", "mig", "s0"), device("b", "mig", "s1"), shared("gpu", "s0 s1", memory=MEMORY)],
        [("mig", "a"), ("gpu memory=1Gi", NOTHING), ("mig", "b"), ("mig", NOTHING)],
        counters="s0 s1",
    ),
    Case(
        "together",
        [GPU, shared("small", memory=("4Gi", _range("4Gi", "1Gi", "1Gi")))],
        [
            ("gpu memory=6Gi + gpu memory=5Gi", NOTHING),
            ("gpu memory=3Gi + gpu memory=8Gi", "small memory=3Gi + gpu memory=8Gi"),
            ("gpu memory=1Gi + gpu memory=1Gi", "gpu memory=1Gi + gpu memory=1Gi"),
        ],
    ),
)
# What a scheduler before 1.37 refuses, because it forgets to give counters back.
LEAKS = (
    Case(
        "backtrack",
        [
            shared("all", "s0 s1", memory=MEMORY),
            shared("half", "s0", memory=MEMORY),
            device("a", "mig", "s1"),
        ],
        [("gpu memory=1Gi + mig", NOTHING), ("gpu memory=1Gi", "all memory=1Gi")],
        counters="s0 s1",
    ),
    Case(
        "tainted",
        [
            device("a", "mig", "s0", taints=[{"key": "x.io/sick", "effect": "NoSchedule"}]),
            device("b", "mig", "s0"),
            device("c", "mig", "s1"),
        ],
        [("mig", "c"), ("mig", NOTHING)],
        counters="s0 s1",
    ),
)


def requests(claim: str) -> list[tuple[str, dict[str, int]]]:
    """The type of each, and what it asks for."""
    parts = (one.split() for one in claim.split(" + "))
    asked = ((kind, (one.split("=") for one in capacity)) for kind, *capacity in parts)
    return [(kind, {name: read_quantity(text) for name, text in of}) for kind, of in asked]


def written(found: Sequence[allocator.Allocated]) -> str:
    consumed = ((one, sorted((one.consumed or {}).items())) for one in found)
    return " + ".join(
        " ".join((one.device, *(f"{name}={quantity(n)}" for name, n in of))) for one, of in consumed
    )


def allocated(case: Case, version: allocator.Version) -> list[str]:
    pools = allocator.complete_pools(case.slices())
    taken: list[allocator.Allocated] = []
    said = []
    for claim, _ in case.claims:
        wanted = [
            allocator.Request(allocator.of_type(kind), capacity)
            for kind, capacity in requests(claim)
        ]
        found = allocator.first_fit(pools, taken, *wanted, version=version)
        taken += found
        said.append(written(found))
    return said


@pytest.mark.parametrize("case", [*CASES, *LEAKS], ids=lambda case: case.name)
def test_what_claims_get(case: Case) -> None:
    """On Kubernetes 1.36.2; and that is the same on 1.37 where nothing leaks."""
    expected = [found for _, found in case.claims]
    assert allocated(case, allocator.V1_36_2) == expected
    assert (allocated(case, (1, 37, 0)) == expected) is (case in CASES)


def test_before_1_36_2() -> None:
    """A MIG device is given out that lies on a GPU of which claims have shares."""
    [case] = (case for case in CASES if case.name == "counters")
    assert allocated(case, (1, 36, 1)) == ["gpu memory=2Gi", "gpu memory=2Gi", "a"]
