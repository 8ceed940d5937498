"""Inputs that are almost right: seeds with their bytes, numbers, words or structure changed.

All of it is drawn from one random generator, so an input is known by its number.
"""

import json
import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from random import Random
from typing import Any

MAX_BYTES = 1 << 20  # bytes of a changed input; no border lets in more of a text

_NUMBER = re.compile(rb"-?[0-9]+(?:\.[0-9]+)?")
_WORD = re.compile(rb"[A-Za-z0-9_./-]{2,40}")
_NUMBERS = tuple(
    number.encode()
    for number in (
        *("0", "-0", "-1", "00", "007", "0x10", "1_000", "0.5", "1e3", "1e308", "1e999", "1e-400"),
        *(str(2**bits + more) for bits in (8, 16, 31, 32, 53, 63, 64) for more in (-1, 0, 1)),
        *("9" * 25, "9" * 400, "9" * 5000, "0" * 5000, f"-{2**63}", "NaN", "Infinity", "-.inf"),
        "٣",
    )
)
_PIECES = (
    *(b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"\xe2\x80\xae"),
    b"\x1b[",
    *(b"\r", b"\n", b"\n\n", b"\t", b" ", b'"', b'""', b"'", b"\\", b"\\ud800", b"{", b"}", b"["),
    b"]",
    *(b"{}", b"[]", b":", b": ", b"::", b",", b"=", b"-", b"- ", b"+", b"#", b"%", b"|", b">"),
    *(b"&a ", b"*a"),
    *(b"!!python/name:os.system ", b"<<: ", b"---\n", b"...\n", b"? ", b"null", b"~", b"true"),
    *(b"no", b"y"),
)
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 0.5, -0.0, 1e308, float("inf"), float("nan"), "", "0", "a", []),
    {},
    *(2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63), 10**400, "9" * 5000, "a" * 5000),
    *(
        *("\0", "\ud800", "\u202e", "ß", "nan", "1e999", "-1", "1.5", "true", "..", "../../etc"),
        *("a/b", "A B"),
    ),
    *("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026-02-30T00:00:00Z", "null"),
)


_MAX_VALUES = 200_000


def mutated(rng: Random, seeds: Sequence[bytes]) -> bytes:
    """One of the seeds with some changes; of its structure where it is JSON."""
    text = rng.choice(seeds)
    changes = rng.choice((1, 1, 1, 2, 3, 8))
    if rng.random() < 0.6 and text[:1] in (b"{", b"["):
        text = _restructured(rng, text, changes)[:MAX_BYTES]
        changes = rng.choice((0, 0, 1))
    for _ in range(changes):
        text = rng.choice(_CHANGES)(rng, text, seeds)[:MAX_BYTES]
    return text


def scratched(rng: Random, text: bytes) -> bytes:
    """A large text as it is, cut, or with a few bytes changed: what takes no time to make."""
    match rng.randrange(3):
        case 0:
            return text
        case 1:
            return text[: rng.randrange(len(text) + 1)]
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice(_PIECES) + text[at + rng.randrange(4) :]


# --- bytes ----------------------------------------------------------------------------------------


def _flip(rng: Random, text: bytes, _: Sequence[bytes]) -> bytes:
    if not text:
        return rng.randbytes(4)
    changed = bytearray(text)
    for _again in range(rng.choice((1, 1, 2, 8))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _insert(rng: Random, text: bytes, _: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(text) + 1)
    piece = rng.choice((*_PIECES, rng.randbytes(rng.randrange(1, 9))))
    return text[:at] + piece * rng.choice((1, 1, 1, 3, 50, 2000)) + text[at:]


def _cut(rng: Random, text: bytes, _: Sequence[bytes]) -> bytes:
    first, last = sorted(rng.randrange(len(text) + 1) for _ in range(2))
    return text[:first] + (b"" if rng.random() < 0.3 else text[last:])


def _repeat(rng: Random, text: bytes, _: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(text) + 1)
    piece = text[at : at + rng.choice((1, 4, 20, 100))]
    return text[:at] + piece * rng.choice((2, 3, 20, 500)) + text[at:]


def _splice(rng: Random, text: bytes, seeds: Sequence[bytes]) -> bytes:
    other = rng.choice(seeds)
    return text[: rng.randrange(len(text) + 1)] + other[rng.randrange(len(other) + 1) :]


def _other_number(rng: Random, text: bytes, _: Sequence[bytes]) -> bytes:
    return _replaced(rng, text, _NUMBER, lambda: rng.choice(_NUMBERS))


def _other_word(rng: Random, text: bytes, seeds: Sequence[bytes]) -> bytes:
    words = _WORD.findall(rng.choice(seeds)) or [b"a"]
    return _replaced(rng, text, _WORD, lambda: rng.choice(words))


def _other_lines(rng: Random, text: bytes, _: Sequence[bytes]) -> bytes:
    lines = text.splitlines(keepends=True)
    if lines:
        one = lines.pop(rng.randrange(len(lines)))
        for _again in range(rng.choice((0, 1, 2, 100))):
            lines.insert(rng.randrange(len(lines) + 1), one)
    return b"".join(lines)


def _replaced(
    rng: Random, text: bytes, pattern: re.Pattern[bytes], other: Callable[[], bytes]
) -> bytes:
    found = list(pattern.finditer(text))
    if not found:
        return text + other()
    one = rng.choice(found)
    return text[: one.start()] + other() + text[one.end() :]


_CHANGES = (
    _flip,
    _insert,
    _cut,
    _repeat,
    _splice,
    _other_number,
    _other_number,
    _other_word,
    _other_lines,
)


# --- structure ------------------------------------------------------------------------------------


def _restructured(rng: Random, text: bytes, changes: int) -> bytes:
    try:
        tree = [json.loads(text)]  # so that the whole has a place, too
        for _ in range(changes):
            places = _places(tree)
            holder, key = rng.choice(places)
            _change(rng, holder, key, places)
        _places(tree)
        whole = json.dumps(tree[0] if tree else None, ensure_ascii=rng.random() < 0.5)
    except (ValueError, RecursionError):  # it is no JSON, or has become too large or too deep
        return text
    return whole.encode("utf-8", "surrogatepass")


def _places(tree: list[Any]) -> list[tuple[Any, Any]]:
    """Each value by what holds it and its key or number there; raises ValueError for too many."""
    found: list[tuple[Any, Any]] = []
    left: list[Any] = [tree]
    while left:
        holder = left.pop()
        if len(found) > _MAX_VALUES:  # lists of what is repeated in turn grow without end
            raise ValueError("more than is to be read")
        for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
            found.append((holder, key))
            if isinstance(holder[key], dict | list):
                left.append(holder[key])
    return found or [([None], 0)]


def _change(rng: Random, holder: Any, key: Any, places: Sequence[tuple[Any, Any]]) -> None:
    value = holder[key]
    match rng.randrange(9):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, list):
            holder[key:key] = [value] * rng.choice((1, 2, 40, 1500))
        case 1 | 2 if isinstance(holder, dict):
            del holder[key]
            other = rng.choice(places)[1]
            holder[rng.choice((str(other), str(rng.choice(_VALUES))[:400], f"{key}x"))] = value
        case 3:
            where, which = rng.choice(places)
            holder[key] = deepcopy(where[which])
        case 4:
            for _ in range(rng.choice((1, 3, 20, 300))):
                value = [value] if rng.random() < 0.5 else {str(key)[:9]: value}
            holder[key] = value
        case 5 if isinstance(value, dict):
            value.update((f"k{number}", 0) for number in range(rng.choice((1, 40, 1500))))
        case 6 if isinstance(value, str):
            holder[key] = rng.choice((value * 50, value[:-1], value + "\n", value.upper(), [value]))
        case _:
            holder[key] = deepcopy(rng.choice(_VALUES))
