import pynvml
import pytest

from nodeagent.simulation import Switches
from nodeagent.simulation.codes import Code, Refused
from tests.simulation import calls

ON, OFF = pynvml.NVML_DEVICE_MIG_ENABLE, pynvml.NVML_DEVICE_MIG_DISABLE


def _mode() -> list[int]:
    return [int(mode) for mode in pynvml.nvmlDeviceGetMigMode(calls.gpu())]


def _set(mode: int) -> int:
    return int(pynvml.nvmlDeviceSetMigMode(calls.gpu(), mode))


def test_ampere_may_reset_itself_when_idle() -> None:
    with calls.node_with("a30", mig=False, switches=Switches(ampere_mode="whenIdle")) as node:
        process = node.occupy(0)
        assert _set(ON) == Code.IN_USE
        assert _mode() == [0, 1]
        node.release(pid=process.pid)
        assert _set(ON) == Code.SUCCESS
        assert _mode() == [1, 1]


def test_a_passed_through_ampere_needs_the_machine_restarted() -> None:
    """RESET_REQUIRED, whatever the driver would do by itself; Hopper needs nothing."""
    switches = Switches(ampere_mode="whenIdle", passthrough=True)
    with calls.node_with("a100-80gb", mig=False, switches=switches) as node:
        assert _set(ON) == Code.RESET_REQUIRED
        node.reboot()
        assert _mode() == [1, 1]
    with calls.node_with("h100-80gb", mig=False, switches=switches):
        assert _set(ON) == Code.SUCCESS


@pytest.mark.parametrize("board", ["a100-80gb", "h100-80gb"])
def test_a_client_keeps_the_mode(board: str) -> None:
    with calls.node_with(board, mig=False) as node:
        node.occupy(0)
        assert _set(ON) == Code.IN_USE
        assert _mode() == [0, 1]


def test_the_mode_is_not_switched_off_under_a_process() -> None:
    with calls.node_with("h100-80gb") as node:
        device = calls.create_device(calls.gpu(), "1g")
        process = node.occupy(pynvml.nvmlDeviceGetUUID(device))
        assert _set(OFF) == Code.IN_USE
        assert len(calls.mig_devices(calls.gpu())) == 1
        node.release(pid=process.pid)
        assert _set(OFF) == Code.SUCCESS
        assert node.cards[0].state.instances == []


def test_idle_instances_may_keep_the_mode_too() -> None:
    with calls.node_with("h100-80gb", switches=Switches(disable_needs_no_instances=True)):
        instance = calls.create(calls.gpu(), "1g")
        assert _set(OFF) == Code.IN_USE
        pynvml.nvmlGpuInstanceDestroy(instance)
        assert _set(OFF) == Code.SUCCESS


def test_a_reset_is_refused_while_the_gpu_is_in_use() -> None:
    with calls.node_with("a100-80gb") as node:
        calls.create_device(calls.gpu(), "1g")
        node.occupy("0/13/0")
        with pytest.raises(Refused, match="IN_USE"):
            node.reset(0)
        assert len(calls.mig_devices(calls.gpu())) == 1


def test_a_reset_takes_instances_and_hopper_its_mode() -> None:
    for board, mode in (("a100-80gb", [1, 1]), ("h100-80gb", [0, 0])):
        with calls.node_with(board) as node:
            calls.create(calls.gpu(), "1g")
            node.reset(0)
            assert _mode() == mode
            assert node.cards[0].state.instances == []
