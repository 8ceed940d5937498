"""A GPU's health as its last look tells it, or as its silence does."""

from __future__ import annotations

from nodeagent.errors import DriverError
from nodeagent.gpu.nvml_errors import silence_of
from nodeagent.health.readings import (
    Answer,
    Ecc,
    GpuReading,
    Memory,
    Pcie,
    Power,
    Temperature,
    Throttling,
)
from nodeagent.telemetry.sample import GpuSample


def reading_of(look: GpuSample, last: float | None) -> GpuReading:
    """What a look found of a GPU's health; `last` is its uptime."""
    fast, slow = look.fast_health, look.slow_health
    throttling = slow.throttling if slow else Throttling()
    power = slow.power if slow else Power()
    return GpuReading(
        uuid=look.gpu.uuid,
        index=look.gpu.index,
        pci_bus_id=look.gpu.pci_bus_id,
        answer=Answer(last=last),
        mig=look.mig,
        recovery_action=slow.recovery_action if slow else None,
        ecc=slow.ecc if slow else Ecc(),
        memory=slow.memory if slow else Memory(),
        temperature=fast.temperature if fast else Temperature(),
        throttling=Throttling(
            reasons=fast.throttling if fast else None,
            power=throttling.power,
            thermal=throttling.thermal,
            software_thermal=throttling.software_thermal,
            hardware_thermal=throttling.hardware_thermal,
            power_brake=throttling.power_brake,
        ),
        power=Power(fast.power if fast else None, power.limit, power.energy),
        pcie=slow.pcie if slow else Pcie(),
        nvlinks=slow.nvlinks if slow else (),
        fabric=slow.fabric if slow else None,
        inforom_corrupt=slow.inforom_corrupt if slow else None,
        instances=look.instances,
    )


def silent(
    uuid: str, index: int, pci_bus_id: str, error: DriverError, last: float | None
) -> GpuReading:
    """What is told of a GPU that was not read now; `last` is the uptime of its last look."""
    return GpuReading(uuid, index, pci_bus_id, answer=Answer(silence_of(error), last, str(error)))
