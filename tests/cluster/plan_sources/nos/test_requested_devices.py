"""What one of nos' gigabytes is, and the configuration that nos writes for MPS nodes."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nodeagent.cluster.plan_sources.nos.requested_devices import (
    MEMORY_LABEL,
    card_memory,
    mps_entry,
    read_configuration,
    share_memory,
)
from nodeagent.documents.mps import read_quantity
from nodeagent.plan.shares import MIB
from tests.cluster.plan_sources.nos.nodes import gpu


def test_share_memory() -> None:
    """So many parts of the card as nos counts it; without knowing the card, what the name says."""
    cases: list[tuple[int, int, str]] = [
        (10, 40960, "9990Mi"),  # A100: 41 of nos' gigabytes
        (41, 40960, "40960Mi"),
        (10, 81559, "9946Mi"),  # H100: 82
        (82, 81559, "81559Mi"),
        (4, 15360, "3840Mi"),  # T4: 16
        (10, 0, "10G"),
    ]
    for size, card, memory in cases:
        assert share_memory(size, card) == memory


@given(
    st.integers(1, 10**6).flatmap(
        lambda card: st.tuples(
            st.just(card),
            st.lists(st.integers(1, -(-card // 1000)), min_size=1, max_size=60),
        )
    )
)
def test_what_nos_fits_in_fits(drawn: tuple[int, list[int]]) -> None:
    """Shares that add up to no more than nos' gigabytes of a card are no more than the card."""
    card, sizes = drawn
    while sum(sizes) > -(-card // 1000):
        sizes.pop()
    assert sum(read_quantity(share_memory(size, card)) for size in sizes) <= card * MIB


def test_no_less_than_the_name_says() -> None:
    """On these cards a share of N has at least N decimal gigabytes."""
    cases: list[str] = ["a30", "a100-40gb", "a100-80gb", "h100-80gb", "t4", "l40s"]
    for board in cases:
        card = card_memory(gpu(0, board), {})
        for size in range(1, -(-card // 1000) + 1):
            assert read_quantity(share_memory(size, card)) >= (size * 10**9) - MIB


def test_card_memory() -> None:
    """The driver's word comes first, the label's second; nonsense on the label is not a word."""
    known, unknown = gpu(0), gpu(0, memory=0)
    assert card_memory(known, {MEMORY_LABEL: "1"}) == 40960
    assert card_memory(unknown, {MEMORY_LABEL: "40960"}) == 40960
    assert card_memory(None, {MEMORY_LABEL: "40960"}) == 40960
    for nonsense in ("", "-1", "4e4", "\u0664\u0660", "9" * 5000, " 40960"):
        assert card_memory(None, {MEMORY_LABEL: nonsense}) == 0


def test_mps_entry() -> None:
    """Shares in the order of their size, for nos' user, with all threads."""
    assert mps_entry({20: 1, 5: 2}, 40960) == {
        "shares": {
            "5gb": {"count": 2, "memory": "4995Mi"},
            "20gb": {"count": 1, "memory": "19980Mi"},
        },
        "user": 1000,
    }


# --- the device plugin's configuration ------------------------------------------------------------

TEN: dict[str, Any] = {
    "name": "nvidia.com/gpu",
    "rename": "gpu-10gb",
    "memoryGB": 10,
    "replicas": 2,
    "devices": ["0"],
}


def written(*resources: object) -> str:
    """A configuration with these resources."""
    return json.dumps({"version": "v1", "sharing": {"mps": {"resources": list(resources)}}})


def test_shares() -> None:
    """Each resource is so many shares on each of its devices."""
    two = {**TEN, "rename": "gpu-5gb", "memoryGB": 5, "replicas": 3, "devices": ["1", 2]}
    reading = read_configuration(written(TEN, two))
    found = [(a.index, a.profile, a.count) for a in reading.devices]
    assert found == [(0, "10gb", 2), (1, "5gb", 3), (2, "5gb", 3)]
    assert reading.devices[0].where == "sharing.mps.resources[0].devices"
    assert reading.wrong == ()


def test_no_shares() -> None:
    """A configuration of another kind asks for no shares, and that is no fault of it."""
    cases: list[str] = [
        "version: v1\n",
        "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n",
        "sharing: {mps: {}}\n",
        "sharing: []\n",
        "[]",
        "",
        written({**TEN, "replicas": 0}),
    ]
    for text in cases:
        reading = read_configuration(text)
        assert not reading.devices
        assert not reading.wrong


def test_wrong() -> None:
    """What cannot be meant is refused, with its place and what would be right there."""
    cases: list[tuple[str, str, str]] = [
        (written({**TEN, "rename": "shared"}), "resources[0].rename", "gpu-<N>gb"),
        (written({**TEN, "rename": "10gb"}), "resources[0].rename", "gpu-<N>gb"),
        (written({**TEN, "rename": None}), "resources[0].rename", "gpu-<N>gb"),
        (written({**TEN, "memoryGB": 20}), "resources[0].memoryGB", "10, as in rename"),
        (written({**TEN, "replicas": "2"}), "resources[0].replicas", "a number from 0"),
        (written({**TEN, "replicas": -1}), "resources[0].replicas", "a number from 0"),
        (written({**TEN, "replicas": True}), "resources[0].replicas", "a number from 0"),
        (written({**TEN, "devices": "all"}), "resources[0].devices", "a list of GPU indices"),
        (written(TEN, {**TEN, "devices": ["GPU-1"]}), "resources[1].devices[0]", "index of a GPU"),
        (written({**TEN, "devices": ["99999"]}), "resources[0].devices[0]", "the index of a GPU"),
        (written("x"), "resources[0]", "a map"),
        ("sharing: {mps: {resources: x}}", "resources", "a list"),
    ]
    for text, path, right in cases:
        (problem,) = read_configuration(text).wrong
        assert problem.path == f"sharing.mps.{path}"
        assert right in problem.remedy


def test_unreadable() -> None:
    """What is no YAML, or hostile, is refused like any document."""
    cases: list[str] = ["{", "a: &b 1\nc: *b\n", "\x00", "x" * (1 << 21)]
    for text in cases:
        assert read_configuration(text).wrong
