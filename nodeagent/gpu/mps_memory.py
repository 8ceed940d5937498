"""What MPS clients use of a device's memory, read in the GPU's worker thread."""

from __future__ import annotations

from collections.abc import Mapping

from nodeagent.gpu.device import GpuDevice
from nodeagent.gpu.steps.change import mig_device


def mps_memory(card: GpuDevice, device: str) -> Mapping[int, int | None]:
    """Bytes by pid of the MPS clients on the card or on one of its MIG devices, by UUID;
    None for a client whose use the driver does not report.
    """
    handle = card.handle if device == card.identity().uuid else mig_device(card, device)
    found = card.nvml.mps_processes(handle)
    return {process.pid: process.memory for process in found}
