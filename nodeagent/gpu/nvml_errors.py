"""Turns NVML's return codes into errors with a sentence: what it means and what to do.

The sentences are in `nvml_codes.json`. The general meaning of a code comes from NVML's header;
where a code means something narrower for one call (IN_USE of a destroy, INSUFFICIENT_RESOURCES of a
create), that call has its own words. pynvml's own texts are not used: for many codes they call into
the library again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from nodeagent import errors
from nodeagent.structs import Struct

if TYPE_CHECKING:
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
# The handle or id is not known (any more), or another argument of the call is wrong.
NOT_KNOWN: Final = frozenset({INVALID_ARGUMENT, NOT_FOUND})


class Explanation(Struct, frozen=True):
    """NVML's name of a code, what the code means, and what to do about it."""

    name: str
    meaning: str
    remedy: str = ""


_CLASSES: Final[dict[int, type[errors.DriverError]]] = {
    # Nothing of NVML can be used after these, whatever was asked.
    UNINITIALIZED: errors.DriverUnavailable,
    DRIVER_NOT_LOADED: errors.DriverUnavailable,
    LIBRARY_NOT_FOUND: errors.DriverUnavailable,
    LIB_RM_VERSION_MISMATCH: errors.DriverUnavailable,
    IN_USE: errors.GpuInUse,
    GPU_IS_LOST: errors.GpuLost,
    RESET_REQUIRED: errors.GpuLost,
}

Error = TypeVar("Error", bound=errors.DriverError)


def _table() -> dict[tuple[int, str], Explanation]:
    """Explanations by code and function; "" where the function makes no difference."""
    text = Path(__file__).with_name("nvml_codes.json").read_text(encoding="utf-8")
    found = {}
    for row in json.loads(text):
        code, name = row["code"], row["name"]
        found[code, ""] = Explanation(name, row["meaning"], row["remedy"])
        for call, words in row.get("calls", {}).items():
            found[code, call] = Explanation(name, words["meaning"], words["remedy"])
    return found


# Read at import: when an error has to be explained, it may be too late to open a file.
_EXPLANATIONS: Final = _table()


def explain(code: int, call: str = "") -> Explanation:
    """Look up what `code` means as the answer of the NVML function `call`."""
    return (
        _EXPLANATIONS.get((code, call))
        or _EXPLANATIONS.get((code, ""))
        or Explanation(
            f"Code{code}",
            f"the driver answered with code {code}, which is newer than this program",
            "look up the number in nvml.h of the installed driver",
        )
    )


def driver_error(code: int, call: str) -> errors.DriverError:
    """The agent's error for NVML's return `code` of the function `call`."""
    words = explain(code, call)
    return _CLASSES.get(code, errors.DriverError)(
        f"{words.meaning} [{call}: {words.name}, NVML code {code}]",
        code=code,
        remedy=words.remedy,
    )


def unavailable(error: errors.DriverError) -> errors.DriverUnavailable:
    """Restate a failure after which NVML cannot be used at all."""
    return _restated(errors.DriverUnavailable, error.message, error)


def with_subject(subject: str, error: Error) -> Error:
    """The error with its subject in front of the message: `GPU 3: ...`."""
    return _restated(type(error), f"{subject}: {error.message}", error)


def _restated(kind: type[Error], message: str, error: errors.DriverError) -> Error:
    return kind(message, code=error.code, remedy=error.remedy)


def is_unsupported(error: errors.DriverError) -> bool:
    """Whether the driver or the GPU simply does not have what was asked for."""
    return error.code in {NOT_SUPPORTED, FUNCTION_NOT_FOUND}


def silence_of(error: errors.DriverError) -> Silence:
    """Classify the error as a kind of silence, for health."""
    from nodeagent.health.readings import Silence  # commands do without health

    if isinstance(error, errors.DeadlineExceeded):
        return Silence.HANGS
    if isinstance(error, errors.GpuLost):
        return Silence.RESET_REQUIRED if error.code == RESET_REQUIRED else Silence.LOST
    by_code = {LIBRARY_NOT_FOUND: Silence.NO_LIBRARY, DRIVER_NOT_LOADED: Silence.NOT_LOADED}
    return by_code.get(error.code or 0, Silence.FAILS)
