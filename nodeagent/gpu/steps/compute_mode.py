"""Reads and sets who may have a context on a device, in the GPU's worker thread."""

from __future__ import annotations

from nodeagent.errors import DriverError, DriverUnavailable, GpuLost
from nodeagent.gpu.nvml import Nvml
from nodeagent.gpu.nvml_types import Device
from nodeagent.gpu.steps.change import Change, mig_device, otherwise
from nodeagent.plan.shares import ComputeMode
from nodeagent.plan.steps import SetComputeMode


def read_compute_mode(nvml: Nvml, device: Device) -> ComputeMode | None:
    """None where the device has none or the driver does not tell it.

    Raises only what says that the GPU as a whole, or the driver, is gone.
    """
    try:
        return nvml.compute_mode(device)
    except (GpuLost, DriverUnavailable):
        raise
    except DriverError:
        return None


def set_compute_mode(change: Change, step: SetComputeMode) -> None:
    """Set the mode of a GPU or a MIG device and read it back.

    Who has a context already keeps it: the mode says who may get one from now on.
    """
    if not step.device:
        raise otherwise("a compute mode was to be set on a MIG device that is not made yet")
    card, nvml = change.card, change.card.nvml
    name = "the GPU" if step.device == step.gpu else step.device
    device = card.handle if step.device == step.gpu else mig_device(card, step.device)
    if read_compute_mode(nvml, device) is step.mode:
        return
    change.insist_on_time(f"setting the compute mode of {name}")
    nvml.set_compute_mode(device, step.mode)
    found = change.read_back(lambda: nvml.compute_mode(device))
    if found is not None:
        card.recent.set_mode(step.device, found)
    if found is not step.mode:
        raise otherwise(
            f"the compute mode of {name} was to become {step.mode} and the driver reported "
            f"success, but it is {found or 'one that is not known'}"
        )
