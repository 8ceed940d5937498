"""Sensors of the whole card: clocks, temperatures, power, fan, and who it says it is inside."""

# A body has C's parameters and the session, needed or not, and C's name says what it does:
# ruff: noqa: ARG001, D103

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_uint, c_ulonglong
from typing import Any

import pynvml

from nodeagent.simulation.arguments import Buffer, Number, Out, write_text
from nodeagent.simulation.card import Card
from nodeagent.simulation.codes import Code, Refused
from nodeagent.simulation.functions.registry import GPU, GPU_ONLY, c_function
from nodeagent.simulation.nvml_session import Session
from nodeagent.simulation.views import Device

_NOT_SUPPORTED = (Code.NOT_SUPPORTED,)
_CLOCKS = ("graphics", "sm", "memory", "video")
_AMPERE = (8, 0)
_INFOROM_VERSIONS = ("2.1", "6.16", "1.0")  # OEM, ECC, power
_TESLA, _NVIDIA = pynvml.NVML_BRAND_TESLA, pynvml.NVML_BRAND_NVIDIA


def _one(name: str, answer: Callable[[Card], int], out: Any = c_uint) -> None:
    """A function that returns one number of the card."""

    @c_function(name, GPU_ONLY, Out(out), errors=_NOT_SUPPORTED)
    def read(library: Session, gpu: Device, value: Any) -> None:
        value.value = answer(gpu.card)


def _figure(name: str, otherwise: Callable[[Card], int]) -> Callable[[Card], int]:
    return lambda card: int(card.sensors.value(name, otherwise(card)))


def _power_limit(card: Card) -> int:
    return int(card.sensors.value("power.limit", card.sensors.limits.power))


def _fan(card: Card) -> int:
    """Cards for servers have none; a workstation's has."""
    if "workstation" not in card.board.board and "max-q" not in card.board.board:
        raise Refused(Code.NOT_SUPPORTED)
    return int(card.sensors.value("fan", 30))


_one("nvmlDeviceGetPowerUsage", lambda card: card.sensors.power)
_one("nvmlDeviceGetPowerManagementLimit", _power_limit)
_one("nvmlDeviceGetEnforcedPowerLimit", _figure("power.enforced", _power_limit))
_one(
    "nvmlDeviceGetPowerManagementDefaultLimit",
    _figure("power.default", lambda card: card.sensors.limits.power),
)
_one(
    "nvmlDeviceGetTotalEnergyConsumption",
    lambda card: int(card.sensors.named("energy")),
    c_ulonglong,
)
_one("nvmlDeviceGetCurrentClocksEventReasons", lambda card: card.sensors.reasons, c_ulonglong)
_one("nvmlDeviceGetPerformanceState", _figure("pstate", lambda _: 0))
_one("nvmlDeviceGetFanSpeed", _fan)
_one("nvmlDeviceGetInforomConfigurationChecksum", _figure("inforom.checksum", lambda _: 0x5A17))
_one("nvmlDeviceGetBrand", lambda card: _TESLA if card.board.board == "t4" else _NVIDIA)


@c_function("nvmlDeviceGetClockInfo", GPU_ONLY, Number(), Out(c_uint), errors=_NOT_SUPPORTED)
def get_clock(library: Session, gpu: Device, kind: int, clock: c_uint) -> None:
    clock.value = gpu.card.sensors.clock(_clock(kind))


@c_function("nvmlDeviceGetMaxClockInfo", GPU_ONLY, Number(), Out(c_uint), errors=_NOT_SUPPORTED)
def get_max_clock(library: Session, gpu: Device, kind: int, clock: c_uint) -> None:
    clock.value = gpu.card.sensors.highest_clock(_clock(kind))


@c_function(
    "nvmlDeviceGetApplicationsClock", GPU_ONLY, Number(), Out(c_uint), errors=_NOT_SUPPORTED
)
def get_applications_clock(library: Session, gpu: Device, kind: int, clock: c_uint) -> None:
    sensors, name = gpu.card.sensors, _clock(kind)
    clock.value = int(sensors.value(f"application.{name}", sensors.highest_clock(name)))


@c_function(
    "nvmlDeviceGetAutoBoostedClocksEnabled",
    GPU_ONLY,
    Out(c_uint),
    Out(c_uint),
    errors=_NOT_SUPPORTED,
)
def get_auto_boost(library: Session, gpu: Device, enabled: c_uint, default: c_uint) -> None:
    """Told by old cards only; it can be set here to have a card that does."""
    value = gpu.card.sensors.set_to("autoboost")
    if value is None:
        raise Refused(Code.NOT_SUPPORTED)
    enabled.value, default.value = int(value), 1


@c_function(
    "nvmlDeviceGetPowerManagementLimitConstraints",
    GPU_ONLY,
    Out(c_uint),
    Out(c_uint),
    errors=_NOT_SUPPORTED,
)
def get_power_constraints(library: Session, gpu: Device, least: c_uint, most: c_uint) -> None:
    sensors = gpu.card.sensors
    least.value = int(sensors.value("power.min", sensors.limits.power // 2))
    most.value = int(sensors.value("power.max", sensors.limits.power))


# --- temperatures ---------------------------------------------------------------------------------


@c_function("nvmlDeviceGetTemperature", GPU_ONLY, Number(), Out(c_uint), errors=_NOT_SUPPORTED)
def get_temperature(library: Session, gpu: Device, sensor: int, degrees: c_uint) -> None:
    if sensor != pynvml.NVML_TEMPERATURE_GPU:
        raise Refused(Code.INVALID_ARGUMENT)
    degrees.value = gpu.card.sensors.temperature


@c_function(
    "nvmlDeviceGetTemperatureV",
    GPU_ONLY,
    Out(pynvml.c_nvmlTemperature_v1_t, pynvml.nvmlTemperature_v1),
    errors=(*_NOT_SUPPORTED, Code.ARGUMENT_VERSION_MISMATCH),
)
def get_temperature_v(library: Session, gpu: Device, reading: Any) -> None:
    if reading.sensorType != pynvml.NVML_TEMPERATURE_GPU:
        raise Refused(Code.INVALID_ARGUMENT)
    reading.temperature = gpu.card.sensors.temperature


@c_function(
    "nvmlDeviceGetTemperatureThreshold", GPU_ONLY, Number(), Out(c_uint), errors=_NOT_SUPPORTED
)
def get_threshold(library: Session, gpu: Device, threshold: int, degrees: c_uint) -> None:
    sensors = gpu.card.sensors
    known = {
        pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN: ("shutdown", sensors.limits.shutdown),
        pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN: ("slowdown", sensors.limits.slowdown),
        pynvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX: ("memoryMax", sensors.limits.memory_max),
        pynvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX: ("gpuMax", sensors.limits.slowdown - 2),
    }
    name, otherwise = known.get(threshold, ("", 0))
    value = int(sensors.value(f"temperature.{name}", otherwise)) if name else 0
    if not value:
        raise Refused(Code.NOT_SUPPORTED)
    degrees.value = value


@c_function(
    "nvmlDeviceGetMarginTemperature",
    GPU_ONLY,
    Out(pynvml.c_nvmlMarginTemperature_v1_t, pynvml.nvmlMarginTemperature_v1),
    errors=(*_NOT_SUPPORTED, Code.ARGUMENT_VERSION_MISMATCH),
)
def get_margin(library: Session, gpu: Device, margin: Any) -> None:
    gpu.card.require_capability(_AMPERE)
    margin.marginTemperature = gpu.card.sensors.margin


# --- inside ---------------------------------------------------------------------------------------


@c_function("nvmlDeviceValidateInforom", GPU_ONLY, errors=(*_NOT_SUPPORTED, Code.CORRUPTED_INFOROM))
def validate_inforom(library: Session, gpu: Device) -> None:
    if gpu.card.sensors.value("inforom.corrupt", 0):
        raise Refused(Code.CORRUPTED_INFOROM)


@c_function(
    "nvmlDeviceGetInforomVersion", GPU_ONLY, Number(), Buffer(), Number(), errors=_NOT_SUPPORTED
)
def get_inforom_version(library: Session, gpu: Device, part: int, buffer: Any, size: int) -> None:
    if part >= len(_INFOROM_VERSIONS):
        raise Refused(Code.INVALID_ARGUMENT)
    write_text(buffer, size, _INFOROM_VERSIONS[part])


@c_function("nvmlDeviceGetInforomImageVersion", GPU_ONLY, Buffer(), Number(), errors=_NOT_SUPPORTED)
def get_inforom_image(library: Session, gpu: Device, buffer: Any, size: int) -> None:
    write_text(buffer, size, "G520.0200.00.05")


@c_function("nvmlDeviceGetVbiosVersion", GPU_ONLY, Buffer(), Number(), errors=_NOT_SUPPORTED)
def get_vbios_version(library: Session, gpu: Device, buffer: Any, size: int) -> None:
    write_text(buffer, size, "96.00.74.00.1A")


@c_function(
    "nvmlDeviceGetGridLicensableFeatures_v4",
    GPU_ONLY,
    Out(pynvml.c_nvmlGridLicensableFeatures_v4_t),
    errors=_NOT_SUPPORTED,
)
def get_licensable_features(library: Session, gpu: Device, features: Any) -> None:
    """Told by virtual GPUs; on others no feature is licensed."""
    state = int(gpu.card.sensors.value("license", 0))
    features.isGridLicenseSupported = int(bool(state))
    features.licensableFeaturesCount = 1
    features.gridLicensableFeatures[0].featureState = state


@c_function(
    "nvmlDeviceGetPlatformInfo",
    GPU_ONLY,
    Out(pynvml.c_nvmlPlatformInfo_v2_t, pynvml.nvmlPlatformInfo_v2),
    errors=(*_NOT_SUPPORTED, Code.ARGUMENT_VERSION_MISMATCH),
)
def get_platform_info(library: Session, gpu: Device, info: Any) -> None:
    """Told by the boards of rack systems."""
    if not gpu.card.board.board.startswith("gb"):
        raise Refused(Code.NOT_SUPPORTED)
    value_of = gpu.card.sensors.value
    info.ibGuid = gpu.card.identity.uuid[4:20].encode()
    info.chassisSerialNumber = gpu.card.identity.serial_number[:15].encode()
    info.slotNumber = int(value_of("platform.slot", 1))
    info.trayIndex = int(value_of("platform.tray", 0))
    info.hostId = int(value_of("platform.host", 1))
    info.peerType = int(value_of("platform.peer", 1))
    info.moduleId = int(value_of("platform.module", gpu.card.index + 1))


@c_function("nvmlSystemGetConfComputeState", Out(pynvml.c_nvmlConfComputeSystemState_t))
def get_confidential_computing(library: Session, state: Any) -> None:
    """Always off."""
    state.environment = state.ccFeature = state.devToolsMode = 0


@c_function("nvmlDeviceGetP2PStatus", GPU, GPU, Number(), Out(c_uint), errors=_NOT_SUPPORTED)
def get_p2p_status(library: Session, gpu: Device, other: Device, what: int, status: c_uint) -> None:
    """Over NVLink where both have links; with MIG on there is none."""
    cards = (gpu.card, other.card)
    linked = all(c.board.nvlinks and not c.state.mig for c in cards) and cards[0] is not cards[1]
    over_nvlink = what == pynvml.NVML_P2P_CAPS_INDEX_NVLINK
    status.value = (
        pynvml.NVML_P2P_STATUS_OK
        if linked or not over_nvlink
        else pynvml.NVML_P2P_STATUS_NOT_SUPPORTED
    )


def _clock(kind: int) -> str:
    if kind >= len(_CLOCKS):
        raise Refused(Code.INVALID_ARGUMENT)
    return _CLOCKS[kind]
