"""What the API server checks of a ResourceSlice, checked before it is sent.

From Kubernetes 1.36, pkg/apis/resource/validation/validation.go and
staging/src/k8s.io/api/resource/v1/types.go. What a slice never has here is not checked: binding
conditions, node selectors, lists, request policies; nor what is so however an offer is: how many
sets of counters there are, that a slice has either these or devices, and no more than fit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from nodeagent.claims.offering.devices import LONGEST_VALUE
from nodeagent.errors import NodeagentError

MOST_DEVICES_WITH_COUNTERS = 64  # also where a device has taints; else twice as many

_MOST_COUNTERS = 32  # of a set, and of a device from one set
_MOST_PROPERTIES = 32  # attributes and capacity together
_MOST_TAINTS = 16
_LONGEST_POOL = _LONGEST_SUBDOMAIN = 253
_LONGEST_LABEL = _LONGEST_DOMAIN = 63
_LONGEST_IDENTIFIER = 32

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TAINT_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_VERSION = re.compile(r"(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*)){2}")  # without labels: we send none
_INTEGERS = range(-(2**63), 2**63)

Json = Mapping[str, Any]


class SliceRefused(NodeagentError):
    """A ResourceSlice is not as the API server, or this agent, wants it; the message says where."""


def check_slices(slices: Sequence[Json]) -> None:
    """Check all slices of one pool; raises SliceRefused at the first limit that is passed."""
    totals: dict[str, Json] = {}
    for one in slices:
        for counters in one["spec"].get("sharedCounters", ()):
            totals[counters["name"]] = counters["counters"]
    names: set[str] = set()
    for one in slices:
        where = f"ResourceSlice {one['metadata']['name']}"
        _check_slice(where, one)
        for device in one["spec"].get("devices", ()):
            name = f"{where}: device {device['name']}"
            _require(device["name"] not in names, f"{name} is there twice in its pool")
            names.add(device["name"])
            _check_device(name, device, totals)


def _check_slice(where: str, one: Json) -> None:
    spec, pool = one["spec"], one["spec"]["pool"]
    _check_name(where, "its name", one["metadata"]["name"], _SUBDOMAIN, _LONGEST_SUBDOMAIN)
    _check_size(f"{where}: its pool's name", len(pool["name"]), _LONGEST_POOL, "characters")
    for part in pool["name"].split("/"):
        _check_name(where, "a part of its pool's name", part, _SUBDOMAIN, _LONGEST_SUBDOMAIN)
    for counters in spec.get("sharedCounters", ()):
        _check_counters(f"{where}: counter set {counters['name']}", counters["counters"])


def _check_device(where: str, device: Json, totals: Mapping[str, Json]) -> None:
    _check_name(where, "its name", device["name"], _LABEL, _LONGEST_LABEL)
    attributes, capacity = device.get("attributes", {}), device.get("capacity", {})
    properties = len(attributes) + len(capacity)
    _check_size(where, properties, _MOST_PROPERTIES, "attributes and capacities together")
    for key in (*attributes, *capacity):
        _check_key(where, key)
    for key, value in attributes.items():
        _check_attribute(f"{where}: attribute {key}", value)
    for one in device.get("consumesCounters", ()):
        _check_counters(where, one["counters"])
        known = totals.get(one["counterSet"], {})
        for counter in one["counters"]:
            text = f"{where} takes from counter {one['counterSet']}/{counter}, which its pool lacks"
            _require(counter in known, text)
    taints = device.get("taints", ())
    _check_size(where, len(taints), _MOST_TAINTS, "taints")
    for taint in taints:
        _check_taint(where, taint)


def _check_counters(where: str, counters: Json) -> None:
    _check_size(where, len(counters), _MOST_COUNTERS, "counters")
    for counter in counters:
        _check_name(where, f"the name of counter {counter}", counter, _LABEL, _LONGEST_LABEL)


def _check_key(where: str, key: str) -> None:
    domain, slash, name = key.rpartition("/")
    _check_name(where, f"the name of {key}", name, _IDENTIFIER, _LONGEST_IDENTIFIER)
    if slash:
        _check_name(where, f"the domain of {key}", domain, _SUBDOMAIN, _LONGEST_DOMAIN)


def _check_attribute(where: str, value: Json) -> None:
    match value:
        case {"int": int(number)}:
            _require(number in _INTEGERS, f"{where} is beyond 64 bits")
        case {"string": str(text)} | {"version": str(text)}:
            _check_size(where, len(text.encode()), LONGEST_VALUE, "bytes")
            valid = "version" not in value or _VERSION.fullmatch(text)
            _require(bool(valid), f"{where} is {text}, which is not a semantic version")


def _check_taint(where: str, taint: Json) -> None:
    key = taint["key"]
    domain, slash, name = key.rpartition("/")
    _check_name(where, f"the name of taint {key}", name, _TAINT_NAME, _LONGEST_LABEL)
    if slash:
        _check_name(where, f"the domain of taint {key}", domain, _SUBDOMAIN, _LONGEST_SUBDOMAIN)


def _check_name(where: str, what: str, text: str, form: re.Pattern[str], longest: int) -> None:
    _check_size(f"{where}: {what}", len(text), longest, "characters")
    _require(bool(form.fullmatch(text)), f"{where}: {what} cannot be {text!r}")


def _check_size(where: str, size: int, most: int, unit: str) -> None:
    _require(size <= most, f"{where} has {size} {unit}, and Kubernetes takes {most}")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise SliceRefused(otherwise)
