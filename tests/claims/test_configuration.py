"""Opaque parameters: the plan's words, and what tenants may not say."""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.claims.serving.claim_object import Source
from nodeagent.claims.serving.configuration import read_configuration, within_class
from nodeagent.documents.bounded_yaml import read_tree
from nodeagent.documents.plan import read_plan
from nodeagent.errors import DocumentError
from nodeagent.plan.desired import MpsEntry, Replicas, ShareEntry, Shares
from nodeagent.plan.shares import TimeSlice
from tests.claims.samples import DRIVER, device_config


def read(parameters: object, source: Source = Source.CLAIM) -> object:
    """At the second place of an allocation, for this driver."""
    path = ("config", 1)
    return read_configuration(parameters, source, path, driver=DRIVER, nvidia=False)


def refused(parameters: object, source: Source = Source.CLAIM) -> str:
    """The first fault with its remedy."""
    with pytest.raises(DocumentError) as caught:
        read(parameters, source)
    return str(caught.value)


def clients(memory: int | None, threads: float | None, path: str, **more: Any) -> MpsEntry:
    """The same limits for every client."""
    below = f"{path}.clients"
    share = ShareEntry("clients", None, memory, threads, below)
    return MpsEntry(path, Shares((share,), below), **more)


@pytest.mark.parametrize(
    "mps",
    [
        {"replicas": 4},
        {"clients": {"memory": "8Gi", "threads": 25}},
        {"clients": {}},
        {"shares": {"small": {"count": 2, "memory": "8Gi", "threads": 12.5}}},
    ],
)
def test_mps_means_what_it_means_in_a_plan(mps: dict[str, Any]) -> None:
    """But for the path, the entry is the one that a plan with the same words has."""
    plan = {"version": "v1", "gpus": [{"devices": [0], "mps": mps}]}
    entry = read_plan(read_tree(str(plan).replace("'", '"')), "").entries[0].mps
    found = read(device_config(mps=mps))
    assert isinstance(found, MpsEntry)
    assert str(found).replace("config[1]", "gpus[0]") == str(entry)


@pytest.mark.parametrize("interval", list(TimeSlice))
def test_a_time_slice(interval: TimeSlice) -> None:
    """One of the plan's words."""
    assert read(device_config(timeSlice=interval.value)) is interval


@pytest.mark.parametrize("key", ["user", "enforce", "oversubscribe"])
def test_what_only_an_administrator_may_say(key: str) -> None:
    """A class may; of a claim it is refused with the key, even where it changes nothing."""
    value = {"user": 1000, "enforce": "report", "oversubscribe": False}[key]
    parameters = device_config(mps={"replicas": 2, key: value})
    assert isinstance(read(parameters, Source.CLASS), MpsEntry)
    assert refused(parameters) == (
        f"config[1].mps.{key}: {key} is allowed in a DeviceClass only, because tenants write "
        f"claims (leave {key} out, or use a class that has it)"
    )


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (None, "config[1]: found nothing, expected a map with the keys apiVersion, kind, mps"),
        ([], "config[1]: found a list"),
        ({}, "config[1]: the key apiVersion is missing"),
        (device_config(), "config[1]: the configuration says nothing (give it mps or timeSlice)"),
        (device_config(timeSlice="long", mps={"replicas": 2}), "a device is shared in one way or"),
        (device_config(mps={"clients": {"threads": True}}), "mps.clients.threads: found true"),
        (
            device_config(mps={"shares": {"a": {}, "b": {}}}),
            "config[1].mps.shares: found 2 shares, but all containers of a claim have the same",
        ),
        (device_config() | {"kind": ["GpuConfig"]}, "kind: found a list"),
        (device_config() | {"apiVersion": "gpu.nodeagent.io/v2"}, "expected gpu.nodeagent.io/v1"),
    ],
)
def test_what_is_refused(parameters: object, message: str) -> None:
    """Each with its place, and what was probably meant; lines are not named, for there are none."""
    for source in Source:
        found = refused(parameters, source)
        assert message in found
        assert "(line" not in found


# --- class and claim ------------------------------------------------------------------------------


def test_a_claims_limits_under_its_classs_rules() -> None:
    """Limits are the claim's; user, enforcement and oversubscription stay the class's."""
    of_class = MpsEntry(
        "class", Replicas(2, "class"), user="1000", enforce="terminate", oversubscribe=True
    )
    own = clients(2**30, 10.0, "claim")
    assert within_class(own, of_class) == clients(
        2**30, 10.0, "claim", user="1000", enforce="terminate", oversubscribe=True
    )
    assert within_class(own, None) == own
    assert within_class(own, TimeSlice.LONG) == own
    assert within_class(TimeSlice.LONG, of_class) is TimeSlice.LONG
    assert within_class(None, of_class) is None
