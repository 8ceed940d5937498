"""Where simulated GPUs are: NUMA nodes and NVLinks."""

from __future__ import annotations

import pynvml
import pytest

from nodeagent.simulation.boards import board_names, load_board
from tests.simulation import calls

REMOTE = [pynvml.nvmlDeviceGetNvLinkRemotePciInfo, pynvml.nvmlDeviceGetNvLinkRemoteDeviceType]


def affinity(index: int) -> list[int]:
    """The words of a GPU's memory affinity."""
    return list(pynvml.nvmlDeviceGetMemoryAffinity(calls.gpu(index), 2, 0))


def test_the_halves_of_a_node_are_on_two_numa_nodes() -> None:
    """A single GPU is on the first."""
    with calls.node_with("t4:3"):
        assert [affinity(index) for index in range(3)] == [[1, 0], [1, 0], [2, 0]]
    with calls.node_with("t4"):
        assert affinity(0) == [1, 0]
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlDeviceGetMemoryAffinity(calls.gpu(), 1, 7)


def test_links_lead_to_switches() -> None:
    """Each to one of four, as many links as the card has."""
    with calls.node_with("a100-40gb"):
        gpu = calls.gpu()
        states = [pynvml.nvmlDeviceGetNvLinkState(gpu, link) for link in range(12)]
        kinds = {pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(gpu, link) for link in range(12)}
        ends = {pynvml.nvmlDeviceGetNvLinkRemotePciInfo(gpu, link).busId for link in range(12)}
        assert states == [1] * 12
        assert kinds == {pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH}
        assert len(ends) == 4
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlDeviceGetNvLinkState(gpu, 12)


def test_a_bridge_leads_to_the_card_beside() -> None:
    """Where there is one of the same kind; the links of others are down and lead nowhere."""
    bridge = {"a30": {"nvlinks": 4, "nvlink_peer": "pair"}}
    with calls.node_with("a30:2,t4:1,a30:1", overrides=bridge):
        info = pynvml.nvmlDeviceGetNvLinkRemotePciInfo(calls.gpu(1), 3)
        assert info.busId == pynvml.nvmlDeviceGetPciInfo(calls.gpu(0)).busId
        kind = pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(calls.gpu(1), 3)
        assert kind == pynvml.NVML_NVLINK_DEVICE_TYPE_GPU
        assert pynvml.nvmlDeviceGetNvLinkState(calls.gpu(3), 0) == 0
        for ask in REMOTE:
            with pytest.raises(pynvml.NVMLError_NotSupported):
                ask(calls.gpu(3), 0)


def test_a_card_without_nvlink_refuses() -> None:
    """Each question about links."""
    with calls.node_with("t4"):
        for ask in (pynvml.nvmlDeviceGetNvLinkState, *REMOTE):
            with pytest.raises(pynvml.NVMLError_NotSupported):
                ask(calls.gpu(), 0)


def test_mig_devices_have_no_place_of_their_own() -> None:
    """They are asked through their GPU."""
    with calls.node_with("h100-80gb"):
        device = calls.create_device(calls.gpu(), "1g")
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetNvLinkState(device, 0)
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetMemoryAffinity(device, 1, 0)


@pytest.mark.parametrize("name", board_names())
def test_every_board_has_links_that_fit_its_peers(name: str) -> None:
    """None leads nowhere by design, and no card has more than NVML can number."""
    board = load_board(name)
    assert board.nvlink_peer in {"none", "switch", "pair"}
    assert (board.nvlinks == 0) == (board.nvlink_peer == "none")
    assert board.nvlinks <= pynvml.NVML_NVLINK_MAX_LINKS
