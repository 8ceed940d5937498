from ctypes import byref
from typing import Any

import pynvml
import pytest

from tests.simulation import calls


def _slots(instance: Any, wanted: list[str]) -> list[str]:
    profiles = calls.compute_profiles(instance)
    return [
        calls.slot_of(pynvml.nvmlGpuInstanceCreateComputeInstance(instance, profiles[name].id))[1]
        for name in wanted
    ]


@pytest.mark.parametrize(
    ("board", "name", "wanted", "slots"),
    [
        ("a100-80gb", "3g", ["1c", "2c"], ["0:1", "1:2"]),
        ("a100-80gb", "3g", ["3c"], ["0:3"]),
        ("a100-80gb", "7g", ["3c", "3c", "1c"], ["0:3", "3:3", "6:1"]),
        ("h100-pcie", "3g", ["1c", "2c"], ["0:1", "1:2"]),
        ("rtx-pro-6000", "4g", ["2c", "1c", "1c"], ["0:2", "2:1", "3:1"]),
        ("h100-80gb", "3g", ["3c"], ["0:4"]),
        ("h100-80gb", "1gR2", ["1c"], ["0:2"]),
        ("h100-80gb", "7g", ["7c"], ["0:8"]),
        ("h100-80gb", "3g", ["1c", "2c"], ["2:1", "0:2"]),
    ],
)
def test_where_instances_land(board: str, name: str, wanted: list[str], slots: list[str]) -> None:
    """First fit on Ampere and where there is no smaller size, an aligned tree on the others."""
    with calls.node_with(board):
        assert _slots(calls.create(calls.gpu(), name), wanted) == slots


def test_unaligned_slots_do_not_exist_on_an_aligned_tree() -> None:
    """After one 1c at slot 0 of a 3g, a 2c has no place on Hopper, but has one on Ampere."""
    for board, fits in (("h100-80gb", False), ("a100-80gb", True)):
        with calls.node_with(board):
            instance = calls.create(calls.gpu(), "3g")
            place = pynvml.c_nvmlComputeInstancePlacement_t(0, 1)
            pynvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement(instance, 0, byref(place))
            assert pynvml.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance, 1) == fits


def test_double_memory_has_a_profile_of_its_own() -> None:
    """1g with double memory is filled by compute profile 7 on Hopper."""
    with calls.node_with("h100-80gb"):
        assert calls.whole(calls.create(calls.gpu(), "1gR2")).id == 7
    with calls.node_with("a100-80gb"):
        assert calls.whole(calls.create(calls.gpu(), "1gR2")).id == 0


@pytest.mark.parametrize(
    ("kind", "engines", "error"),
    [
        (pynvml.NVML_COMPUTE_INSTANCE_PROFILE_4_SLICE, 0, pynvml.NVMLError_NotSupported),
        (pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT, 0, pynvml.NVMLError_InvalidArgument),
        (pynvml.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE, 1, pynvml.NVMLError_InvalidArgument),
    ],
)
def test_absent_profiles(kind: int, engines: int, error: type[Exception]) -> None:
    with calls.node_with("h100-80gb"):
        instance = calls.create(calls.gpu(), "3g")
        with pytest.raises(error):
            pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, kind, engines)


def test_a_compute_instance_with_a_process_stays() -> None:
    with calls.node_with("h100-80gb") as node:
        device = calls.create_device(calls.gpu(), "1g")
        process = node.occupy(pynvml.nvmlDeviceGetUUID(device))
        instance = calls.instances(calls.gpu(), "1g")[0]
        compute = pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0)
        with pytest.raises(pynvml.NVMLError_InUse):
            pynvml.nvmlComputeInstanceDestroy(compute)
        node.release(pid=process.pid)
        pynvml.nvmlComputeInstanceDestroy(compute)
        with pytest.raises(pynvml.NVMLError_NotFound):
            pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0)


def test_an_ordinary_user_changes_nothing() -> None:
    with calls.node_with("h100-80gb", privileged=False) as node:
        card = node.cards[0]
        made = card.create_instance(9)
        card.create_compute(made, 0)
        device = calls.mig_devices(calls.gpu())[0]
        assert pynvml.nvmlDeviceGetGpuInstanceId(device) == made.id
        with pytest.raises(pynvml.NVMLError_NoPermission):
            pynvml.nvmlDeviceGetGpuInstanceById(calls.gpu(), made.id)
