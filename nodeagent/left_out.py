"""Importing a library without a module that it takes only where there is one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def left_out(module: str) -> Iterator[None]:
    """Meanwhile there is no such module, unless it was imported before.

    For the main thread while no other imports anything, and for what is known to do without it.
    """
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]  # so Python says: not to be found
    try:
        yield
    finally:
        del sys.modules[module]
