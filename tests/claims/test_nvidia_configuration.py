"""Claims that were written for NVIDIA's driver: what they come to, where they are honoured."""

from typing import Any

import pytest

from nodeagent.claims.model import ClaimRefused, ClaimState, Configuration, RecordPhase
from nodeagent.claims.serving.allocation import read_state
from nodeagent.plan.desired import MpsEntry, ShareEntry, Shares
from nodeagent.plan.shares import TimeSlice
from tests.claims.samples import (
    GPU,
    MIG_DEVICE,
    Json,
    allocation,
    claim_json,
    claim_object,
    config_json,
    device_config,
    mig_device,
    nvidia_config,
    record,
    result_json,
)

PATH = "config[0].sharing.mpsConfig"
WHOLE = {"request": "gpu", "device": "gpu"}
LIMITS: Json = {"defaultActiveThreadPercentage": 50, "defaultPinnedDeviceMemoryLimit": "10Gi"}
KINDS = {"gpu": "GpuConfig", MIG_DEVICE: "MigDeviceConfig"}


def nvidias(parameters: Json, source: str = "FromClaim", **changes: Any) -> Json:
    return config_json(parameters, source, **{"driver": "gpu.nvidia.com", **changes})


def honoured(*config: Json, results: tuple[Json, ...] = ({},)) -> list[Configuration | None]:
    """What counts for each result, a MIG device where it says nothing else."""
    claim = claim_json(*(result_json(**one) for one in results), config=list(config))
    return [one.configuration for one in allocation(claim, nvidia=True)]


def refused(*config: Json, results: tuple[Json, ...] = ({},), nvidia: bool = True) -> str:
    claim = claim_json(*(result_json(**one) for one in results), config=list(config))
    with pytest.raises(ClaimRefused) as caught:
        allocation(claim, nvidia=nvidia)
    return str(caught.value)


def mps(
    memory: int | None = None, threads: float | None = None, path: str = PATH, **more: Any
) -> MpsEntry:
    return MpsEntry(
        path, Shares((ShareEntry("clients", None, memory, threads, path),), path), **more
    )


@pytest.mark.parametrize(
    ("sharing", "gpu", "mig"),
    [
        ({}, None, None),
        ({"strategy": "TimeSlicing"}, TimeSlice.DEFAULT, None),
        ({"strategy": "MPS"}, mps(path="config[0].sharing"), mps(path="config[0].sharing")),
        ({"strategy": "MPS", "mpsConfig": LIMITS}, mps(10 * 2**30, 50.0), mps(10 * 2**30, 50.0)),
    ],
)
@pytest.mark.parametrize("driver", ["gpu.nvidia.com", "gpu.nodeagent.io"])
def test_what_is_shared(
    sharing: Json, gpu: Configuration | None, mig: Configuration | None, driver: str
) -> None:
    """As DeviceConfig would say it; on a MIG device there is no time slice to set."""
    for device, expected in (("gpu", gpu), (MIG_DEVICE, mig)):
        config = nvidias(nvidia_config(KINDS[device], **sharing), driver=driver)
        assert honoured(config, results=({"device": device},)) == [expected]


def test_each_kind_is_for_its_devices() -> None:
    """Others are passed over, as NVIDIA's driver does it; so are alternatives of a request."""
    both = (WHOLE, {"request": "slice"})
    long = nvidia_config(strategy="TimeSlicing", timeSlicingConfig={"interval": "Long"})
    limits = nvidia_config("MigDeviceConfig", strategy="MPS", mpsConfig=LIMITS)
    found = honoured(nvidias(limits), nvidias(long), results=both)
    assert found == [TimeSlice.LONG, mps(10 * 2**30, 50.0)]
    alternative = ({"request": "gpu/slice"},)
    assert honoured(nvidias(long, requests=["gpu"]), results=alternative) == [None]


@pytest.mark.parametrize(
    ("kind", "device", "remedy"),
    [
        ("GpuConfig", MIG_DEVICE, "(write MigDeviceConfig; it is written in spec."),
        ("MigDeviceConfig", "gpu", "(write GpuConfig; it is written in spec."),
    ],
)
def test_a_kind_that_names_the_request_of_another(kind: str, device: str, remedy: str) -> None:
    """Is refused, with the one that fits."""
    config = nvidias(nvidia_config(kind, strategy="MPS"), requests=["gpu"])
    found = refused(config, results=({"device": device},))
    assert f'the claim for "gpu": config[0].kind: found {kind}, which is not for {device} ' in found
    assert remedy in found


def test_which_of_several_counts() -> None:
    """One that was written for this driver before NVIDIA's of the same writer, wherever they stand;
    the claim's before its class's.
    """
    whole = (WHOLE,)
    short = nvidia_config(strategy="TimeSlicing", timeSlicingConfig={"interval": "Short"})
    own = device_config(timeSlice="long")
    assert honoured(config_json(own), nvidias(short), results=whole) == [TimeSlice.LONG]
    assert honoured(nvidias(short), config_json(own), results=whole) == [TimeSlice.LONG]
    for of_class in (config_json(own, "FromClass"), nvidias(nvidia_config(), "FromClass")):
        assert honoured(nvidias(short), of_class, results=whole) == [TimeSlice.SHORT]


def test_whom_it_runs_as_is_said_by_classes() -> None:
    """Of this driver or of NVIDIA's; a claim's limits hold beside it."""
    limits = nvidias(nvidia_config("MigDeviceConfig", strategy="MPS", mpsConfig=LIMITS))
    of_class = device_config(mps={"replicas": 2, "user": 7, "enforce": "terminate"})
    expected = mps(10 * 2**30, 50.0, user="7", enforce="terminate")
    assert honoured(limits, config_json(of_class, "FromClass")) == [expected]
    everybody = nvidia_config("MigDeviceConfig", strategy="MPS", mpsConfig={"multiUser": True})
    assert honoured(limits, nvidias(everybody, "FromClass")) == [mps(10 * 2**30, 50.0, user="any")]
    assert "multiUser: multiUser runs the MPS server as root, and tenants" in refused(
        nvidias(everybody)
    )


@pytest.mark.parametrize(
    ("device", "name"), [(MIG_DEVICE, "0"), ("gpu", "0"), ("gpu", GPU), ("gpu", GPU.lower())]
)
def test_a_limit_of_one_device(device: str, name: str) -> None:
    """It is the claim's only one, by index or UUID."""
    limits = LIMITS | {"defaultPerDevicePinnedMemoryLimit": {name: "5Gi"}}
    config = nvidias(nvidia_config(KINDS[device], strategy="MPS", mpsConfig=limits))
    assert honoured(config, results=({"device": device},)) == [mps(5 * 2**30, 50.0)]


@pytest.mark.parametrize(
    ("limits", "results", "message"),
    [
        ({"1": "5Gi"}, (WHOLE,), 'found "1", but it is for the configuration'),
        ({GPU: "5Gi"}, ({},), f'found "{GPU}", but it is for'),
        (
            {"0": "5Gi"},
            (WHOLE, WHOLE | {"request": "b", "pool": "n/gpu-2"}),
            'found "0", but it is for',
        ),
        ({"0": "5Gi", "1": "5Gi"}, (WHOLE,), "found 2 devices, but it is for the configuration"),
    ],
)
def test_a_limit_of_a_device_that_there_is_not(
    limits: Json, results: tuple[Json, ...], message: str
) -> None:
    """There is one limit, for one device."""
    kind = KINDS[result_json(**results[0])["device"]]
    per_device = {"defaultPerDevicePinnedMemoryLimit": limits}
    found = refused(
        nvidias(nvidia_config(kind, strategy="MPS", mpsConfig=per_device)), results=results
    )
    assert f"{PATH}.defaultPerDevicePinnedMemoryLimit: {message}" in found
    assert "a configuration for each request" in found
    assert "defaultPinnedDeviceMemoryLimit" in found


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            nvidia_config(strategy="MPS", mpsConfig={"defaultActiveThreadPercentage": 0}),
            "defaultActiveThreadPercentage: found 0, expected a whole number from 1 to 100",
        ),
        (
            nvidia_config("ComputeDomainChannelConfig"),
            "write DeviceConfig of gpu.nodeagent.io/v1 for the drive",
        ),
        ([], "config[0].kind: found nothing, expected GpuConfig or MigDeviceConfig"),
    ],
)
def test_what_is_refused(parameters: Any, message: str) -> None:
    """Of what the policy for configurations does not refuse at the same place."""
    found = refused(nvidias(parameters))
    assert found.startswith("claim team/trainer: configuration of the claim: config[0]")
    assert message in found


# --- where it is not honoured ---------------------------------------------------------------------


@pytest.mark.parametrize("driver", ["gpu.nvidia.com", "gpu.nodeagent.io"])
@pytest.mark.parametrize(
    ("source", "writer"), [("FromClaim", "the claim"), ("FromClass", "a DeviceClass")]
)
def test_a_node_that_does_not_honour_them(driver: str, source: str, writer: str) -> None:
    """Its pods would run without the limits that they ask for."""
    config = nvidias(nvidia_config("MigDeviceConfig", strategy="MPS"), source, driver=driver)
    assert (
        f'configuration of {writer}: config[0].kind: found "MigDeviceConfig" of NVIDIA\'s driver, '
        "which this node does not honour (set dra.nvidia_configs: true for the node's agent, or "
        "write gpu.nodeagent.io/v1 DeviceConfig with mps or timeSlice for the driver "
        "gpu.nodeagent.io; it is written in spec."
    ) in refused(config, nvidia=False)


def test_one_without_a_kind_that_is_known() -> None:
    """It may be for any device."""
    assert 'found "VfioDeviceConfig" of NVIDIA' in refused(
        nvidias(nvidia_config("VfioDeviceConfig")), nvidia=False
    )
    assert "found a configuration of NVIDIA" in refused(nvidias({}), nvidia=False)


@pytest.mark.parametrize(
    ("theirs", "own"),
    [("FromClaim", "FromClaim"), ("FromClass", "FromClaim"), ("FromClass", "FromClass")],
)
def test_a_writer_who_knows_both_drivers(theirs: str, own: str) -> None:
    """Who wrote another for this driver means nodes of both: each driver reads its own."""
    written = config_json(device_config(timeSlice="long"), own)
    claim = claim_json(result_json(**WHOLE), config=[written, nvidias(nvidia_config(), theirs)])
    assert allocation(claim)[0].configuration is TimeSlice.LONG


def test_a_claims_own_is_not_replaced_by_its_classs() -> None:
    """The class's would count, and not what the claim asks for."""
    of_class = config_json(device_config(timeSlice="long"), "FromClass")
    config = (of_class, nvidias(nvidia_config()))
    assert "which this node does not honour" in refused(*config, results=(WHOLE,), nvidia=False)


@pytest.mark.parametrize(
    "config",
    [
        nvidias(nvidia_config("MigDeviceConfig")),
        nvidias(nvidia_config(), requests=["other"]),
        nvidias(nvidia_config(), driver="nic.example"),
    ],
    ids=["another kind", "another request", "another driver"],
)
def test_what_no_device_is_concerned_by(config: Json) -> None:
    """It would say nothing where it is honoured, either."""
    claim = claim_json(result_json(**WHOLE), config=[config])
    assert allocation(claim)[0].configuration is None


def test_a_claim_with_devices_of_both_drivers() -> None:
    """What is written for NVIDIA's driver is that driver's, then."""
    theirs = result_json(driver="gpu.nvidia.com", request="theirs", pool="node-1", device="gpu-0")
    config = nvidias({"kind": "GpuConfg"})
    claim = claim_json(result_json(**WHOLE), theirs, config=[config])
    for nvidia in (False, True):
        assert [one.configuration for one in allocation(claim, nvidia=nvidia)] == [None]


@pytest.mark.parametrize("driver", ["gpu.nvidia.com", "gpu.nodeagent.io"])
def test_a_prepared_claim_is_the_same_under_either_setting(driver: str) -> None:
    """A changed setting takes no device from a pod; if it cannot be read, nothing is released."""
    limits = nvidia_config("MigDeviceConfig", strategy="MPS", mpsConfig=LIMITS)
    claim = claim_json(config=[nvidias(limits, driver=driver)])
    [result] = allocation(claim, nvidia=True)
    prepared = record(mig_device(result=result), phase=RecordPhase.READY)
    assert read_state(claim_object(claim), prepared) is ClaimState.SAME
    other = claim_json(result_json(device="mig-1g-10gb-5"), config=[nvidias(limits, driver=driver)])
    expected = ClaimState.OTHER_RESULTS if driver == "gpu.nvidia.com" else ClaimState.UNKNOWN
    assert read_state(claim_object(other), prepared) is expected
