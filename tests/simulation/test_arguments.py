import ctypes
from collections.abc import Callable
from ctypes import byref, c_int, c_uint, c_void_p, cast
from typing import Any

import pynvml
import pytest

from nodeagent.simulation import SimulatorMisuse
from tests.simulation import calls

Placement = pynvml.c_nvmlGpuInstancePlacement_t


def _library(name: str) -> Any:
    return getattr(pynvml.nvmlLib, name)


MADE_UP = cast(c_void_p(0x123456789ABC), pynvml.c_nvmlDevice_t)
MISUSES: dict[str, tuple[Callable[[Any], object], str]] = {
    # C would read {start 4, size 4} as the pointer 0x400000004 and die.
    "a placement by value": (
        lambda gpu: pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, 9, Placement(4, 4)),
        "by value",
    ),
    "another structure": (
        lambda gpu: pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(
            gpu, 9, byref(pynvml.c_nvmlComputeInstancePlacement_t(4, 4))
        ),
        "c_nvmlGpuInstancePlacement_t",
    ),
    # ctypes would cut it to 32 bits.
    "an int as a handle": (
        lambda gpu: pynvml.nvmlDeviceGetMigMode(cast(gpu, c_void_p).value), "handle"
    ),
    # A pointer that has lost its upper half leads nowhere.
    "a handle that is cut off": (
        lambda gpu: pynvml.nvmlDeviceGetMigMode(
            cast(c_void_p((cast(gpu, c_void_p).value or 0) & 0xFFFFFFFF), pynvml.c_nvmlDevice_t)
        ),
        "cut off",
    ),
    # A real library would follow it.
    "a handle that was never given out": (
        lambda _: pynvml.nvmlDeviceGetMigMode(MADE_UP), "never given out"
    ),
    # NVML writes what there is, wherever the caller's array ends.
    "room for too few placements": (
        lambda gpu: pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(
            gpu, 9, (Placement * 1)(), byref(c_uint())
        ),
        "room for 1",
    ),
    "room for too few handles": (
        lambda gpu: pynvml.nvmlDeviceGetGpuInstances(
            gpu, 19, (pynvml.c_nvmlGpuInstance_t * 6)(), byref(c_uint())
        ),
        "room for 6",
    ),
    # A wrong element type would be written over.
    "an array of something else": (
        lambda gpu: pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(
            gpu, 9, (c_uint * 16)(), byref(c_uint())
        ),
        "array of c_nvmlGpuInstancePlacement_t",
    ),
    "a result of the wrong type": (
        lambda gpu: _library("nvmlDeviceGetMinorNumber")(gpu, byref(c_int())), "reference to c_int"
    ),
    "a result by value": (
        lambda gpu: _library("nvmlDeviceGetMinorNumber")(gpu, c_uint()), "got c_uint"
    ),
    # C would read whatever lies in the registers.
    "a wrong number of arguments": (
        lambda gpu: _library("nvmlDeviceGetMigMode")(gpu, byref(c_uint())),
        "takes 3 arguments, got 2",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("call", "complaint"), MISUSES.values(), ids=MISUSES)
def test_misuses(call: Callable[[Any], object], complaint: str) -> None:
    with calls.node_with():
        device = calls.gpu()
        with pytest.raises(SimulatorMisuse, match=complaint):
            call(device)
        assert calls.instances(device, "3g") == []


def test_a_handle_of_another_type_is_a_misuse() -> None:
    """A GPU instance is no device, neither by type nor behind a cast."""
    with calls.node_with():
        instance = calls.create(calls.gpu(), "1g")
        with pytest.raises(SimulatorMisuse):
            pynvml.nvmlDeviceGetName(instance)
        disguised = cast(instance, pynvml.c_nvmlDevice_t)
        with pytest.raises(SimulatorMisuse, match="GPU instance"):
            pynvml.nvmlDeviceGetName(disguised)


def test_null_is_an_invalid_argument() -> None:
    """NVML checks for NULL itself, for handles and for references."""
    with calls.node_with():
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlDeviceGetMigMode(pynvml.c_nvmlDevice_t())
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(calls.gpu(), 9, None)
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlDeviceGetGpuInstances(calls.gpu(), 9, None, byref(c_uint()))


def test_the_room_for_processes_is_what_the_caller_says() -> None:
    with calls.node_with() as node:
        node.occupy(0)
        infos = (pynvml.c_nvmlProcessInfo_v3_t * 1)()
        with pytest.raises(SimulatorMisuse, match="room for 1"):
            _library("nvmlDeviceGetComputeRunningProcesses_v3")(
                calls.gpu(), byref(c_uint(2)), infos
            )


@pytest.mark.parametrize("form", ["array", "reference", "pointer"])
def test_arrays_in_all_their_forms_are_fine(form: str) -> None:
    places, count = (Placement * 2)(), c_uint()
    given = {
        "array": places,
        "reference": byref(places),
        "pointer": cast(places, ctypes.POINTER(Placement)),
    }[form]
    with calls.node_with():
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(calls.gpu(), 9, given, byref(count))
    assert [(place.start, place.size) for place in places] == [(0, 4), (4, 4)]


@pytest.mark.parametrize(
    ("function", "info"),
    [
        ("nvmlDeviceGetGpuInstanceProfileInfoV", pynvml.c_nvmlGpuInstanceProfileInfo_v2_t()),
        ("nvmlDeviceGetMemoryInfo_v2", pynvml.c_nvmlMemory_v2_t()),
    ],
)
def test_a_wrong_version_is_a_version_mismatch(function: str, info: Any) -> None:
    info.version = 1
    with calls.node_with():
        kind = (0,) if "Profile" in function else ()
        code = _library(function)(calls.gpu(), *kind, byref(info))
    assert code == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH


@pytest.mark.parametrize("number", [1 << 32, -(1 << 31) - 1, 1.0, "1", None])
def test_what_is_no_c_int_is_a_misuse(number: object) -> None:
    """ctypes would cut a number off, and cannot pass the others."""
    with calls.node_with():
        device = calls.gpu()
        with pytest.raises(SimulatorMisuse):
            pynvml.nvmlDeviceSetMigMode(device, number)


def test_a_buffer_is_as_long_as_the_caller_says() -> None:
    with calls.node_with():
        device, name = calls.gpu(), _library("nvmlDeviceGetName")
        short = ctypes.create_string_buffer(8)
        assert name(device, short, c_uint(8)) == pynvml.NVML_ERROR_INSUFFICIENT_SIZE
        with pytest.raises(SimulatorMisuse, match="8 bytes"):
            name(device, short, c_uint(96))
        with pytest.raises(SimulatorMisuse, match="char buffer"):
            name(device, (c_int * 96)(), c_uint(96))
