"""Finding simulated devices, and what they are called."""

from __future__ import annotations

from collections.abc import Callable

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
