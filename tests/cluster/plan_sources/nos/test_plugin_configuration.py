"""The device plugin's configuration that nos writes for MPS nodes."""

from __future__ import annotations

import json
from typing import Any

from nodeagent.cluster.plan_sources.nos.requested_devices import read_configuration

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
