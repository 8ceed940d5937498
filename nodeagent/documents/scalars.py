"""What an unquoted YAML word means, without YAML 1.1's surprises.

Booleans are YAML 1.1's (`yes`, `on`, `y` ...), because mig-parted reads them so. Its base-60
numbers are not: a PCI address such as `0000:10:00.0` must stay text. Dates stay text too.
"""

from __future__ import annotations

import re

Scalar = str | int | float | bool | None

_BOOLEANS = {
    spelling: word in ("y", "yes", "true", "on")
    for word in ("y", "yes", "true", "on", "n", "no", "false", "off")
    for spelling in (word, word.capitalize(), word.upper())
}
_NULLS = {"", "~", "null", "Null", "NULL"}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_HEXADECIMAL = re.compile(r"[-+]?0[xX][0-9A-Fa-f]+")
_REAL = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)|[-+]?Infinity|NaN")

_LONGEST_NUMBER = 24  # characters; no key takes a number beyond 64 bits


def resolve(text: str) -> Scalar:
    """The value of a plain scalar; raises ValueError with a sentence when it has none."""
    if text in _NULLS:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if text[0] not in "+-.0123456789IN":
        return text
    if _NOT_FINITE.fullmatch(text):
        raise ValueError("a finite number is needed")
    if _INTEGER.fullmatch(text):
        return _integer(text)
    if _HEXADECIMAL.fullmatch(text):
        _check_length(text)
        return int(text, 16)
    if _REAL.fullmatch(text):
        _check_length(text)
        number = float(text)
        if number in (float("inf"), float("-inf")):
            raise ValueError("the number is too large")
        return number
    return text


def _integer(text: str) -> int:
    _check_length(text)
    digits = text.lstrip("+-")
    if len(digits) > 1 and digits[0] == "0":
        raise ValueError(
            "a number with a leading zero is octal to some readers and decimal to others; "
            "write it without, or in quotes if it is text"
        )
    return int(text)


def _check_length(text: str) -> None:
    if len(text) > _LONGEST_NUMBER:
        raise ValueError("the number is too large")
