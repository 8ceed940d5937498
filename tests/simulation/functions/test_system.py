import pynvml
import pytest

from nodeagent.simulation import SimulatorMisuse, Switches, simulated
from nodeagent.simulation.codes import Code, Refused
from nodeagent.simulation.handles import Handle, Handles, Kind
from tests.simulation import calls


def test_nothing_answers_before_initialisation() -> None:
    with simulated("h100-80gb"):
        calls.refused("Uninitialized", pynvml.nvmlDeviceGetCount)
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetCount() == 1
        pynvml.nvmlShutdown()
        calls.refused("Uninitialized", pynvml.nvmlDeviceGetCount)
        calls.refused("Uninitialized", pynvml.nvmlShutdown)


def test_handles_do_not_outlive_a_shutdown() -> None:
    with simulated("h100-80gb"):
        pynvml.nvmlInit()
        device = calls.gpu()
        pynvml.nvmlShutdown()
        pynvml.nvmlInit()
        calls.refused("InvalidArgument", lambda: pynvml.nvmlDeviceGetUUID(device))
        assert pynvml.nvmlDeviceGetUUID(calls.gpu()).startswith("GPU-")
        pynvml.nvmlShutdown()


def test_the_codes_are_those_of_pynvml() -> None:
    for code in Code:
        name = "NVML_SUCCESS" if code is Code.SUCCESS else f"NVML_ERROR_{code.name}"
        assert getattr(pynvml, name.replace("IS_LOST", "IS_LOST")) == code


def test_a_driver_that_is_not_loaded() -> None:
    with calls.node_with("h100-80gb") as node:
        device = calls.gpu()
        node.unload_driver()
        calls.refused("DriverNotLoaded", lambda: pynvml.nvmlDeviceGetUUID(device))
        calls.refused("DriverNotLoaded", pynvml.nvmlInit)
        node.load_driver()
        calls.refused("Uninitialized", lambda: pynvml.nvmlDeviceGetUUID(device))
        pynvml.nvmlInit()
        calls.refused("InvalidArgument", lambda: pynvml.nvmlDeviceGetUUID(device))
        assert pynvml.nvmlDeviceGetMigMode(calls.gpu()) == [0, 0]


def test_without_persistence_hopper_forgets_its_mode_with_the_last_client() -> None:
    with calls.node_with("h100-80gb:2,a100-80gb") as node:
        for index in range(3):
            pynvml.nvmlDeviceSetPersistenceMode(calls.gpu(index), 0)
            calls.create_device(calls.gpu(index), "1g")
        node.occupy("1/13/0")
        pynvml.nvmlShutdown()
        pynvml.nvmlInit()
        modes = [pynvml.nvmlDeviceGetMigMode(calls.gpu(i))[0] for i in range(3)]
        assert modes == [0, 1, 1]
        assert [len(card.state.instances) for card in node.cards] == [0, 1, 0]


def _state() -> tuple[object, ...]:
    return (
        pynvml.nvmlLib,
        pynvml._nvmlLib_refcount,  # what is to be restored
        dict(pynvml._nvmlGetFunctionPointer_cache),
        dict(pynvml.NVMLError._errcode_to_string),
    )


def test_pynvml_is_as_before_after_an_error() -> None:
    before = _state()
    with pytest.raises(pynvml.NVMLError_InvalidArgument), simulated("t4"):  # noqa: PT012
        pynvml.nvmlInit()
        calls.gpu(1)
    assert _state() == before


def test_thousands_of_instances_leave_nothing_behind() -> None:
    handles = Handles()
    gpu = handles.give(Handle(Kind.GPU, 1, 0))
    sample = handles.give(Handle(Kind.GPM_SAMPLE, 1, serial=1))
    used = handles.give(Handle(Kind.MIG_DEVICE, 1, 0, 1))
    unused = handles.give(Handle(Kind.MIG_DEVICE, 1, 0, 2))
    tokens = set()
    for serial in range(3, 6000):
        tokens.add(handles.give(Handle(Kind.MIG_DEVICE, 1, 0, serial)))
        handles.take(used, "here")
    assert handles.take(gpu, "here").kind is Kind.GPU
    assert handles.take(sample, "here").kind is Kind.GPM_SAMPLE
    assert handles.take(used, "here").serial == 1
    with pytest.raises(SimulatorMisuse, match="never given out"):
        handles.take(unused, "here")
    assert len(tokens) == 5997
    assert not {gpu, used, unused} & tokens
    oldest_kept = sorted(tokens)[3 - 1024]
    assert handles.take(oldest_kept, "here").serial == 6000 - 1021
    with pytest.raises(SimulatorMisuse):
        handles.take(sorted(tokens)[3 - 1025], "here")


# --- MIG mode -------------------------------------------------------------------------------------


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
