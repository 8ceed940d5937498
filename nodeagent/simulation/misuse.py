"""The error for calls that a C library would not survive."""

from __future__ import annotations


class SimulatorMisuse(AssertionError):
    """The caller passed what a real library would crash on, or silently misread.

    A structure by value, a structure of another type, an int as a handle, an array that is too
    small: C cannot notice, so no NVML code stands for it. It is a fault of the program under test.
    """
