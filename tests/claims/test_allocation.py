"""A claim's allocation, and opaque parameters: what counts, and what tenants may not say."""

from typing import Any

import pytest

from nodeagent.claims.capacity import Consumed
from nodeagent.claims.model import ClaimRefused, ClaimState
from nodeagent.claims.serving.allocation import read_state
from nodeagent.claims.serving.claim_object import Source
from nodeagent.claims.serving.configuration import read_configuration, within_class
from nodeagent.documents.bounded_yaml import read_tree
from nodeagent.documents.plan import read_plan
from nodeagent.errors import DocumentError
from nodeagent.plan.desired import MpsEntry, Replicas, ShareEntry, Shares
from nodeagent.plan.shares import TimeSlice
from tests.claims.samples import (
    DRIVER,
    MIG_DEVICE,
    POOL,
    UID,
    Json,
    allocation,
    claim_json,
    claim_object,
    config_json,
    device_config,
    mig_device,
    mig_result,
    nvidia_config,
    record,
    result_json,
    share_json,
)


def refused(claim: object, *, uid: str = UID) -> str:
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
    assert found == (mig_result(share_id=UID), admin)
    assert admin.main_request == "two"


def test_what_another_driver_shows_of_its_device() -> None:
    """One without conditions has null for them."""
    other = {"driver": "nic.example", "pool": "n", "device": "d", "conditions": None}
    claim = claim_json()
    claim["status"]["devices"] = [other]
    assert allocation(claim) == (mig_result(),)


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        (claim_json(uid="0"), 'has the uid "0" now and not "0b8f6a3e-'),
        (claim_json() | {"status": {}}, "is not allocated (read what the scheduler says: `kubectl"),
        (claim_json(result_json(driver="x")), "has no device of this node's agent"),
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
    found = refused(claim)
    assert found.startswith("claim team/trainer")
    assert message in found
    assert found.endswith(")")
    assert "`kubectl " in found


def test_time_slices_of_a_part_of_a_gpu() -> None:
    """Processes on a MIG device take turns by the driver's default, which may be asked for."""
    default = [config_json(device_config(timeSlice="default"), "FromClass")]
    [found] = allocation(claim_json(config=default))
    assert found.configuration is TimeSlice.DEFAULT


def test_under_nvidias_name() -> None:
    """Capacities have bare names, and configurations for that driver are for this one without any
    setting, the agent's own too. NVIDIA's own devices are told apart by their pool.
    """
    nvidia: Json = {"driver": "gpu.nvidia.com"}
    amounts = {"memory": "8Gi", "threads": "20", "clients": "2"}
    share = share_json(consumedCapacity=amounts, **nvidia)
    [found] = allocation(claim_json(share))
    assert (found.consumed, found.driver) == (Consumed(8 << 30, 20, 2), "gpu.nvidia.com")
    theirs = nvidia_config(strategy="TimeSlicing", timeSlicingConfig={"interval": "Short"})
    for parameters, interval in (
        (theirs, TimeSlice.SHORT),
        (device_config(timeSlice="long"), TimeSlice.LONG),
    ):
        config = [config_json(parameters, **nvidia)]
        [found] = allocation(claim_json(result_json(device="gpu", **nvidia), config=config))
        assert found.configuration is interval
    assert "no device of this node" in refused(claim_json(result_json(pool="node-1", **nvidia)))
    held = record(mig_device(result=mig_result(**nvidia)))
    for driver, state in (("gpu.nvidia.com", ClaimState.SAME), (DRIVER, ClaimState.OTHER_RESULTS)):
        assert read_state(claim_object(claim_json(result_json(driver=driver))), held) is state


# --- which configuration counts -------------------------------------------------------------------


def mps(threads: int, **more: Any) -> Json:
    """A configuration that its threads identify."""
    return device_config(mps={"clients": {"threads": threads}, **more})


def threads(*config: Json, request: str = "gpu/big") -> float | None:
    [found] = allocation(claim_json(result_json(request=request), config=list(config)))
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
    [found] = allocation(claim_json(config=config))
    assert isinstance(found.configuration, MpsEntry)
    assert (found.configuration.user, found.configuration.enforce) == ("7", "terminate")
    assert limits_of(found.configuration).threads == 2


def test_one_that_does_not_count_is_checked_too() -> None:
    bad = device_config(mps={"clients": {"thread": 5}, "repliccas": 1})
    found = refused(claim_json(config=[config_json(bad, "FromClass", requests=["gpu"])]))
    assert found.startswith('claim team/trainer: configuration of a DeviceClass for "gpu": config')
    assert "(and 1 more)" in found
    assert "did you mean" in found


def test_an_administrators_device_is_left_as_it_is() -> None:
    claim = claim_json(result_json(device="gpu", adminAccess=True), config=[config_json(mps(5))])
    [found] = allocation(claim)
    assert found.configuration is None


@pytest.mark.parametrize("device", [MIG_DEVICE])
def test_an_administrator_sees_whole_gpus_alone(device: str) -> None:
    """A part goes with the claim that it was made for, and nothing would make it again."""
    found = refused(claim_json(result_json(device=device, adminAccess=True)))
    assert f"request gpu has admin access to {device}, but admin access is to whole GPUs" in found


def test_what_is_consumed_of_a_device() -> None:
    """In the units of the capacities, however they are written; nothing of an administrator's."""
    [found] = allocation(claim_json(share_json("6553600Ki", 20, 2)))
    assert found.consumed == Consumed(6400 << 20, 20, 2)
    assert found.key == (POOL, "gpu", UID)
    [turns] = allocation(claim_json(share_json(consumedCapacity={"gpu.nvidia.com/memory": "1Gi"})))
    assert turns.consumed == Consumed(1 << 30)
    [monitor] = allocation(claim_json(share_json(adminAccess=True)))
    assert monitor.consumed is None
    found_wrong = refused(claim_json(share_json("0.5Gi")))
    assert "consumedCapacity of request gpu: '0.5Gi' is not a quantity" in found_wrong


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


# --- opaque parameters ----------------------------------------------------------------------------


def read(parameters: object, source: Source = Source.CLAIM) -> object:
    """At the second place of an allocation, for this driver."""
    path = ("config", 1)
    return read_configuration(parameters, source, path, driver=DRIVER, nvidia=False)


def refused_parameters(parameters: object, source: Source = Source.CLAIM) -> str:
    with pytest.raises(DocumentError) as caught:
        read(parameters, source)
    return str(caught.value)


def same_for_all(memory: int | None, threads: float | None, path: str, **more: Any) -> MpsEntry:
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
    assert read(device_config(timeSlice=interval.value)) is interval


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (None, "config[1]: found nothing, expected a map with the keys apiVersion, kind, mps"),
        ([], "config[1]: found a list"),
    ],
)
def test_parameters_that_are_refused(parameters: object, message: str) -> None:
    """That are no map; the faults of maps are in the table of the policy for configurations."""
    for source in Source:
        found = refused_parameters(parameters, source)
        assert message in found
        assert "(line" not in found


# --- class and claim ------------------------------------------------------------------------------


def test_a_claims_limits_under_its_classs_rules() -> None:
    """Limits are the claim's; user, enforcement and oversubscription stay the class's."""
    of_class = MpsEntry(
        "class", Replicas(2, "class"), user="1000", enforce="terminate", oversubscribe=True
    )
    own = same_for_all(2**30, 10.0, "claim")
    assert within_class(own, of_class) == same_for_all(
        2**30, 10.0, "claim", user="1000", enforce="terminate", oversubscribe=True
    )
    assert within_class(own, None) == own
    assert within_class(own, TimeSlice.LONG) == own
    assert within_class(TimeSlice.LONG, of_class) is TimeSlice.LONG
    assert within_class(None, of_class) is None
