"""Faults that the driver shows on request: errors, delays and calls that hang."""

from fnmatch import fnmatchcase
from typing import Any, Self

import msgspec

from nodeagent.errors import UsageError
from nodeagent.simulation.codes import Code

FOREVER = -1


class Fault(msgspec.Struct, forbid_unknown_fields=True):
    """What goes wrong, with which calls, and how often.

    `function` is a C name or a pattern (`nvmlGpuInstance*`), `gpu` an index or None for any.
    The first `skip` matching calls go well, then `times` calls are hit (-1: all of them).
    `at_call` instead hits the one call with that number, counted from 1 over all calls that this
    process makes. `delay` in seconds. `hang` holds the call until the fault is cleared.
    `error` is the NVML code answered, 0 for none; with `applied` the call does its work and
    answers the error nevertheless.
    """

    number: int
    function: str = "*"
    gpu: int | None = None
    error: int = 0
    times: int = 1
    skip: int = 0
    at_call: int | None = None
    delay: float = 0.0
    hang: bool = False
    applied: bool = False

    @classmethod
    def checked(cls, *, error: int | str, times: int | None, **given: Any) -> Self:
        """From what a user gave, `times` None for ever; raises UsageError."""
        fault = cls(error=code_named(error), times=FOREVER if times is None else times, **given)
        if not (fault.error or fault.delay or fault.hang):
            raise UsageError("a fault needs an error, a delay or a hang")
        wrong_times = times is not None and times < 1
        if wrong_times or fault.delay < 0 or fault.skip < 0 or fault.at_call == 0:
            raise UsageError(
                "a fault counts from 0 up", remedy="times and at_call from 1, delay and skip from 0"
            )
        return fault

    def concerns(self, function: str, gpu: int | None, call: int) -> bool:
        """Whether it has to do with this call at all."""
        if self.times == 0 or (self.gpu is not None and self.gpu != gpu):
            return False
        if self.at_call is not None and self.at_call != call:
            return False
        return fnmatchcase(function, self.function)

    def strike(self) -> bool:
        """Count one call that it concerns; whether that call is hit."""
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.times > 0:
            self.times -= 1
        return True

    @property
    def spent(self) -> bool:
        """Nothing more will come of it. A hang stays until it is cleared: calls wait for that."""
        return self.times == 0 and not self.hang


def code_named(error: int | str, *, known: bool = False) -> int:
    """An NVML code from its number or its name (`IN_USE`, `inUse`); raises UsageError.

    A number may be one that this NVML does not know, unless it has to be `known`.
    """
    text = str(int(error)) if isinstance(error, int) else error
    if text.isascii() and text.isdigit() and (not known or int(text) in set(Code)):
        return int(text)
    wanted = text.upper().replace("_", "").removeprefix("NVMLERROR")
    for code in Code:
        if code.name.replace("_", "") == wanted:
            return int(code)
    raise UsageError(
        f"NVML has no error {text!r}",
        remedy="for example IN_USE, INSUFFICIENT_RESOURCES, UNKNOWN, GPU_IS_LOST or a number",
    )
