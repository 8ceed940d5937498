"""What was read of a GPU is remembered within bounds."""

from __future__ import annotations

from nodeagent.gpu.nvml import GpuInstanceHandle, InstanceInfo
from nodeagent.gpu.recent import FRESH, KnownDevice, Recent
from nodeagent.plan.observed import Placement


def test_devices_that_have_another_uuid_each_time_are_not_remembered_for_ever() -> None:
    """As some drivers have it: an agent that serves claims sees thousands of them a day."""
    recent = Recent()
    for number in range(1000):
        recent.add(f"MIG-{number}", KnownDevice(1, 0, 1))
        recent.observed({f"MIG-{number}": KnownDevice(1, 0, 1)})
    assert len(recent.ever) <= 257
    assert "MIG-999" in recent.ever


def test_a_look_proves_something_for_a_moment_only() -> None:
    """Afterwards users and ids are read again."""
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
