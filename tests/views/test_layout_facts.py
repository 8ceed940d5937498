import json
import re
from typing import Any

from nodeagent.plan.observed import (
    Access,
    Gpu,
    GpuInstance,
    MigMode,
    NvLinks,
    ObservedNode,
    Placement,
)
from nodeagent.plan.shares import Account, Share, Sharing, WantedMps
from nodeagent.simulation import known_boards
from nodeagent.structs import replace
from nodeagent.views.layout_facts import MAX_BYTES, label_changes, layout, layout_labels, topology
from nodeagent.views.shapes import MpsDaemon
from tests.plan.cards import card, with_instances
from tests.views.daemons import mps_client, mps_daemon
from tests.views.example_node import FIRST, OBSERVED

LABEL = re.compile(r"nodeagent\.io/[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def reported(observed: ObservedNode, *daemons: MpsDaemon) -> list[dict[str, Any]]:
    report = json.loads(layout(observed, daemons))
    assert report["version"] == "v1"
    gpus: list[dict[str, Any]] = report["gpus"]
    return gpus


def test_a_gpu_that_does_not_answer_offers_nothing() -> None:
    silent = replace(OBSERVED.gpus[0], access=Access.UNKNOWN)
    assert reported(ObservedNode((silent,))) == [{"uuid": FIRST, "index": 0, "access": "unknown"}]
    assert layout_labels(ObservedNode((silent,))) == {}


def test_cards_without_mig_and_nodes_without_gpus() -> None:
    assert reported(ObservedNode((Gpu(0, "GPU-t4"),))) == [{"uuid": "GPU-t4", "index": 0}]
    assert reported(ObservedNode()) == []
    assert layout_labels(ObservedNode()) == {}
    assert layout_labels(ObservedNode((Gpu(0, "GPU-t4"),))) == {}


def test_half_made_instances_take_room_but_are_none() -> None:
    half = GpuInstance(1, 19, "1g.10gb", Placement(0, 1))
    (gpu,) = reported(ObservedNode((replace(card("h100-80gb"), instances=(half,)),)))
    assert gpu["instances"] == {}
    assert gpu["slots"]["free"] == [1, 2, 3, 4, 5, 6, 7]


def test_shares_of_instances_are_added_up() -> None:
    gpu = with_instances(card("h100-80gb"), (("3g.40gb", 0), ("3g.40gb", 4)))
    shares = Sharing((Share("small", 2, 1024, 25.0), Share("any", None, None, None)), "report")
    wanted = WantedMps(shares, Account(0, 0))
    clients = (mps_client(1, share="small"), mps_client(2, share="any"), mps_client(3))
    daemons = [
        mps_daemon("MIG-0", "Ready", wanted, clients=clients),
        mps_daemon("MIG-1", "Ready", wanted),
    ]
    (report,) = reported(ObservedNode((gpu,)), *daemons)
    assert report["mps"] == {"any": {"used": 1}, "small": {"total": 4, "used": 1}}
    (report,) = reported(ObservedNode((gpu,)), replace(daemons[0], state="Backoff"))
    assert "mps" not in report


def test_it_is_bounded() -> None:
    """Also with more GPUs than any node has."""
    text = layout(ObservedNode(tuple(replace(OBSERVED.gpus[0], index=n) for n in range(512))))
    assert len(text.encode()) <= MAX_BYTES
    report = json.loads(text)
    assert len(report["gpus"]) + report["more"]["gpus"] == 512


# --- labels ---------------------------------------------------------------------------------------


def test_labels_add_up_the_gpus() -> None:
    empty = replace(card("h100-80gb"), uuid="GPU-2")
    assert layout_labels(ObservedNode((*OBSERVED.gpus, empty))) == {
        "nodeagent.io/free-slots": "10",
        "nodeagent.io/creatable.1g.10gb": "9",
        "nodeagent.io/creatable.1g.10gb.me": "2",
        "nodeagent.io/creatable.1g.20gb": "5",
        "nodeagent.io/creatable.2g.20gb": "4",
        "nodeagent.io/creatable.3g.40gb": "2",
        "nodeagent.io/creatable.4g.40gb": "1",
        "nodeagent.io/creatable.7g.80gb": "1",
    }


def test_labels_are_valid_for_every_card() -> None:
    for board in [board.name for board in known_boards() if board.profiles]:
        gpu = replace(card(board), mig=MigMode(current=True, pending=True))
        labels = layout_labels(ObservedNode((gpu,)))
        assert all(LABEL.fullmatch(key) for key in labels), board
        assert all(value.isdecimal() for value in labels.values()), board
        assert len(labels) == len(gpu.profiles) + 1, board


def test_labels_of_profiles_with_no_room_left_are_taken_away() -> None:
    there = {
        "nodeagent.io/free-slots": "8",
        "nodeagent.io/creatable.7g.80gb": "1",
        "nodeagent.io/cordoned": "true",
        "nvidia.com/mig.config": "all-1g.10gb",
    }
    assert label_changes(there, {"nodeagent.io/free-slots": "2"}) == {
        "nodeagent.io/free-slots": "2",
        "nodeagent.io/creatable.7g.80gb": None,
    }
    assert label_changes(there, {}) == {
        "nodeagent.io/free-slots": None,
        "nodeagent.io/creatable.7g.80gb": None,
    }


# --- topology -------------------------------------------------------------------------------------


def test_what_is_not_known_is_absent() -> None:
    assert json.loads(topology(ObservedNode((Gpu(0, "GPU-0"),)))) == {
        "version": "v1",
        "gpus": [{"uuid": "GPU-0", "index": 0}],
    }
    assert topology(ObservedNode()) == '{"version":"v1","gpus":[]}'


def test_it_is_the_same_however_the_gpus_are_split() -> None:
    """So that no change of a plan writes it."""
    empty = ObservedNode(tuple(replace(gpu, instances=(), mig=None) for gpu in OBSERVED.gpus))
    assert topology(empty) == topology(OBSERVED)


def test_topology_is_bounded() -> None:
    peers = tuple((f"GPU-{n:08d}-1111-2222-3333-444444444444", 1) for n in range(16))
    many = tuple(replace(OBSERVED.gpus[0], nvlink=NvLinks(36, 16, peers)) for _ in range(64))
    text = topology(ObservedNode(many))
    assert len(text.encode()) <= MAX_BYTES
    reported = json.loads(text)
    assert len(reported["gpus"]) + reported["more"]["gpus"] == 64
