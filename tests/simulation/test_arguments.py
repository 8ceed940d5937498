import ctypes
from ctypes import byref, c_int, c_uint, c_void_p, cast
from typing import Any

import pynvml
import pytest

from nodeagent.simulation import SimulatorMisuse
from tests.simulation import calls

Placement = pynvml.c_nvmlGpuInstancePlacement_t


def _library(name: str) -> Any:
    return getattr(pynvml.nvmlLib, name)


def test_a_placement_by_value_is_a_misuse() -> None:
    """C would read {start 4, size 4} as the pointer 0x400000004 and die."""
    with calls.node_with():
        device = calls.gpu()
        with pytest.raises(SimulatorMisuse, match="by value"):
            pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(device, 9, Placement(4, 4))
        assert calls.instances(device, "3g") == []


def test_another_structure_is_a_misuse() -> None:
    other = pynvml.c_nvmlComputeInstancePlacement_t(4, 4)
    with calls.node_with():
        device = calls.gpu()
        with pytest.raises(SimulatorMisuse, match="c_nvmlGpuInstancePlacement_t"):
            pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(device, 9, byref(other))


def test_an_int_as_a_handle_is_a_misuse() -> None:
    """ctypes would cut it to 32 bits."""
    with calls.node_with():
        token = cast(calls.gpu(), c_void_p).value
        with pytest.raises(SimulatorMisuse, match="handle"):
            pynvml.nvmlDeviceGetMigMode(token)


def test_a_cut_off_handle_is_recognised() -> None:
    """A pointer that has lost its upper half leads nowhere."""
    with calls.node_with():
        token = cast(calls.gpu(), c_void_p).value or 0
        cut = cast(c_void_p(token & 0xFFFFFFFF), pynvml.c_nvmlDevice_t)
        with pytest.raises(SimulatorMisuse, match="cut off"):
            pynvml.nvmlDeviceGetMigMode(cut)


def test_a_handle_that_was_never_given_out_is_a_misuse() -> None:
    """A real library would follow it."""
    with calls.node_with():
        made_up = cast(c_void_p(0x123456789ABC), pynvml.c_nvmlDevice_t)
        with pytest.raises(SimulatorMisuse, match="never given out"):
            pynvml.nvmlDeviceGetMigMode(made_up)


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


def test_an_array_that_is_too_small_is_a_misuse() -> None:
    """NVML writes what there is, wherever the caller's array ends."""
    with calls.node_with():
        device, count = calls.gpu(), c_uint()
        places = (Placement * 1)()
        with pytest.raises(SimulatorMisuse, match="room for 1"):
            pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(device, 9, places, byref(count))
        handles = (pynvml.c_nvmlGpuInstance_t * 6)()
        with pytest.raises(SimulatorMisuse, match="room for 6"):
            pynvml.nvmlDeviceGetGpuInstances(device, 19, handles, byref(count))


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


def test_an_array_of_something_else_is_a_misuse() -> None:
    """A wrong element type would be written over."""
    with calls.node_with():
        device, wrong = calls.gpu(), (c_uint * 16)()
        with pytest.raises(SimulatorMisuse, match="array of c_nvmlGpuInstancePlacement_t"):
            pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(device, 9, wrong, byref(c_uint()))


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


def test_a_result_of_the_wrong_type_is_a_misuse() -> None:
    with calls.node_with():
        device = calls.gpu()
        with pytest.raises(SimulatorMisuse, match="reference to c_int"):
            _library("nvmlDeviceGetMinorNumber")(device, byref(c_int()))
        with pytest.raises(SimulatorMisuse, match="got c_uint"):
            _library("nvmlDeviceGetMinorNumber")(device, c_uint())


def test_a_wrong_number_of_arguments_is_a_misuse() -> None:
    """C would read whatever lies in the registers."""
    with calls.node_with(), pytest.raises(SimulatorMisuse, match="takes 2 arguments, got 1"):
        _library("nvmlDeviceGetMinorNumber")(calls.gpu())


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
