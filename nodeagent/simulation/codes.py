"""NVML's return codes, so that the cards can be written without loading pynvml."""

from enum import IntEnum


class Code(IntEnum):
    """What a call answers. The values are those of `nvmlReturn_t`."""

    SUCCESS = 0
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    ALREADY_INITIALIZED = 5
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    INSUFFICIENT_POWER = 8
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    IRQ_ISSUE = 11
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    CORRUPTED_INFOROM = 14
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    OPERATING_SYSTEM = 17
    LIB_RM_VERSION_MISMATCH = 18
    IN_USE = 19
    MEMORY = 20
    NO_DATA = 21
    VGPU_ECC_NOT_SUPPORTED = 22
    INSUFFICIENT_RESOURCES = 23
    FREQ_NOT_SUPPORTED = 24
    ARGUMENT_VERSION_MISMATCH = 25
    DEPRECATED = 26
    NOT_READY = 27
    GPU_NOT_FOUND = 28
    INVALID_STATE = 29
    RESET_TYPE_NOT_SUPPORTED = 30
    UNKNOWN = 999


# What `nvmlErrorString` says. Only a few of these texts are known word for word.
TEXTS = {
    Code.SUCCESS: "Success",
    Code.UNINITIALIZED: "Uninitialized",
    Code.INVALID_ARGUMENT: "Invalid Argument",
    Code.NOT_SUPPORTED: "Not Supported",
    Code.NO_PERMISSION: "Insufficient Permissions",
    Code.NOT_FOUND: "Not Found",
    Code.INSUFFICIENT_SIZE: "Insufficient Size",
    Code.DRIVER_NOT_LOADED: "Driver Not Loaded",
    Code.TIMEOUT: "Timeout",
    Code.GPU_IS_LOST: "GPU is lost",
    Code.RESET_REQUIRED: "GPU requires reset",
    Code.LIB_RM_VERSION_MISMATCH: "Driver/library version mismatch",
    Code.IN_USE: "In use by another client",
    Code.INSUFFICIENT_RESOURCES: "Insufficient Resources",
    Code.UNKNOWN: "Unknown Error",
}


class Refused(Exception):
    """The driver answers a call with an error; the library turns it into the return value."""

    def __init__(self, code: Code) -> None:
        super().__init__(code.name)
        self.code = code


class SimulatorMisuse(AssertionError):
    """The caller passed what a real library would crash on, or silently misread.

    A structure by value, a structure of another type, an int as a handle, an array that is too
    small: C cannot notice, so no NVML code stands for it. It is a fault of the program under test.
    """
