"""What an API server checks of a pool's ResourceSlices, as far as this agent's could fail it.

From Kubernetes 1.36, pkg/apis/resource/validation/validation.go and
staging/src/k8s.io/api/resource/v1/types.go.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from nodeagent.claims.offering.resource_slices import read_quantity

Json = Mapping[str, Any]

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(rf"(?=.{{1,253}}\Z){_LABEL.pattern}(\.{_LABEL.pattern})*")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_TAINT_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_VERSION = re.compile(r"(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*)){2}")


def check_slices(slices: Sequence[Json]) -> None:
    """Assert that all slices of one pool are within the limits."""
    totals: dict[str, Json] = {}
    for one in slices:
        assert _SUBDOMAIN.fullmatch(one["metadata"]["name"])
        pool = one["spec"]["pool"]["name"]
        assert len(pool) <= 253
        assert all(map(_SUBDOMAIN.fullmatch, pool.split("/")))
        for counters in one["spec"].get("sharedCounters", ()):
            totals[counters["name"]] = counters["counters"]
            _check_counters(counters["counters"])
    devices = [device for one in slices for device in one["spec"].get("devices", ())]
    names = [device["name"] for device in devices]
    assert len(set(names)) == len(names)
    for one in slices:
        assert len(one["spec"].get("devices", ())) <= 64, "with counters or taints"
    for device in devices:
        _check_device(device, totals)


def _check_device(device: Json, totals: Mapping[str, Json]) -> None:
    assert _LABEL.fullmatch(device["name"])
    attributes, capacity = device.get("attributes", {}), device.get("capacity", {})
    assert len(attributes) + len(capacity) <= 32
    for key in (*attributes, *capacity):
        domain, slash, name = key.rpartition("/")
        assert _IDENTIFIER.fullmatch(name)
        assert not slash or (len(domain) <= 63 and _SUBDOMAIN.fullmatch(domain))
    for one in capacity.values():
        value, policy = read_quantity(one["value"]), one.get("requestPolicy")
        if policy:
            least, step = (read_quantity(policy["validRange"][key]) for key in ("min", "step"))
            default = read_quantity(policy["default"])
            assert least <= default <= value
            assert (default - least) % step == 0
            assert least + step <= value
    for value in attributes.values():
        match value:
            case {"int": int(number)}:
                assert -(2**63) <= number < 2**63
            case {"string": str(text)} | {"version": str(text)}:
                assert len(text.encode()) <= 64
                assert "string" in value or _VERSION.fullmatch(text)
    for taken in device.get("consumesCounters", ()):
        _check_counters(taken["counters"])
        assert taken["counters"].keys() <= totals[taken["counterSet"]].keys()
    taints = device.get("taints", ())
    assert len(taints) <= 16
    for taint in taints:
        domain, slash, name = taint["key"].rpartition("/")
        assert _TAINT_NAME.fullmatch(name)
        assert not slash or _SUBDOMAIN.fullmatch(domain)


def _check_counters(counters: Json) -> None:
    assert len(counters) <= 32
    assert all(map(_LABEL.fullmatch, counters))
