"""What health findings mean for the devices of claims."""

import pytest

from nodeagent.claims.model import ClaimRecord, RecordPhase
from nodeagent.claims.reporting.device_reports import DeviceHealth, device_health
from nodeagent.health.findings import Finding, Location, Moment
from nodeagent.health.state import GpuHistory, HealthState
from nodeagent.health.table import new_finding
from nodeagent.plan.observed import Access, Gpu, MigMode, ObservedNode, Placement
from nodeagent.structs import replace
from nodeagent.views.health_remedies import HealthRemedies
from tests.claims import samples
from tests.claims.snapshots import instance

HERE = Gpu(3, samples.GPU, "H100", mig=MigMode(current=True, pending=True), instances=(instance(),))
NODE = ObservedNode((HERE,))
NOW = 1_700_000_000.0


def finding(cause: str, placement: Placement | None = None, gpu: str = samples.GPU) -> Finding:
    """Of a GPU, or of its instance 5, which lies there."""
    place = Location(gpu, 5 if placement else None, placement=placement)
    return new_finding(cause, place, "so it is", Moment(1.0, NOW))


def judged(
    *findings: Finding,
    node: ObservedNode = NODE,
    claim: ClaimRecord | None = None,
    unread: str = "",
) -> DeviceHealth:
    """The one device of the claim, which lies at memory slice 4."""
    health = HealthState(findings=findings, gpus={samples.GPU: GpuHistory(index=3)})
    (found,) = device_health(
        [claim or samples.record(samples.mig_device(instance=7))],
        HealthRemedies("gpu-node-0", "pod", node),
        health,
        unread=unread,
        now=NOW,
    )
    return found


def test_a_device_is_healthy_while_nothing_is_wrong_with_its_part() -> None:
    sibling = finding("eccUncorrected", Placement(0, 4))
    other = finding("fallenOffBus", gpu="GPU-4712")
    degraded = finding("xidHardware")
    found = judged(sibling, other, degraded)
    assert found == DeviceHealth(samples.POOL, samples.MIG_DEVICE, "healthy", 0.0)
    assert found.at == NOW


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (
            finding("eccUncorrected", Placement(4, 2)),
            "GPU 3 has uncorrected memory errors in slices 4-5. Reset GPU 3: `kubectl drain",
        ),
        (finding("xidReboot"), "GPU 3 reported an error that needs a reboot (XID -1). Drain and"),
    ],
    ids=["its slices", "its GPU"],
)
def test_its_part_is_sick(one: Finding, message: str) -> None:
    found = judged(one)
    assert found.health == "unhealthy"
    assert found.message.startswith(message)
    assert found.message.endswith(f". {found.remedy}")


def test_a_whole_gpu_is_as_well_as_its_sickest_part() -> None:
    whole = samples.record(samples.whole_device())
    assert judged(finding("eccUncorrected", Placement(0, 1)), claim=whole).health == "unhealthy"


def test_a_device_that_is_gone() -> None:
    """Of a claim that is ready: its slice, or the GPU that is in MIG mode now. One that is not
    there yet is not in the list, from which the kubelet makes that it is not known.
    """
    whole = samples.whole_device()
    empty = ObservedNode((replace(HERE, instances=(instance(8),)),))
    for device, node in ((samples.mig_device(instance=7), empty), (whole, NODE)):
        found = judged(claim=samples.record(device), node=node)
        assert found.health == "unhealthy"
        assert found.message.startswith(f"{device.result.device} of GPU 3 (H100) is gone; ")
        for phase in (RecordPhase.INTENT, RecordPhase.RELEASING):
            claim = samples.record(device, phase=phase)
            assert device_health([claim], HealthRemedies("n", "pod", node), now=NOW) == ()


@pytest.mark.parametrize(
    ("gpu", "health", "message"),
    [
        (
            {"access": Access.LOST, "access_reason": "gone"},
            "unhealthy",
            "GPU 3 (H100) is lost: gone",
        ),
        ({"access": Access.UNKNOWN, "access_reason": "slow"}, "unknown", "does not answer: slow"),
        ({"uuid": "GPU-4712"}, "unknown", f"the driver does not list {samples.GPU}"),
    ],
    ids=["lost", "silent", "not listed"],
)
def test_what_the_driver_does_not_answer_for(
    gpu: dict[str, object], health: str, message: str
) -> None:
    """Not knowing is not healthy."""
    changed = Gpu(**{"index": 3, "uuid": samples.GPU, "name": "H100", **gpu})  # type: ignore[arg-type]
    found = judged(node=ObservedNode((changed,)))
    assert found.health == health
    assert message in found.message


def test_a_finding_of_a_gpu_that_is_not_listed() -> None:
    found = judged(finding("fallenOffBus"), node=ObservedNode())
    assert found.health == "unhealthy"
    assert found.message.startswith("GPU 3 fell off the bus")


def test_a_driver_that_is_away() -> None:
    assert judged(unread="not loaded").health == "unknown"
    assert judged(finding("fallenOffBus"), unread="not loaded").health == "unhealthy"
