"""A sentence for every code the driver can return: what it means and what would be right.

The general meaning of a code comes from NVML's header; where a code means something narrower for
one call (IN_USE of a destroy, INSUFFICIENT_RESOURCES of a create), that call has its own words.
pynvml's own texts are not used: for many codes they call into the library again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

from nodeagent.errors import (
    LIBRARY_MISSING,
    NOT_LOADED,
    DeadlineExceeded,
    DriverError,
    DriverUnavailable,
    GpuInUse,
    GpuLost,
)
from nodeagent.health.readings import Silence

UNINITIALIZED: Final = 1
INVALID_ARGUMENT: Final = 2
NOT_SUPPORTED: Final = 3
NO_PERMISSION: Final = 4
NOT_FOUND: Final = 6
INSUFFICIENT_SIZE: Final = 7
DRIVER_NOT_LOADED: Final = 9
LIBRARY_NOT_FOUND: Final = 12
FUNCTION_NOT_FOUND: Final = 13
GPU_IS_LOST: Final = 15
RESET_REQUIRED: Final = 16
LIB_RM_VERSION_MISMATCH: Final = 18
IN_USE: Final = 19
INSUFFICIENT_RESOURCES: Final = 23
ARGUMENT_VERSION_MISMATCH: Final = 25
GPU_NOT_FOUND: Final = 28

AS_ROOT: Final = (
    "run nodeagent as root, in a container privileged or with the MIG config and monitor "
    "capabilities"
)
_OBSERVE_AGAIN: Final = "observe again; something else has changed the GPU meanwhile"
_DRIVER_LOG: Final = "look for NVRM lines in the kernel log (dmesg)"
_RESET: Final = "reset the GPU (nvidia-smi --gpu-reset) or reboot the node"


@dataclass(frozen=True, slots=True)
class Explanation:
    """The name NVML has for a code, what it means, and what would be right."""

    name: str
    meaning: str
    remedy: str = ""


_EXPLANATIONS: Final = {
    1: Explanation(
        "Uninitialized",
        "NVML is not initialised, or was shut down meanwhile",
        "the next observation initialises it again",
    ),
    2: Explanation(
        "InvalidArgument",
        "the driver does not know what it was asked about: an id, a placement or a handle that is "
        "not valid, or not any more",
        _OBSERVE_AGAIN,
    ),
    3: Explanation(
        "NotSupported",
        "this GPU or this driver does not support it",
        "look at `nodeagent profiles` and `nodeagent check` for what it does support",
    ),
    4: Explanation("NoPermission", "the driver does not permit it to this user", AS_ROOT),
    5: Explanation("AlreadyInitialized", "NVML was initialised already"),
    6: Explanation("NotFound", "the driver has nothing of that id or name", _OBSERVE_AGAIN),
    7: Explanation(
        "InsufficientSize",
        "the answer grew faster than the room that was given for it",
        "try again",
    ),
    8: Explanation(
        "InsufficientPower",
        "the GPU's external power cables are not attached properly",
        "check the GPU's power cables",
    ),
    9: Explanation(
        NOT_LOADED,
        "the NVIDIA kernel driver is not loaded",
        "load it (modprobe nvidia) or install it, and see that `nvidia-smi` answers",
    ),
    10: Explanation(
        "Timeout",
        "the driver did not finish in the time that it gives itself",
        f"try again; if it stays, {_DRIVER_LOG}",
    ),
    11: Explanation(
        "IrqIssue",
        "the kernel found a problem with the GPU's interrupts",
        _DRIVER_LOG,
    ),
    12: Explanation(
        LIBRARY_MISSING,
        "the driver's library libnvidia-ml.so.1 was not found",
        "install the NVIDIA driver and check it with `nvidia-smi`; in a container have its "
        "libraries mounted (runtimeClassName: nvidia); without a GPU try `--simulate h100-80gb:2`",
    ),
    13: Explanation(
        "FunctionNotFound",
        "the installed driver is too old to have this function",
        "install a newer NVIDIA driver",
    ),
    14: Explanation(
        "CorruptedInforom",
        "the GPU's InfoROM is corrupted",
        "reflash the InfoROM or have the GPU replaced",
    ),
    15: Explanation(
        "GpuIsLost",
        "the GPU has fallen off the bus or became inaccessible in another way",
        "reboot the node; if it comes again, check power, cooling and seating of the GPU",
    ),
    16: Explanation("ResetRequired", "the GPU must be reset before it can be used again", _RESET),
    17: Explanation(
        "OperatingSystem",
        "the operating system or a control group blocks the call",
        "check the permissions of /dev/nvidia* and the device control group of the container",
    ),
    18: Explanation(
        "LibRmVersionMismatch",
        "the driver's library and its kernel module are of different versions, as after an "
        "upgrade of the driver under a running program",
        "restart nodeagent; if that does not help, reload the kernel module or reboot the node",
    ),
    19: Explanation("InUse", "something still uses it", "end what uses it, or wait for it"),
    20: Explanation("Memory", "there is not enough memory for it", "free memory and try again"),
    21: Explanation("NoData", "the driver has no data for it", "try again later"),
    22: Explanation(
        "VgpuEccNotSupported",
        "ECC is on and this vGPU does not work with it",
        "switch ECC off for the GPU, or use another vGPU type",
    ),
    23: Explanation(
        "InsufficientResources",
        "the GPU has not enough free resources for it",
        "free some of them first",
    ),
    24: Explanation("FreqNotSupported", "the GPU does not support that frequency"),
    25: Explanation(
        "ArgumentVersionMismatch",
        "the driver does not know this version of a structure",
        "use a newer driver, or a nodeagent that fits it",
    ),
    26: Explanation(
        "Deprecated",
        "the driver has given this function up",
        "use a nodeagent that fits this driver",
    ),
    27: Explanation("NotReady", "the driver or the GPU is not ready yet", "try again in a while"),
    28: Explanation(
        "GpuNotFound",
        "no GPU was found",
        "check with lspci that the GPU is there, and with nvidia-smi that the driver sees it",
    ),
    29: Explanation(
        "InvalidState",
        "the driver is not in a state in which it can do this",
        f"try again; if it stays, {_DRIVER_LOG}",
    ),
    30: Explanation("ResetTypeNotSupported", "the GPU does not support this type of reset", _RESET),
    999: Explanation("Unknown", "the driver failed for a reason it does not tell", _DRIVER_LOG),
}

_CREATE_GI: Final = "nvmlDeviceCreateGpuInstanceWithPlacement"
_CREATE_CI: Final = "nvmlGpuInstanceCreateComputeInstance"
_DESTROY_GI: Final = "nvmlGpuInstanceDestroy"
_DESTROY_CI: Final = "nvmlComputeInstanceDestroy"
_SET_MODE: Final = "nvmlDeviceSetMigMode"
_SET_COMPUTE_MODE: Final = "nvmlDeviceSetComputeMode"

# Where a code says more, because it is known what was asked.
_OF_CALL: Final = {
    (2, _CREATE_GI): (
        "this GPU has no such profile, or the profile cannot lie at that placement",
        "`nodeagent profiles` shows the placements of each profile",
    ),
    (3, _CREATE_GI): (
        "no GPU instance can be made: the GPU's MIG mode is off",
        "switch MIG mode on first; where that is pending, reset the GPU",
    ),
    (3, _SET_MODE): (
        "this GPU has no MIG, or its mode cannot be changed in this machine (vGPU guest)",
        "leave MIG out of the plan for it; `nodeagent check` shows what each GPU can do",
    ),
    (3, _SET_COMPUTE_MODE): (
        "this device does not take that compute mode; in MIG mode it is one of the MIG devices",
        "where the MIG devices refuse it too, leave it as it is (mps.compute_mode: leave)",
    ),
    (4, _SET_COMPUTE_MODE): ("changing the compute mode is permitted to root only", AS_ROOT),
    (4, _SET_MODE): ("changing MIG mode is permitted to root only", AS_ROOT),
    (6, _DESTROY_GI): ("the GPU instance is gone already", _OBSERVE_AGAIN),
    (6, _DESTROY_CI): ("the compute instance is gone already", _OBSERVE_AGAIN),
    (16, _SET_MODE): (
        "the new MIG mode becomes current only with a reset of the GPU",
        "reset the GPU; in a virtual machine reboot the machine",
    ),
    (19, _CREATE_GI): (
        "a program opened the GPU before it was divided and still holds it",
        "end it: often a CUDA program, a display server, a profiler or a monitoring agent",
    ),
    (19, _CREATE_CI): ("something holds the GPU instance", "end what uses it, or wait for it"),
    (19, _DESTROY_GI): (
        "the GPU instance is still in use, or still has compute instances",
        "end what uses it, or wait for it",
    ),
    (19, _DESTROY_CI): (
        "a process still uses the compute instance",
        "end the process, or wait for it",
    ),
    (19, _SET_MODE): (
        "programs still hold the GPU, so its MIG mode cannot change",
        "end them: also monitoring agents and device plugins hold it",
    ),
    (23, _CREATE_GI): (
        "the GPU has no free room for the profile at that placement",
        "destroy what lies there; something else may have changed the layout meanwhile",
    ),
    (23, _CREATE_CI): (
        "the GPU instance has no free room for a compute instance of that size",
        "destroy a compute instance in it first",
    ),
}

# Codes after which nothing of NVML can be used, whatever was asked.
_UNUSABLE: Final = {UNINITIALIZED, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, LIB_RM_VERSION_MISMATCH}

Error = TypeVar("Error", bound=DriverError)


def explain(code: int, call: str = "") -> Explanation:
    """What `code` means as the answer of the NVML function `call`."""
    general = _EXPLANATIONS.get(
        code,
        Explanation(
            f"Code{code}",
            f"the driver answered with code {code}, which is newer than this program",
            "look the number up in the nvml.h of the installed driver",
        ),
    )
    meaning, remedy = _OF_CALL.get((code, call), (general.meaning, general.remedy))
    return Explanation(general.name, meaning, remedy)


def driver_error(code: int, call: str) -> DriverError:
    """The agent's error for NVML's return `code` of the function `call`."""
    return _error(_class_of(code), code, call)


def unavailable(error: DriverError) -> DriverUnavailable:
    """The same failure, at a moment when it means that NVML cannot be used at all."""
    return DriverUnavailable(
        error.message, code=error.code, name=error.name, call=error.call, remedy=error.remedy
    )


def about(subject: str, error: Error) -> Error:
    """The same error with the subject it is about in front: `GPU 3: ...`."""
    return type(error)(
        f"{subject}: {error.message}",
        code=error.code,
        name=error.name,
        call=error.call,
        remedy=error.remedy,
    )


def is_unsupported(error: DriverError) -> bool:
    """Whether the driver or the GPU simply does not have what was asked for."""
    return error.code in {NOT_SUPPORTED, FUNCTION_NOT_FOUND}


def _class_of(code: int) -> type[DriverError]:
    if code in _UNUSABLE:
        return DriverUnavailable
    if code == IN_USE:
        return GpuInUse
    if code in {GPU_IS_LOST, RESET_REQUIRED}:
        return GpuLost
    return DriverError


def _error(kind: type[DriverError], code: int, call: str) -> DriverError:
    words = explain(code, call)
    return kind(
        f"{words.meaning} [{call}: {words.name}, NVML code {code}]",
        code=code,
        name=words.name,
        call=call,
        remedy=words.remedy,
    )


def silence_of(error: DriverError) -> Silence:
    """What an error says about why there is no answer."""
    if isinstance(error, DeadlineExceeded):
        return Silence.HANGS
    if isinstance(error, GpuLost):
        return Silence.RESET_REQUIRED if error.code == RESET_REQUIRED else Silence.LOST
    return _BY_NAME.get(error.name, Silence.FAILS)


_BY_NAME = {LIBRARY_MISSING: Silence.NO_LIBRARY, NOT_LOADED: Silence.NOT_LOADED}
