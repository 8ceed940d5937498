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


def named(name: str, *, kind: int, slices: int, memory: int, card_memory: int) -> str:
    """The name of a profile that the driver reports with these values."""
    profile = GpuInstanceProfile(
        id=0,
        kind=kind,
        name=name,
        slices=slices,
        memory=memory,
        multiprocessors=1,
        max_count=1,
        placements=(),
    )
    return profile_name(profile, card_memory)


def test_the_drivers_name_is_taken_without_its_prefix() -> None:
    """NVML reports it with or without `MIG`."""
    for reported in ("MIG 1g.10gb+me", "1g.10gb+me"):
        assert named(reported, kind=7, slices=1, memory=1, card_memory=1) == "1g.10gb+me"


def test_without_a_reported_name_it_is_made_by_the_common_rule() -> None:
    """Drivers without version 2 of the call give sizes only."""
    for kind, slices, mib, card, name in (
        (0, 1, 4864, 40960, "1g.5gb"),
        (9, 1, 9856, 40960, "1g.10gb"),
        (7, 1, 4864, 40960, "1g.5gb+me"),
        (2, 3, 19968, 40960, "3g.20gb"),
        (4, 7, 40192, 40960, "7g.40gb"),
        (0, 1, 9984, 81559, "1g.10gb"),
        (2, 3, 40448, 81559, "3g.40gb"),
        (4, 7, 81152, 81559, "7g.80gb"),
        (13, 1, 24192, 97887, "1g.24gb-me"),
        (16, 2, 48512, 97887, "2g.48gb+me.all"),
        (12, 4, 97280, 97887, "4g.96gb+gfx"),
    ):
        made = named("", kind=kind, slices=slices, memory=mib * MIB, card_memory=card * MIB)
        assert made == name


def test_a_reported_name_that_is_no_profile_name_is_replaced() -> None:
    made = named("Graphics", kind=0, slices=1, memory=MIB << 10, card_memory=MIB << 13)
    assert made == "1g.1gb"


def test_a_card_of_unknown_memory_is_named_by_the_instances_own() -> None:
    """It is at least a name that means the right size."""
    assert named("", kind=1, slices=2, memory=10 << 30, card_memory=0) == "2g.10gb"
