"""Finding simulated GPUs and MIG devices: order, identity, what they tell."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pynvml
import pytest

from nodeagent.simulation import Switches, simulated
from tests.simulation import calls


def test_a_node_of_the_same_boards_is_the_same_node() -> None:
    """Identities come from board and index, and differ between cards."""
    seen = []
    for _ in range(2):
        with calls.node_with("h100-80gb:2,t4"):
            seen.append([pynvml.nvmlDeviceGetUUID(calls.gpu(i)) for i in range(3)])
    assert seen[0] == seen[1]
    assert len(set(seen[0])) == 3


def test_devices_are_found_in_three_ways() -> None:
    """By index, UUID and PCI address, in all the forms an address has."""
    with calls.node_with("h100-80gb:2"):
        uuid = pynvml.nvmlDeviceGetUUID(calls.gpu(1))
        address = pynvml.nvmlDeviceGetPciInfo(calls.gpu(1)).busId
        assert address == "00000000:27:00.0"
        for text in (address, "0000:27:00.0", "27:00.0", address.lower()):
            found = pynvml.nvmlDeviceGetHandleByPciBusId(text)
            assert pynvml.nvmlDeviceGetUUID(found) == uuid
        assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(uuid)) == 1


def test_what_is_not_there() -> None:
    """An index too high is invalid; a UUID or an address of nothing is not found."""
    with calls.node_with("h100-80gb"):
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            calls.gpu(1)
        with pytest.raises(pynvml.NVMLError_NotFound):
            pynvml.nvmlDeviceGetHandleByUUID("GPU-00000000-0000-0000-0000-000000000000")
        with pytest.raises(pynvml.NVMLError_NotFound):
            pynvml.nvmlDeviceGetHandleByPciBusId("0000:FF:00.0")


def test_pci_ids() -> None:
    """Device and vendor are packed as NVML does it; every card has a bus of its own."""
    with calls.node_with("a100-40gb,h100-80gb,t4:20"):
        infos = [pynvml.nvmlDeviceGetPciInfo(calls.gpu(i)) for i in range(22)]
    assert [hex(info.pciDeviceId) for info in infos[:3]] == [
        "0x20b010de",
        "0x233010de",
        "0x1eb810de",
    ]
    assert infos[0].pciSubSystemId == 0x134F10DE
    assert len({(info.domain, info.bus) for info in infos}) == 22
    assert infos[0].busIdLegacy == "0000:1A:00.0"


def test_a_lost_gpu_answers_nothing() -> None:
    """Every call on it and on its instances fails, the others go on, a reset brings it back."""
    with calls.node_with("h100-80gb:2") as node:
        device, other = calls.gpu(0), calls.gpu(1)
        mig_device = calls.create_device(device, "1g")
        uuid = pynvml.nvmlDeviceGetUUID(device)
        node.lose(0)
        asked: tuple[Callable[[], object], ...] = (
            lambda: pynvml.nvmlDeviceGetUUID(device),
            lambda: pynvml.nvmlDeviceGetUUID(mig_device),
            lambda: calls.gpu(0),
            lambda: pynvml.nvmlDeviceGetHandleByUUID(uuid),
        )
        for ask in asked:
            with pytest.raises(pynvml.NVMLError_GpuIsLost):
                ask()
        assert pynvml.nvmlDeviceGetCount() == 2
        assert pynvml.nvmlDeviceGetIndex(other) == 1
        node.reset(0)
        assert pynvml.nvmlDeviceGetUUID(calls.gpu(0)) == uuid


def test_handles_are_the_same_for_the_same_device() -> None:
    """Asking twice gives the same pointer, as NVML does within a session."""
    with simulated("h100-80gb"):
        pynvml.nvmlInit()
        pointers = {bytes(calls.gpu()) for _ in range(3)}
        pynvml.nvmlShutdown()
    assert len(pointers) == 1


def test_a_virtual_gpu_cannot_be_divided() -> None:
    """In a vGPU guest the calls for GPU instances are not supported."""
    with calls.node_with("h100-80gb", switches=Switches(vgpu_guest=True)):
        device = calls.gpu()
        mode = pynvml.nvmlDeviceGetVirtualizationMode(device)
        assert mode == pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU
        assert calls.profiles(device) == {}
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceCreateGpuInstance(device, 19)


MIB = 1 << 20


def _ids(device: Any) -> tuple[int, int]:
    return (
        pynvml.nvmlDeviceGetGpuInstanceId(device),
        pynvml.nvmlDeviceGetComputeInstanceId(device),
    )


def test_the_order_is_that_of_the_ids() -> None:
    """Ascending GPU instance id, then compute instance id, without gaps."""
    with calls.node_with("h100-80gb"):
        calls.create_device(calls.gpu(), "1g", 6)
        big = calls.create(calls.gpu(), "3g", 0)
        for _ in range(2):
            pynvml.nvmlGpuInstanceCreateComputeInstance(big, 0)
        devices = calls.mig_devices(calls.gpu())
        assert [_ids(device) for device in devices] == [(1, 0), (1, 1), (13, 0)]
        assert [pynvml.nvmlDeviceGetIndex(device) for device in devices] == [0, 1, 2]


def test_an_index_without_a_device() -> None:
    """Is not found, or by another driver an invalid argument."""
    with calls.node_with("h100-80gb"), pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetMigDeviceHandleByIndex(calls.gpu(), 0)
    switches = Switches(missing_mig_index="INVALID_ARGUMENT")
    with (
        calls.node_with("h100-80gb", switches=switches),
        pytest.raises(pynvml.NVMLError_InvalidArgument),
    ):
        pynvml.nvmlDeviceGetMigDeviceHandleByIndex(calls.gpu(), 0)


@pytest.mark.parametrize(("board", "most"), [("a100-40gb", 7), ("a30", 4), ("rtx-pro-6000", 4)])
def test_how_many_there_can_be(board: str, most: int) -> None:
    """The most a card can have, and none while MIG is off."""
    with calls.node_with(board):
        assert pynvml.nvmlDeviceGetMaxMigDeviceCount(calls.gpu()) == most
    with calls.node_with(board, mig=False):
        assert pynvml.nvmlDeviceGetMaxMigDeviceCount(calls.gpu()) == 0


def test_a_gpu_instance_alone_is_no_device() -> None:
    """Without a compute instance there is nothing to enumerate."""
    with calls.node_with("h100-80gb"):
        calls.create(calls.gpu(), "7g")
        assert calls.mig_devices(calls.gpu()) == []


def test_the_uuid_is_that_of_the_place() -> None:
    """Version 5, the same after re-creation at the same place, another at any other place."""
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


def test_the_uuid_may_change_with_re_creation() -> None:
    """With the switch, the same place gets another UUID each time."""
    with calls.node_with("h100-80gb", switches=Switches(new_uuid_on_recreate=True)):
        first = calls.create_device(calls.gpu(), "1g", 0)
        before = pynvml.nvmlDeviceGetUUID(first)
        _destroy(calls.gpu(), first)
        again = calls.create_device(calls.gpu(), "1g", 0)
        assert before != pynvml.nvmlDeviceGetUUID(again)


def _destroy(device: Any, mig_device: Any) -> None:
    number = pynvml.nvmlDeviceGetGpuInstanceId(mig_device)
    instance = pynvml.nvmlDeviceGetGpuInstanceById(device, number)
    pynvml.nvmlComputeInstanceDestroy(
        pynvml.nvmlGpuInstanceGetComputeInstanceById(
            instance, pynvml.nvmlDeviceGetComputeInstanceId(mig_device)
        )
    )
    pynvml.nvmlGpuInstanceDestroy(instance)


def test_devices_are_found_by_uuid_and_lead_to_their_gpu() -> None:
    """A MIG device's handle is known as one, and its parent is the GPU."""
    with calls.node_with("h100-80gb:2"):
        made = calls.create_device(calls.gpu(1), "2g")
        found = pynvml.nvmlDeviceGetHandleByUUID(pynvml.nvmlDeviceGetUUID(made))
        assert pynvml.nvmlDeviceIsMigDeviceHandle(found).value == 1
        parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(found)
        assert pynvml.nvmlDeviceIsMigDeviceHandle(parent).value == 0
        assert pynvml.nvmlDeviceGetIndex(parent) == 1


def test_attributes_are_those_of_both_instances() -> None:
    """Multiprocessors and slices of the part, engines and memory of the whole; none of a GPU."""
    with calls.node_with("h100-80gb"):
        instance = calls.create(calls.gpu(), "3g")
        pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 1)
        reported = pynvml.nvmlDeviceGetAttributes_v2(calls.mig_devices(calls.gpu())[0])
        values = [getattr(reported, name) for name, _ in type(reported)._fields_]
        assert values == [32, 3, 3, 0, 3, 0, 3, 2, 40448]
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetAttributes_v2(calls.gpu())


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


def test_idle_devices_use_a_little_memory() -> None:
    """37 MiB of a 3g and 49 MiB of a 4g, as on an A100 80GB; compute instances share it."""
    with calls.node_with("a100-80gb"):
        big = calls.create_device(calls.gpu(), "4g")
        part = calls.create(calls.gpu(), "3g")
        for _ in range(2):
            pynvml.nvmlGpuInstanceCreateComputeInstance(part, 0)
        used = [pynvml.nvmlDeviceGetMemoryInfo(d).used for d in calls.mig_devices(calls.gpu())]
        assert sorted(used) == [37 * MIB, 37 * MIB, 49 * MIB]
        assert pynvml.nvmlDeviceGetMemoryInfo(big, version=pynvml.nvmlMemory_v2).used == 49 * MIB


def test_instance_ids_are_for_mig_devices_only() -> None:
    """A GPU has none, and is no other device's part."""
    with calls.node_with("h100-80gb"):
        for ask in (
            pynvml.nvmlDeviceGetGpuInstanceId,
            pynvml.nvmlDeviceGetComputeInstanceId,
            pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle,
        ):
            with pytest.raises(pynvml.NVMLError_InvalidArgument):
                ask(calls.gpu())


def test_gpu_calls_refuse_mig_devices() -> None:
    """Mode, profiles and creation are matters of the whole GPU."""
    with calls.node_with("h100-80gb"):
        device = calls.create_device(calls.gpu(), "1g")
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlDeviceGetMigMode(device)
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlDeviceCreateGpuInstance(device, 19)
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetMinorNumber(device)


@pytest.mark.parametrize("policy", ["INVALID_ARGUMENT", "NOT_FOUND"])
def test_handles_go_stale_with_what_they_stand_for(policy: str) -> None:
    """Of a MIG device, a GPU and a compute instance, also when the same place is made again."""
    error = {"INVALID_ARGUMENT": "InvalidArgument", "NOT_FOUND": "NotFound"}[policy]
    with calls.node_with("h100-80gb", switches=Switches(stale_handles=policy)):
        device = calls.create_device(calls.gpu(), "1g", 0)
        instance = calls.instances(calls.gpu(), "1g")[0]
        compute = pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0)
        _destroy(calls.gpu(), device)
        calls.create_device(calls.gpu(), "1g", 0)
        asked: tuple[Callable[[], object], ...] = (
            lambda: pynvml.nvmlDeviceGetUUID(device),
            lambda: pynvml.nvmlGpuInstanceGetInfo(instance),
            lambda: pynvml.nvmlComputeInstanceGetInfo(compute),
        )
        for ask in asked:
            with pytest.raises(getattr(pynvml, f"NVMLError_{error}")):
                ask()


def test_mirrored_cards_count_from_the_other_side() -> None:
    """The switch is one of each GPU."""
    with calls.node_with("h100-80gb:2", mirrored=[1]):
        ids = [calls.place_of(calls.create(calls.gpu(i), "1g", 0))[0] for i in range(2)]
        assert ids == [7, 11]


def test_old_drivers_name_mig_devices_by_their_numbers() -> None:
    """Before R470; a device is found by that name too."""
    with calls.node_with("a100-40gb", switches=Switches(old_mig_uuids=True)):
        device = calls.create_device(calls.gpu(), "3g", 0)
        text = pynvml.nvmlDeviceGetUUID(device)
        assert text == f"MIG-{pynvml.nvmlDeviceGetUUID(calls.gpu())}/1/0"
        found = pynvml.nvmlDeviceGetHandleByUUID(text)
        assert pynvml.nvmlDeviceGetGpuInstanceId(found) == 1
