"""What device ids mean, as data: the forms that plugins and drivers are known to use."""

from __future__ import annotations

from nodeagent.cluster.kubelet.allocations import (
    Anywhere,
    ByFile,
    ByInstance,
    ByPlace,
    ByUuid,
    DeviceId,
    read_claimed_device,
    read_device_id,
)

ID = "1b2c3d4e-0000-5111-8222-333344445555"
DRA = "gpu.nvidia.com"


def test_ids_of_device_plugins() -> None:
    """Whatever a plugin puts behind a UUID is a replica of that device."""
    cases: list[tuple[str, DeviceId]] = [
        (f"GPU-{ID}", ByUuid(f"gpu-{ID}")),
        (f"MIG-{ID}", ByUuid(f"mig-{ID}")),
        (f"MIG-{ID.upper()}", ByUuid(f"mig-{ID}")),
        (f"GPU-{ID}::3", ByUuid(f"gpu-{ID}")),
        (f"MIG-{ID}::7", ByUuid(f"mig-{ID}")),
        (f"GPU-{ID}::10::0", ByUuid(f"gpu-{ID}")),
        (f"GPU-{ID}-5", ByUuid(f"gpu-{ID}")),
        (f"MIG-GPU-{ID}/3/0", ByInstance(f"gpu-{ID}", 3, 0)),
        (f"MIG-GPU-{ID}/13/1::2", ByInstance(f"gpu-{ID}", 13, 1)),
        ("nvidia2", ByFile(2)),
        ("nvidia0/gi11", ByFile(0, 11)),
        ("nvidia0/vgpu2", ByFile(0)),
        ("nvidia0/gi1/vgpu0", ByFile(0, 1)),
        ("GPU-1::0", ByUuid("gpu-1")),
        ("nvidia" + "0" * 5000, ByUuid("nvidia" + "0" * 5000)),
        (f"MIG-GPU-{ID}/{'1' * 5000}/0", ByUuid(f"mig-gpu-{ID}/{'1' * 5000}/0")),
        (f"GPU-{ID}0", ByUuid(f"gpu-{ID}0")),
        ("0000:3b:00.0", ByUuid("0000:3b:00.0")),
    ]
    for text, meant in cases:
        assert read_device_id(text) == meant


def test_devices_of_claims() -> None:
    """A name that is not understood counts as its GPU, or as any; other drivers have no GPUs."""
    cases: list[tuple[str, str, DeviceId | None]] = [
        (DRA, "gpu-0", ByFile(0)),
        (DRA, "gpu-12", ByFile(12)),
        (DRA, "gpu-1-mig-19-6-1", ByPlace(1, 6)),
        (DRA, "gpu-1-mig-2g47gb-14-4", ByPlace(1, 4)),
        (DRA, "gpu-0-mig-1g12gb-me-20-3", ByPlace(0, 3)),
        (DRA, "gpu-3-mig-everything", ByFile(3)),
        (DRA, "gpu-3-of-another-time", ByFile(3)),
        (DRA, "gpu-vfio-0", None),
        (DRA, "gpux", Anywhere("gpux")),
        (DRA, f"gpu-{'1' * 5000}", Anywhere(f"gpu-{'1' * 5000}")),
        (DRA, "", Anywhere("")),
        ("compute-domain.nvidia.com", "channel-0", None),
        ("dra.example.com", "gpu-0", None),
    ]
    for driver, device, meant in cases:
        assert read_claimed_device(driver, device) == meant
