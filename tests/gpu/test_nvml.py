"""The wrappers name things that exist and pass exact arguments; what is missing is remembered."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pynvml
import pytest

import nodeagent.gpu
from nodeagent.errors import DriverError, DriverUnavailable
from nodeagent.gpu import nvml
from nodeagent.gpu.users import device_processes
from nodeagent.plan.observed import Placement
from nodeagent.simulation import SimulatedNode, Switches, simulated
from nodeagent.simulation.nvml_library import SimulatedLibrary

PACKAGE = Path(nodeagent.gpu.__file__).parent
ONE_G = 19  # nvidia-smi's id of 1g.10gb on H100

# What the agent counts on of each wrapper; pynvml has no types that would tell.
PARAMETERS = {
    "nvmlDeviceCreateGpuInstanceWithPlacement": ["device", "profileId", "placement"],
    "nvmlDeviceGetAttributes": ["device"],
    "nvmlDeviceGetComputeInstanceId": ["device"],
    "nvmlDeviceGetComputeMode": ["handle"],
    "nvmlDeviceGetComputeRunningProcesses_v2": ["handle"],
    "nvmlDeviceGetComputeRunningProcesses_v3": ["handle"],
    "nvmlDeviceGetCount": [],
    "nvmlDeviceGetCudaComputeCapability": ["handle"],
    "nvmlDeviceGetFieldValues": ["handle", "fieldIds"],
    "nvmlDeviceGetGpuInstanceById": ["device", "gpuInstanceId"],
    "nvmlDeviceGetGpuInstanceId": ["device"],
    "nvmlDeviceGetGpuInstancePossiblePlacements": [
        "device",
        "profileId",
        "placementsRef",
        "countRef",
    ],
    "nvmlDeviceGetGpuInstanceProfileInfo": ["device", "profile", "version"],
    "nvmlDeviceGetGpuInstances": ["device", "profileId", "gpuInstancesRef", "countRef"],
    "nvmlDeviceGetGraphicsRunningProcesses_v2": ["handle"],
    "nvmlDeviceGetGraphicsRunningProcesses_v3": ["handle"],
    "nvmlDeviceGetHandleByIndex": ["index"],
    "nvmlDeviceGetHandleByUUID": ["uuid"],
    "nvmlDeviceGetMPSComputeRunningProcesses_v2": ["handle"],
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": ["handle"],
    "nvmlDeviceGetMaxMigDeviceCount": ["device"],
    "nvmlDeviceGetMemoryAffinity": ["handle", "nodeSetSize", "scope"],
    "nvmlDeviceGetMemoryInfo": ["handle", "version"],
    "nvmlDeviceGetMigDeviceHandleByIndex": ["device", "index"],
    "nvmlDeviceGetMigMode": ["device"],
    "nvmlDeviceGetMinorNumber": ["handle"],
    "nvmlDeviceGetName": ["handle"],
    "nvmlDeviceGetNvLinkRemoteDeviceType": ["handle", "link"],
    "nvmlDeviceGetNvLinkRemotePciInfo": ["device", "link"],
    "nvmlDeviceGetNvLinkState": ["device", "link"],
    "nvmlDeviceGetPciInfo": ["handle"],
    "nvmlDeviceGetSupportedEventTypes": ["handle"],
    "nvmlDeviceGetUUID": ["handle"],
    "nvmlDeviceGetVirtualizationMode": ["handle"],
    "nvmlDeviceGetVbiosVersion": ["handle"],
    "nvmlDeviceReadPRMCounters_v1": ["handle", "c_info"],
    "nvmlDeviceRegisterEvents": ["handle", "eventTypes", "eventSet"],
    "nvmlDeviceSetComputeMode": ["handle", "mode"],
    "nvmlDeviceSetMigMode": ["device", "mode"],
    "nvmlComputeInstanceDestroy": ["computeInstance"],
    "nvmlComputeInstanceGetInfo": ["computeInstance"],
    "nvmlEventSetCreate": [],
    "nvmlEventSetFree": ["eventSet"],
    "nvmlEventSetWait": ["eventSet", "timeoutms"],
    "nvmlGpuInstanceCreateComputeInstance": ["gpuInstance", "profileId"],
    "nvmlGpuInstanceDestroy": ["gpuInstance"],
    "nvmlGpuInstanceGetComputeInstanceById": ["gpuInstance", "computeInstanceId"],
    "nvmlGpuInstanceGetComputeInstancePossiblePlacements": [
        "gpuInstance",
        "profileId",
        "placementsRef",
        "countRef",
    ],
    "nvmlGpuInstanceGetComputeInstanceProfileInfo": [
        "device",  # so named in pynvml, though it is a GPU instance
        "profile",
        "engProfile",
        "version",
    ],
    "nvmlGpuInstanceGetComputeInstances": [
        "gpuInstance",
        "profileId",
        "computeInstancesRef",
        "countRef",
    ],
    "nvmlGpuInstanceGetInfo": ["gpuInstance"],
    "nvmlInit": [],
    "nvmlShutdown": [],
    "nvmlSystemEventSetCreate": ["version"],
    "nvmlSystemEventSetFree": ["version", "setHandle"],
    "nvmlSystemEventSetWait": [
        "version",
        "setHandle",
        "timeoutMs",
        "eventData",
        "eventDataSize",
    ],
    "nvmlSystemGetCudaDriverVersion_v2": [],
    "nvmlSystemGetDriverVersion": [],
    "nvmlSystemGetProcessName": ["pid"],
    "nvmlSystemRegisterEvents": ["version", "eventTypes", "setHandle"],
}

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


def test_every_wrapper_that_is_used_has_the_parameters_counted_on() -> None:
    """A newer pynvml that changes one is noticed here."""
    wrappers = {name for name in names_used() if name.startswith("nvml") and name[4].isupper()}
    wrappers = {name for name in wrappers if callable(getattr(pynvml, name))}
    assert wrappers == set(PARAMETERS)
    for name, expected in PARAMETERS.items():
        assert list(inspect.signature(getattr(pynvml, name)).parameters) == expected, name


def test_every_c_function_that_is_used_exists_in_the_simulator() -> None:
    """Else the tests would take it for missing in the driver, and pass."""
    library = SimulatedLibrary(SimulatedNode("t4:1"))
    for wrapper in PARAMETERS:
        for name in C_NAMES.get(wrapper, [wrapper]):
            assert callable(getattr(library, name)), name


def test_only_two_modules_call_pynvml() -> None:
    """Elsewhere in the package at most its constants are used."""
    calling = {f.name for f in PACKAGE.rglob("*.py") if "pynvml.nvml" in f.read_text()}
    assert calling == {"nvml.py", "event_listener.py"}


def test_a_missing_library_is_reported_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to do about it."""
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "CDLL", _no_library)
    with pytest.raises(DriverUnavailable, match=r"libnvidia-ml\.so\.1 was not found"):
        nvml.initialise()


def _no_library(name: str) -> None:
    raise OSError(f"{name}: cannot open shared object file")


def test_a_function_that_the_driver_lacks_is_reported_as_such() -> None:
    """Every time, and without a call into the library; nothing is remembered that may pass."""
    with simulated("t4:1", switches=Switches(missing_functions=("nvmlDeviceGetMigMode",))) as node:
        nvml.initialise()
        gpu = nvml.device_by_index(0)
        for _ in range(2):
            with pytest.raises(DriverError, match="too old to have this function") as caught:
                nvml.mig_mode(gpu)
            assert caught.value.code == 13
        assert not node.journal.named("nvmlDeviceGetMigMode")
        nvml.shutdown()


OLD = (
    "nvmlDeviceGetGpuInstanceProfileInfoV",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlGpuInstanceGetComputeInstanceProfileInfoV",
    "nvmlDeviceGetComputeRunningProcesses_v3",
)


def test_older_drivers_are_asked_by_the_older_functions() -> None:
    """They tell the same, but for the profile's name."""
    with simulated("h100-80gb:1", switches=Switches(missing_functions=OLD)) as node:
        nvml.initialise()
        gpu = nvml.device_by_index(0)
        nvml.set_mig_mode(gpu, True)
        figures = nvml.gpu_instance_profile(gpu, 0)
        assert (figures.id, figures.slices, figures.name) == (ONE_G, 1, "")
        assert nvml.memory(gpu).total > 70 << 30
        instance = nvml.create_gpu_instance(gpu, ONE_G, Placement(0, 1))
        assert nvml.compute_profile(instance, 0).slices == 1
        node.occupy(0)
        assert len(device_processes(gpu, "compute")) == 1
        nvml.shutdown()
