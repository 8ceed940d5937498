"""Where the GPUs are, as an annotation."""

from __future__ import annotations

import json

from nodeagent.plan.observed import Gpu, NvLinks, ObservedNode
from nodeagent.structs import replace
from nodeagent.views.layout_facts import MAX_BYTES, topology
from tests.views.example_node import FIRST, OBSERVED


def test_what_is_known_is_published() -> None:
    """It is published with a version, sizes in bytes, and links by peer."""
    reported = json.loads(topology(OBSERVED))
    assert reported["version"] == "v1"
    assert reported["gpus"][0] == {
        "uuid": FIRST,
        "index": 0,
        "pciBusId": "00000000:1A:00.0",
        "product": "NVIDIA H100 80GB HBM3",
        "memory": 81559 << 20,
        "numaNode": 0,
        "nvlink": {"total": 18, "active": 18, "peers": {"nvswitch": 18}},
    }


def test_what_is_not_known_is_absent() -> None:
    """NUMA node 0 is known; none is not."""
    assert json.loads(topology(ObservedNode((Gpu(0, "GPU-0"),)))) == {
        "version": "v1",
        "gpus": [{"uuid": "GPU-0", "index": 0}],
    }
    assert topology(ObservedNode()) == '{"version":"v1","gpus":[]}'


def test_it_is_the_same_however_the_gpus_are_split() -> None:
    """So that no change of a plan writes it."""
    empty = ObservedNode(tuple(replace(gpu, instances=(), mig=None) for gpu in OBSERVED.gpus))
    assert topology(empty) == topology(OBSERVED)


def test_it_is_bounded() -> None:
    """More GPUs than any node has, each linked to all others."""
    peers = tuple((f"GPU-{n:08d}-1111-2222-3333-444444444444", 1) for n in range(16))
    many = tuple(replace(OBSERVED.gpus[0], nvlink=NvLinks(36, 16, peers)) for _ in range(64))
    text = topology(ObservedNode(many))
    assert len(text.encode()) <= MAX_BYTES
    reported = json.loads(text)
    assert len(reported["gpus"]) + reported["more"]["gpus"] == 64
