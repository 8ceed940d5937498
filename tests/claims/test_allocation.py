"""A ResourceClaim's allocation: what counts for each device, and hostile objects."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from msgspec import DecodeError

from nodeagent.claims.model import ClaimAllocation, ClaimRefused, ClaimState
from nodeagent.claims.serving.allocation import read_state
from nodeagent.plan.desired import MpsEntry, ShareEntry, Shares
from nodeagent.plan.shares import TimeSlice
from tests.claims.samples import (
    MIG_DEVICE,
    POOL,
    UID,
    Json,
    allocation,
    claim_json,
    claim_object,
    config_json,
    device_config,
    mig_result,
    nvidia_config,
    record,
    result_json,
)
from tests.draws import draws


def refused(claim: object, *, uid: str = UID) -> str:
    """The sentence with its remedy."""
    with pytest.raises(ClaimRefused) as caught:
        allocation(claim, uid=uid)
    return str(caught.value)


def test_the_devices_of_this_driver() -> None:
    """Others are passed over, and so are keys that are not known."""
    found = allocation(
        claim_json(
            result_json(driver="gpu.nvidia.com", device="GPU_0", pool="?"),
            result_json(later={"release": 1}, shareID=UID),
            result_json(request="two/big", device="gpu", adminAccess=True),
        )
    )
    admin = mig_result(request="two/big", device="gpu", admin_access=True)
    assert found == ClaimAllocation(UID, "team", "trainer", (mig_result(share_id=UID), admin))
    assert admin.main_request == "two"


def test_what_another_driver_shows_of_its_device() -> None:
    """One without conditions has null for them."""
    other = {"driver": "nic.example", "pool": "n", "device": "d", "conditions": None}
    claim = claim_json()
    claim["status"]["devices"] = [other]
    assert allocation(claim).results == (mig_result(),)


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        (claim_json(uid="0"), 'has the uid "0" now and not "0b8f6a3e-'),
        (
            claim_json() | {"status": {}},
            "is not allocated (read what the scheduler says: `kubectl",
        ),
        (claim_json(result_json(driver="x")), "has no device of gpu.nodeagent.io"),
        (
            claim_json(
                result_json(device="gpu"), result_json(request="m", device="gpu", adminAccess=True)
            ),
            f"was allocated the device gpu of {POOL} twice",
        ),
        (
            claim_json(config=[config_json(device_config(timeSlice="long"))]),
            f"requests timeSlice on {MIG_DEVICE}, but a time slice is for a whole GPU, and",
        ),
    ],
)
def test_what_is_refused(claim: object, message: str) -> None:
    """With the claim, the field, and a remedy."""
    found = refused(claim)
    assert found.startswith("claim team/trainer")
    assert message in found
    assert found.endswith(")")
    assert "`kubectl " in found


def test_time_slices_of_a_part_of_a_gpu() -> None:
    """Processes on a MIG device take turns by the driver's default, which may be asked for."""
    default = [config_json(device_config(timeSlice="default"), "FromClass")]
    [found] = allocation(claim_json(config=default)).results
    assert found.configuration is TimeSlice.DEFAULT


# --- which configuration counts -------------------------------------------------------------------


def mps(threads: int, **more: Any) -> Json:
    """A configuration that its threads identify."""
    return device_config(mps={"clients": {"threads": threads}, **more})


def threads(*config: Json, request: str = "gpu/big") -> float | None:
    """What counts for the request."""
    [found] = allocation(claim_json(result_json(request=request), config=list(config))).results
    if found.configuration is None:
        return None
    return limits_of(found.configuration).threads


def limits_of(configuration: object) -> ShareEntry:
    """Of all clients that the claim's containers are."""
    assert isinstance(configuration, MpsEntry)
    assert isinstance(configuration.clients, Shares)
    [share] = configuration.clients.entries
    return share


def test_whom_a_configuration_concerns() -> None:
    """All requests where it names none; a main request's name stands for its subrequests."""
    assert threads() is None
    for requests in (None, [], ["gpu"], ["gpu/big"], ["other", "gpu"]):
        assert threads(config_json(mps(1), requests=requests)) == 1
    for requests in (["other"], ["gpu/small"], ["gp"]):
        assert threads(config_json(mps(1), requests=requests)) is None


def test_which_of_several_counts() -> None:
    """The claim's before its class's, wherever they stand; of each the last."""
    by_class, by_claim = "FromClass", "FromClaim"
    assert threads(config_json(mps(1), by_class), config_json(mps(2), by_class)) == 2
    assert threads(config_json(mps(1), by_claim), config_json(mps(2), by_class)) == 1
    assert threads(config_json(mps(1), by_claim), config_json(mps(2), by_claim)) == 2
    assert threads(config_json(mps(1)), config_json(mps(2), requests=["other"])) == 1
    assert threads(config_json(mps(1)), config_json(mps(2), driver="gpu.nvidia.com")) == 1
    assert threads(config_json(mps(1)), {"source": "FromClaim"}) == 1


def test_what_the_class_alone_says_stays() -> None:
    """Also where the claim has limits of its own."""
    config = [config_json(mps(1, user=7, enforce="terminate"), "FromClass"), config_json(mps(2))]
    [found] = allocation(claim_json(config=config)).results
    assert isinstance(found.configuration, MpsEntry)
    assert (found.configuration.user, found.configuration.enforce) == ("7", "terminate")
    assert limits_of(found.configuration).threads == 2


def test_one_that_does_not_count_is_checked_too() -> None:
    """A fault is reported with its writer and the requests that it is for."""
    bad = device_config(mps={"clients": {"thread": 5}, "repliccas": 1})
    found = refused(claim_json(config=[config_json(bad, "FromClass", requests=["gpu"])]))
    assert found.startswith('claim team/trainer: configuration of a DeviceClass for "gpu": config')
    assert "(and 1 more)" in found
    assert "did you mean" in found


def test_an_administrators_device_is_left_as_it_is() -> None:
    """No configuration concerns it."""
    claim = claim_json(result_json(device="gpu", adminAccess=True), config=[config_json(mps(5))])
    [found] = allocation(claim).results
    assert found.configuration is None


@pytest.mark.parametrize("device", [MIG_DEVICE, "mps-8gi-0"])
def test_an_administrator_sees_whole_gpus_alone(device: str) -> None:
    """A part goes with the claim that it was made for, and nothing would make it again."""
    found = refused(claim_json(result_json(device=device, adminAccess=True)))
    assert f"request gpu has admin access to {device}, but admin access is to whole GPUs" in found


def test_two_devices_with_mps_in_one_request() -> None:
    """A program has one daemon; two requests can go to two containers."""
    both = [result_json(), result_json(device="gpu")]
    found = refused(claim_json(*both, config=[config_json(mps(5))]))
    assert "request gpu has 2 devices with MPS" in found
    both[1]["request"] = "other"
    assert len(allocation(claim_json(*both, config=[config_json(mps(5))])).results) == 2


# --- whatever the object is -----------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("claim", "state"),
    [
        (None, ClaimState.GONE),
        (claim_json(), ClaimState.SAME),
        (claim_json(uid="5e7"), ClaimState.GONE),
        (claim_json() | {"status": {}}, ClaimState.DEALLOCATED),
        (claim_json() | {"status": {"allocation": None}}, ClaimState.DEALLOCATED),
        (claim_json(result_json(device="gpu")), ClaimState.OTHER_RESULTS),
        (claim_json(result_json(driver="other.example.org")), ClaimState.OTHER_RESULTS),
        (claim_json(config=[config_json({"kind": "?"})]), ClaimState.UNKNOWN),
    ],
)
def test_what_a_recorded_claim_is_now(claim: object, state: ClaimState) -> None:
    """One that cannot be read is not known, so that nothing of it is released."""
    found = claim_object(claim) if claim else None
    assert read_state(found, record()) is state


def places(value: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to all values in it."""
    keys: list[Any] = list(value) if isinstance(value, dict) else []
    if isinstance(value, list):
        keys = list(range(len(value)))
    below = [one for key in keys for one in places(value[key], (*path, key))]  # type: ignore[index]
    return [path, *below]


FULL = claim_json(
    result_json(shareID=UID, adminAccess=False),
    config=[
        config_json(device_config(mps={"clients": {"memory": "8Gi", "threads": 25}})),
        config_json(nvidia_config(strategy="MPS", mpsConfig={}), "FromClass", requests=["gpu"]),
    ],
)


def outcome(claim: object, *, nvidia: bool) -> ClaimAllocation | str:
    """What was read, or the refusal."""
    try:
        return allocation(claim, nvidia=nvidia)
    except (ClaimRefused, DecodeError) as error:
        return str(error)


@seed(12)
@settings(max_examples=draws(200))
@given(where=st.integers(0, 10**6), value=VALUES, nvidia=st.booleans())
def test_any_value_in_any_place(where: int, value: object, nvidia: bool) -> None:
    """It is read or refused; what is refused of a configuration in one printable line."""
    claim: Any = copy.deepcopy(FULL)
    paths = places(claim)
    path = paths[where % len(paths)]
    if not path:
        claim = value
    else:
        above = claim
        for key in path[:-1]:
            above = above[key]
        above[path[-1]] = value
    found = outcome(claim, nvidia=nvidia)
    assert isinstance(found, ClaimAllocation) or (found.isprintable() and len(found) < 1000)
