import pynvml
import pytest

from nodeagent.simulation import SimulatorMisuse, simulated
from nodeagent.simulation.codes import Code
from nodeagent.simulation.handles import Handle, Handles, Kind
from tests.simulation import calls


def test_nothing_answers_before_initialisation() -> None:
    with simulated("h100-80gb"):
        with pytest.raises(pynvml.NVMLError_Uninitialized):
            pynvml.nvmlDeviceGetCount()
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetCount() == 1
        pynvml.nvmlShutdown()
        with pytest.raises(pynvml.NVMLError_Uninitialized):
            pynvml.nvmlDeviceGetCount()
        with pytest.raises(pynvml.NVMLError_Uninitialized):
            pynvml.nvmlShutdown()


def test_handles_do_not_outlive_a_shutdown() -> None:
    with simulated("h100-80gb"):
        pynvml.nvmlInit()
        device = calls.gpu()
        pynvml.nvmlShutdown()
        pynvml.nvmlInit()
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlDeviceGetUUID(device)
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
        with pytest.raises(pynvml.NVMLError_DriverNotLoaded):
            pynvml.nvmlDeviceGetUUID(device)
        with pytest.raises(pynvml.NVMLError_DriverNotLoaded):
            pynvml.nvmlInit()
        node.load_driver()
        with pytest.raises(pynvml.NVMLError_Uninitialized):
            pynvml.nvmlDeviceGetUUID(device)
        pynvml.nvmlInit()
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlDeviceGetUUID(device)
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
