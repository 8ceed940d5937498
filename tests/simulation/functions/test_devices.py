import uuid
from typing import Any

import pynvml
import pytest

from tests.simulation import calls


def test_what_is_not_there() -> None:
    with calls.node_with("h100-80gb"):
        calls.refused("InvalidArgument", lambda: calls.gpu(1))
        calls.refused(
            "NotFound",
            lambda: pynvml.nvmlDeviceGetHandleByUUID("GPU-00000000-0000-0000-0000-000000000000"),
            lambda: pynvml.nvmlDeviceGetMigDeviceHandleByIndex(calls.gpu(), 0),
        )


def test_a_lost_gpu_answers_nothing() -> None:
    with calls.node_with("h100-80gb:2") as node:
        device, other = calls.gpu(0), calls.gpu(1)
        mig_device = calls.create_device(device, "1g")
        uuid = pynvml.nvmlDeviceGetUUID(device)
        node.lose(0)
        calls.refused(
            "GpuIsLost",
            lambda: pynvml.nvmlDeviceGetUUID(device),
            lambda: pynvml.nvmlDeviceGetUUID(mig_device),
            lambda: calls.gpu(0),
            lambda: pynvml.nvmlDeviceGetHandleByUUID(uuid),
        )
        assert pynvml.nvmlDeviceGetCount() == 2
        assert pynvml.nvmlDeviceGetIndex(other) == 1
        node.reset(0)
        assert pynvml.nvmlDeviceGetUUID(calls.gpu(0)) == uuid


MIB = 1 << 20


def _ids(device: Any) -> tuple[int, int]:
    return (
        pynvml.nvmlDeviceGetGpuInstanceId(device),
        pynvml.nvmlDeviceGetComputeInstanceId(device),
    )


def test_the_order_is_that_of_the_ids() -> None:
    with calls.node_with("h100-80gb"):
        calls.create_device(calls.gpu(), "1g", 6)
        big = calls.create(calls.gpu(), "3g", 0)
        for _ in range(2):
            pynvml.nvmlGpuInstanceCreateComputeInstance(big, 0)
        devices = calls.mig_devices(calls.gpu())
        assert [_ids(device) for device in devices] == [(1, 0), (1, 1), (13, 0)]
        assert [pynvml.nvmlDeviceGetIndex(device) for device in devices] == [0, 1, 2]


@pytest.mark.parametrize(("board", "most"), [("a100-40gb", 7), ("a30", 4), ("rtx-pro-6000", 4)])
def test_how_many_there_can_be(board: str, most: int) -> None:
    with calls.node_with(board):
        assert pynvml.nvmlDeviceGetMaxMigDeviceCount(calls.gpu()) == most
    with calls.node_with(board, mig=False):
        assert pynvml.nvmlDeviceGetMaxMigDeviceCount(calls.gpu()) == 0


def test_the_uuid_is_that_of_the_place() -> None:
    with calls.node_with("h100-80gb:2"):
        seen = []
        for index, start in ((0, 0), (0, 0), (0, 1), (1, 0)):
            device = calls.create_device(calls.gpu(index), "1g", start)
            text = pynvml.nvmlDeviceGetUUID(device)
            assert uuid.UUID(text.removeprefix("MIG-")).version == 5
            seen.append(text)
            _destroy(calls.gpu(index), device)
        assert seen[0] == seen[1]
        assert len(set(seen)) == 3


def _destroy(device: Any, mig_device: Any) -> None:
    number = pynvml.nvmlDeviceGetGpuInstanceId(mig_device)
    instance = pynvml.nvmlDeviceGetGpuInstanceById(device, number)
    pynvml.nvmlComputeInstanceDestroy(
        pynvml.nvmlGpuInstanceGetComputeInstanceById(
            instance, pynvml.nvmlDeviceGetComputeInstanceId(mig_device)
        )
    )
    pynvml.nvmlGpuInstanceDestroy(instance)


def test_attributes_are_those_of_both_instances() -> None:
    with calls.node_with("h100-80gb"):
        instance = calls.create(calls.gpu(), "3g")
        pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 1)
        reported = pynvml.nvmlDeviceGetAttributes_v2(calls.mig_devices(calls.gpu())[0])
        values = [getattr(reported, name) for name, _ in type(reported)._fields_]
        assert values == [32, 3, 3, 0, 3, 0, 3, 2, 40448]
        calls.refused("NotSupported", lambda: pynvml.nvmlDeviceGetAttributes_v2(calls.gpu()))


@pytest.mark.parametrize(
    ("board", "name", "memory", "bar1"),
    [
        ("a100-40gb", "1g", 4864, 8191),
        ("a100-40gb", "3g", 19968, 32767),
        ("a100-80gb", "2g", 19968, 32767),
        ("a100-80gb", "3g", 40192, 65535),
        ("h100-pcie", "1g", 9984, 16383),
        ("h100-nvl", "3g", 47488, 65535),
        ("gh200", "1g", 11264, 0),
    ],
)
def test_memory_and_bar1_of_a_device(board: str, name: str, memory: int, bar1: int) -> None:
    """The profile's memory, and its share of BAR1 less 1 MiB, as seen on these cards."""
    with calls.node_with(board):
        device = calls.create_device(calls.gpu(), name)
        assert pynvml.nvmlDeviceGetMemoryInfo(device).total == memory * MIB
        assert pynvml.nvmlDeviceGetBAR1MemoryInfo(device).bar1Total == bar1 * MIB


def test_some_calls_are_for_gpus_or_for_mig_devices_only() -> None:
    with calls.node_with("h100-80gb"):
        device = calls.create_device(calls.gpu(), "1g")
        calls.refused(
            "InvalidArgument",
            lambda: pynvml.nvmlDeviceGetGpuInstanceId(calls.gpu()),
            lambda: pynvml.nvmlDeviceGetComputeInstanceId(calls.gpu()),
            lambda: pynvml.nvmlDeviceGetMigMode(device),
            lambda: pynvml.nvmlDeviceCreateGpuInstance(device, 19),
        )
        calls.refused("NotSupported", lambda: pynvml.nvmlDeviceGetMinorNumber(device))


def test_handles_go_stale_with_what_they_stand_for() -> None:
    with calls.node_with("h100-80gb"):
        device = calls.create_device(calls.gpu(), "1g", 0)
        instance = calls.instances(calls.gpu(), "1g")[0]
        compute = pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0)
        _destroy(calls.gpu(), device)
        calls.create_device(calls.gpu(), "1g", 0)
        calls.refused(
            "InvalidArgument",
            lambda: pynvml.nvmlDeviceGetUUID(device),
            lambda: pynvml.nvmlGpuInstanceGetInfo(instance),
            lambda: pynvml.nvmlComputeInstanceGetInfo(compute),
        )
