"""What values are made of: `Struct`, whose classes are made in C, and `replace`.

Making a class takes 20 µs and 3 KiB; as a frozen dataclass with slots it takes 700 µs, in which the
code of six methods is compiled, and 14 KiB. A command such as `assert` makes a hundred of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import asdict

if TYPE_CHECKING:
    from dataclasses import replace  # by which mypy checks names and types of the fields
else:

    def replace(value, /, **changes):
        """A copy with other values, of a struct or a dataclass; `copy.replace` of Python 3.13."""
        if isinstance(value, Struct):
            return value.__replace__(**changes)
        import dataclasses

        return dataclasses.replace(value, **changes)


__all__ = ["Struct", "asdict", "field", "replace"]
