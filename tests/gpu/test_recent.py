"""What was read of a GPU is remembered within bounds."""

from __future__ import annotations

from nodeagent.gpu.recent import KnownDevice, Recent


def test_devices_that_have_another_uuid_each_time_are_not_remembered_for_ever() -> None:
    """As some drivers have it: an agent that serves claims sees thousands of them a day."""
    recent = Recent()
    for number in range(1000):
        recent.add(f"MIG-{number}", KnownDevice(1, 0, 1))
        recent.observed({f"MIG-{number}": KnownDevice(1, 0, 1)})
    assert len(recent.ever) <= 257
    assert "MIG-999" in recent.ever
