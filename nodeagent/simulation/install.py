"""Putting the simulated library under pynvml, and leaving pynvml as it was found.

pynvml keeps the library in a global, caches every function of it for ever, counts its own
initialisations and keeps error texts that the library gave it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pynvml


@contextmanager
def installed(library: object) -> Iterator[None]:
    """Within it, pynvml talks to `library`. Not for two threads at once."""
    before, count = pynvml.nvmlLib, pynvml._nvmlLib_refcount
    texts = pynvml.NVMLError._errcode_to_string
    kept = dict(texts)
    pynvml.nvmlLib, pynvml._nvmlLib_refcount = library, 0
    pynvml._nvmlGetFunctionPointer_cache.clear()
    try:
        yield
    finally:
        pynvml.nvmlLib, pynvml._nvmlLib_refcount = before, count
        pynvml._nvmlGetFunctionPointer_cache.clear()
        for code in [code for code in texts if code not in kept]:
            del texts[code]
