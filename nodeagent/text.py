"""Renders values and names for sentences, and finds the names that were probably meant."""

import json
from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

Kind = TypeVar("Kind")
Thing = TypeVar("Thing")
MAX_QUOTED = 60


def quote(value: object) -> str:
    """Render a value, short and free of control characters: safe for a terminal and a log."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(_cut(value), ensure_ascii=not value.isprintable())
        case dict():
            return "a map"
        case list():
            return "a list"
    return _cut(str(value))


def printable(text: str) -> str:
    """Replace each character that a terminal might act on by `?`."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_QUOTED else text[:MAX_QUOTED] + "..."


def listed(names: Iterable[str], most: int = 12) -> str:
    """Join names by commas: the first `most` of them, and how many more there are."""
    known = list(names)
    rest = len(known) - most
    return ", ".join(known[:most]) + (f" and {rest} more" if rest > 0 else "")


def index_ranges(indices: Iterable[int]) -> str:
    """Write indices as ranges, such as `0-3, 6`."""
    groups: list[list[int]] = []
    for index in sorted(indices):
        if groups and groups[-1][-1] == index - 1:
            groups[-1].append(index)
        else:
            groups.append([index])
    return ", ".join(str(g[0]) if len(g) == 1 else f"{g[0]}-{g[-1]}" for g in groups)


def nearest_names(
    text: str, known: Iterable[str], *, most: int = 3, cutoff: float = 0.6
) -> tuple[str, ...]:
    """The known names most like the one written, the most alike first; capitals do not count."""
    import difflib  # only documents and commands with a fault in them pay for it

    names = {name.lower(): name for name in known}
    words = difflib.get_close_matches(text[:MAX_QUOTED].lower(), names, most, cutoff)
    return tuple(names[word] for word in words)


def nearest(text: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known name that `text` was probably meant to be."""
    return next(iter(nearest_names(text, known, most=1, cutoff=cutoff)), None)


def did_you_mean(text: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """A remedy that names the nearest spelling, or nothing."""
    name = nearest(text, known, cutoff=cutoff)
    return f"did you mean {name}?" if name else ""


def alike(pairs: Iterable[tuple[Kind, Thing]]) -> dict[Kind, list[Thing]]:
    """The things of each kind, in their order."""
    found: dict[Kind, list[Thing]] = {}
    for kind, thing in pairs:
        found.setdefault(kind, []).append(thing)
    return found


def gpus_words(indices: Iterable[int]) -> str:
    """`GPU 0`, `GPUs 0-3, 6`."""
    known = set(indices)
    return f"GPU{'s' if len(known) > 1 else ''} {index_ranges(known)}"


def quantity(number: int, noun: str) -> str:
    """A number of things: `1 step`, `2 steps`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def gibibytes(size: int) -> str:
    """Bytes as a person reads them: `39.5 GiB`, `72 MiB`."""
    if 0 < size < 2**30:
        return f"{round(size / 2**20, 1):g} MiB"
    return f"{size / 2**30:.4g} GiB"


def with_counts(names: Iterable[str]) -> str:
    """Each name once, with how often it is there: `3g.40gb 2 x 1g.10gb`."""
    return " ".join(name if n == 1 else f"{n} x {name}" for name, n in Counter(names).items())
