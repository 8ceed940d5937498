import ast
import re
from pathlib import Path

import pynvml
import pytest

import nodeagent.gpu
from nodeagent.errors import DriverError, DriverUnavailable, GpuInUse, GpuLost
from nodeagent.gpu import nvml
from nodeagent.gpu.nvml_errors import driver_error, explain
from nodeagent.simulation import SimulatedNode, Switches, simulated
from nodeagent.simulation.nvml_library import SimulatedLibrary

PACKAGE = Path(nodeagent.gpu.__file__).parent

# Where the name of the C function is another than the wrapper's.
C_NAMES = {
    "nvmlInit": ["nvmlInitWithFlags"],
    "nvmlDeviceGetCount": ["nvmlDeviceGetCount_v2"],
    "nvmlDeviceGetHandleByIndex": ["nvmlDeviceGetHandleByIndex_v2"],
    "nvmlDeviceGetPciInfo": ["nvmlDeviceGetPciInfo_v3"],
    "nvmlDeviceGetMemoryInfo": ["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"],
    "nvmlDeviceGetGpuInstanceProfileInfo": [
        "nvmlDeviceGetGpuInstanceProfileInfo",
        "nvmlDeviceGetGpuInstanceProfileInfoV",
    ],
    "nvmlDeviceGetGpuInstancePossiblePlacements": ["nvmlDeviceGetGpuInstancePossiblePlacements_v2"],
    "nvmlGpuInstanceGetComputeInstanceProfileInfo": [
        "nvmlGpuInstanceGetComputeInstanceProfileInfo",
        "nvmlGpuInstanceGetComputeInstanceProfileInfoV",
    ],
    "nvmlComputeInstanceGetInfo": ["nvmlComputeInstanceGetInfo_v2"],
    "nvmlEventSetWait": ["nvmlEventSetWait_v2"],
    "nvmlDeviceGetAttributes": ["nvmlDeviceGetAttributes_v2"],
    "nvmlDeviceGetNvLinkRemotePciInfo": ["nvmlDeviceGetNvLinkRemotePciInfo_v2"],
}


def names_used() -> set[str]:
    """Every `pynvml.X` in the package, and every function that is called by its name."""
    nodes = [n for f in PACKAGE.rglob("*.py") for n in ast.walk(ast.parse(f.read_text()))]
    used = {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "pynvml"
    }
    texts = {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    called = {text for text in texts if re.fullmatch("nvml[A-Z][A-Za-z]+(_v[0-9])?", text)}
    return used | called - {name for names in C_NAMES.values() for name in names}


def test_every_name_of_pynvml_that_is_used_exists() -> None:
    """A typo would show only on the machine where the call is made."""
    assert [name for name in sorted(names_used()) if not hasattr(pynvml, name)] == []


def test_every_c_function_that_is_used_exists_in_the_simulator() -> None:
    """Else the tests would take it for missing in the driver, and pass."""
    library = SimulatedLibrary(SimulatedNode("t4:1"))
    wrappers = {name for name in names_used() if name.startswith("nvml") and name[4].isupper()}
    for wrapper in (name for name in wrappers if callable(getattr(pynvml, name))):
        for name in C_NAMES.get(wrapper, [wrapper]):
            assert callable(getattr(library, name)), name


def test_only_two_modules_call_pynvml() -> None:
    calling = {f.name for f in PACKAGE.rglob("*.py") if "pynvml.nvml" in f.read_text()}
    assert calling == {"nvml.py", "event_listener.py"}


def test_a_missing_library_is_reported_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "CDLL", _no_library)
    with pytest.raises(DriverUnavailable, match=r"libnvidia-ml\.so\.1 was not found"):
        nvml.initialise()


def _no_library(name: str) -> None:
    raise OSError(f"{name}: cannot open shared object file")


def test_a_function_that_the_driver_lacks_is_reported_as_such() -> None:
    with simulated("t4:1", switches=Switches(missing_functions=("nvmlDeviceGetMigMode",))) as node:
        nvml.initialise()
        gpu = nvml.device_by_index(0)
        for _ in range(2):
            with pytest.raises(DriverError, match="too old to have this function") as caught:
                nvml.mig_mode(gpu)
            assert caught.value.code == 13
        assert not node.journal.named("nvmlDeviceGetMigMode")
        nvml.shutdown()


KNOWN = [
    value
    for name, value in vars(pynvml).items()
    if name.startswith("NVML_ERROR_") and isinstance(value, int)
]


def test_pynvml_still_has_the_codes_that_were_written_for() -> None:
    assert sorted(KNOWN) == [*range(1, 31), 999]


def test_every_known_code_has_a_name_and_a_sentence() -> None:
    for code in KNOWN:
        found = explain(code)
        assert type(pynvml.NVMLError(code)).__name__ == f"NVMLError_{found.name}"
        assert len(found.meaning.split()) >= 4
        assert "newer than this program" not in found.meaning


def test_an_unknown_code_is_reported_with_its_number() -> None:
    """A driver newer than this program still gets an honest sentence."""
    for code in (31, 77, 1000, -1):
        error = driver_error(code, "nvmlDeviceGetUUID")
        assert str(code) in str(error)
        assert error.code == code
        assert "nvml.h" in error.remedy


def test_codes_become_the_kind_of_error_that_the_layers_above_act_on() -> None:
    kinds: dict[int, type[DriverError]] = dict.fromkeys(KNOWN, DriverError)
    kinds |= dict.fromkeys((1, 9, 12, 18), DriverUnavailable)
    kinds |= {15: GpuLost, 16: GpuLost, 19: GpuInUse}
    assert {code: type(driver_error(code, "nvmlDeviceGetUUID")) for code in KNOWN} == kinds


def test_a_code_says_more_where_the_call_is_known() -> None:
    for code, call, words in (
        (23, "nvmlDeviceCreateGpuInstanceWithPlacement", "no free room"),
        (19, "nvmlDeviceCreateGpuInstanceWithPlacement", "opened the GPU before it was divided"),
        (19, "nvmlGpuInstanceDestroy", "still has compute instances"),
        (19, "nvmlComputeInstanceDestroy", "a process still uses"),
        (16, "nvmlDeviceSetMigMode", "only with a reset"),
        (4, "nvmlDeviceSetMigMode", "root"),
        (3, "nvmlDeviceSetMigMode", "has no MIG"),
        (4, "nvmlDeviceSetComputeMode", "root"),
        (18, "nvmlInit", "different versions"),
        (9, "nvmlInit", "kernel driver is not loaded"),
        (12, "nvmlInit", "libnvidia-ml.so.1"),
    ):
        error = driver_error(code, call)
        assert words in error.message
        assert call in error.message
        assert error.remedy


def test_no_words_of_the_library_are_needed() -> None:
    """pynvml's own text of code 19 would call into the library, which may be gone."""
    before = dict(pynvml.NVMLError._errcode_to_string)
    str(driver_error(19, "nvmlGpuInstanceDestroy"))
    assert before == pynvml.NVMLError._errcode_to_string
