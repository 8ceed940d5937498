"""Sensors of the whole card: clocks, temperatures, power, fan, and what it says it is inside."""

from ctypes import c_ulonglong
from typing import Annotated, Any

import pynvml

from nodeagent.simulation.arguments import Out, versioned, write_text
from nodeagent.simulation.codes import Code, Refused
from nodeagent.simulation.functions.registry import (
    BufferOut,
    UInt,
    UIntOut,
    WholeGpuIn,
    c_function,
    c_reading,
    number,
)
from nodeagent.simulation.nvml_session import Session

_CLOCKS = ("graphics", "sm", "memory", "video")
_AMPERE = (8, 0)
_INFOROM_VERSIONS = ("2.1", "6.16", "1.0")  # OEM, ECC, power
_THRESHOLDS = {
    pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN: "shutdown",
    pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN: "slowdown",
    pynvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX: "memoryMax",
    pynvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX: "gpuMax",
}

c_reading("nvmlDeviceGetPowerUsage", number("power.usage"))
c_reading("nvmlDeviceGetPowerManagementLimit", number("power.limit"))
c_reading("nvmlDeviceGetEnforcedPowerLimit", number("power.enforced"))
c_reading("nvmlDeviceGetPowerManagementDefaultLimit", number("power.default"))
c_reading("nvmlDeviceGetPowerManagementLimitConstraints", number("power.min"), number("power.max"))
c_reading("nvmlDeviceGetTotalEnergyConsumption", number("energy", c_ulonglong))
c_reading("nvmlDeviceGetCurrentClocksEventReasons", number("reasons", c_ulonglong))
c_reading("nvmlDeviceGetPerformanceState", number("pstate"))
c_reading("nvmlDeviceGetInforomConfigurationChecksum", number("inforom.checksum"))
c_reading("nvmlDeviceGetCurrPcieLinkGeneration", number("pcie.generation"))
c_reading("nvmlDeviceGetCurrPcieLinkWidth", number("pcie.width"))
c_reading("nvmlDeviceGetMaxPcieLinkWidth", number("pcie.widthMax"))
c_reading("nvmlDeviceGetPcieReplayCounter", number("pcie.replays"))


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetFanSpeed(session: Session, gpu: WholeGpuIn, percent: UIntOut) -> None:
    """Cards for servers have none; a workstation's has."""
    if "workstation" not in gpu.card.board.name and "max-q" not in gpu.card.board.name:
        raise Refused(Code.NOT_SUPPORTED)
    percent.value = gpu.card.sensors.integer("fan")


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetBrand(session: Session, gpu: WholeGpuIn, brand: UIntOut) -> None:
    tesla = gpu.card.board.name == "t4"
    brand.value = pynvml.NVML_BRAND_TESLA if tesla else pynvml.NVML_BRAND_NVIDIA


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetAddressingMode(
    session: Session,
    gpu: WholeGpuIn,
    mode: Annotated[
        Any, Out(pynvml.c_nvmlDeviceAddressingMode_t, pynvml.nvmlDeviceAddressingMode_v1)
    ],
) -> None:
    """Boards with a processor of NVIDIA's share its page tables."""
    ats = gpu.card.board.name.startswith(("gh", "gb"))
    mode.value = (
        pynvml.NVML_DEVICE_ADDRESSING_MODE_ATS if ats else pynvml.NVML_DEVICE_ADDRESSING_MODE_NONE
    )


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetClockInfo(
    session: Session, gpu: WholeGpuIn, kind: UInt, megahertz: UIntOut
) -> None:
    megahertz.value = gpu.card.sensors.integer(f"clock.{_clock(kind)}")


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetMaxClockInfo(
    session: Session, gpu: WholeGpuIn, kind: UInt, megahertz: UIntOut
) -> None:
    limits = gpu.card.sensors.limits
    highest = {"memory": limits.memory, "video": limits.video}
    megahertz.value = highest.get(_clock(kind), limits.sm)


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetApplicationsClock(
    session: Session, gpu: WholeGpuIn, kind: UInt, megahertz: UIntOut
) -> None:
    megahertz.value = gpu.card.sensors.integer(f"application.{_clock(kind)}")


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetAutoBoostedClocksEnabled(
    session: Session, gpu: WholeGpuIn, enabled: UIntOut, default: UIntOut
) -> None:
    """Reported by old cards only; it can be set here to have a card that does."""
    value = gpu.card.sensors.figure("autoboost")
    if value is None:
        raise Refused(Code.NOT_SUPPORTED)
    enabled.value, default.value = int(value), 1


# --- temperatures ---------------------------------------------------------------------------------


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetTemperature(
    session: Session, gpu: WholeGpuIn, sensor: UInt, degrees: UIntOut
) -> None:
    if sensor != pynvml.NVML_TEMPERATURE_GPU:
        raise Refused(Code.INVALID_ARGUMENT)
    degrees.value = gpu.card.sensors.integer("temperature.gpu")


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetTemperatureThreshold(
    session: Session, gpu: WholeGpuIn, threshold: UInt, degrees: UIntOut
) -> None:
    name = _THRESHOLDS.get(threshold)
    degrees.value = gpu.card.sensors.integer(f"temperature.{name}") if name else 0
    if not degrees.value:
        raise Refused(Code.NOT_SUPPORTED)


_MARGIN = versioned("nvmlMarginTemperature_v1")
c_reading(
    "nvmlDeviceGetMarginTemperature",
    (_MARGIN, {"marginTemperature": "temperature.margin"}),
    since=_AMPERE,
)


# --- inside ---------------------------------------------------------------------------------------


@c_function(Code.NOT_SUPPORTED, Code.CORRUPTED_INFOROM)
def nvmlDeviceValidateInforom(session: Session, gpu: WholeGpuIn) -> None:
    if gpu.card.sensors.value("inforom.corrupt"):
        raise Refused(Code.CORRUPTED_INFOROM)


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetInforomVersion(
    session: Session, gpu: WholeGpuIn, part: UInt, buffer: BufferOut, size: UInt
) -> None:
    if part >= len(_INFOROM_VERSIONS):
        raise Refused(Code.INVALID_ARGUMENT)
    write_text(buffer, size, _INFOROM_VERSIONS[part])


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetInforomImageVersion(
    session: Session, gpu: WholeGpuIn, buffer: BufferOut, size: UInt
) -> None:
    write_text(buffer, size, "G520.0200.00.05")


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetVbiosVersion(
    session: Session, gpu: WholeGpuIn, buffer: BufferOut, size: UInt
) -> None:
    write_text(buffer, size, "96.00.74.00.1A")


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetGridLicensableFeatures_v4(
    session: Session,
    gpu: WholeGpuIn,
    features: Annotated[Any, Out(pynvml.c_nvmlGridLicensableFeatures_v4_t)],
) -> None:
    """Reported by virtual GPUs; on others no feature is licensed."""
    state = gpu.card.sensors.integer("license")
    features.isGridLicenseSupported = int(bool(state))
    features.licensableFeaturesCount = 1
    features.gridLicensableFeatures[0].featureState = state


@c_function(Code.NOT_SUPPORTED)
def nvmlDeviceGetPlatformInfo(
    session: Session, gpu: WholeGpuIn, info: Annotated[Any, versioned("nvmlPlatformInfo_v2")]
) -> None:
    """Reported by the boards of rack systems."""
    if not gpu.card.board.name.startswith("gb"):
        raise Refused(Code.NOT_SUPPORTED)
    sensors = gpu.card.sensors
    info.ibGuid = gpu.card.identity.uuid[4:20].encode()
    info.chassisSerialNumber = gpu.card.identity.serial_number[:15].encode()
    info.slotNumber = sensors.integer("platform.slot")
    info.trayIndex = sensors.integer("platform.tray")
    info.hostId = sensors.integer("platform.host")
    info.peerType = sensors.integer("platform.peer")
    info.moduleId = sensors.integer("platform.module", gpu.card.index + 1)


@c_function()
def nvmlSystemGetConfComputeState(
    session: Session, state: Annotated[Any, Out(pynvml.c_nvmlConfComputeSystemState_t)]
) -> None:
    """Always off."""
    state.environment = state.ccFeature = state.devToolsMode = 0


def _clock(kind: int) -> str:
    if kind >= len(_CLOCKS):
        raise Refused(Code.INVALID_ARGUMENT)
    return _CLOCKS[kind]
