from nodeagent.gpu.nvml import GpuInstanceHandle, InstanceInfo
from nodeagent.gpu.profiles import profile_name
from nodeagent.gpu.recent import FRESH, KnownDevice, Recent
from nodeagent.plan.observed import GpuInstanceProfile, Placement


def test_devices_that_have_another_uuid_each_time_are_not_remembered_for_ever() -> None:
    """As some drivers have it: an agent that serves claims sees thousands of them a day."""
    recent = Recent()
    for number in range(1000):
        recent.add(f"MIG-{number}", KnownDevice(1, 0, 1))
        recent.observed({f"MIG-{number}": KnownDevice(1, 0, 1)})
    assert len(recent.known) <= 257
    assert "MIG-999" in recent.known


def test_a_look_proves_something_for_a_moment_only() -> None:
    now = 100.0
    recent = Recent(lambda: now)
    recent.observed({"MIG-a": KnownDevice(1, 0, 1), "MIG-b": KnownDevice(2, 0, 1)})
    recent.found_instances([(GpuInstanceHandle(None), InstanceInfo(1, 19, Placement(0, 1)))])
    assert recent.instance(1)
    recent.proved_idle(["MIG-a", "MIG-b"])
    assert recent.is_proved_idle("MIG-a")
    recent.gone("MIG-a")
    assert not recent.is_proved_idle("MIG-a")
    assert recent.device("MIG-b") == KnownDevice(2, 0, 1)
    now += FRESH
    assert not recent.is_proved_idle("MIG-b")
    assert recent.device("MIG-b") is None
    assert recent.instance(1) is None
    assert recent.idle == {"MIG-b"}  # the next look has to include it


MIB = 1 << 20


def named(name: str) -> str:
    """The name of a profile of one slice and 1.5 GiB that the driver reports so."""
    profile = GpuInstanceProfile(
        id=0,
        kind=7,
        name=name,
        slices=1,
        memory=1536 * MIB,
        multiprocessors=1,
        max_count=1,
        placements=(),
    )
    return profile_name(profile)


def test_the_drivers_name_is_taken_without_its_prefix() -> None:
    """NVML reports it with or without `MIG`."""
    for reported in ("MIG 1g.10gb+me", "1g.10gb+me"):
        assert named(reported) == "1g.10gb+me"


def test_a_reported_name_that_is_no_profile_name_is_replaced() -> None:
    assert named("Graphics") == "1g.2gb"
