"""A run of one parser: every input is read, refused in the documented way, and in bounds."""

import gc
import resource
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.fuzz.mutations import mutated, scratched

MAX_SECONDS = 0.1  # of processor time, for one input
MAX_MEMORY = 50 << 20  # of memory, for one input
_LARGE = 400  # one of so many inputs is a large one
_COLLECT = 200  # inputs between two rounds of the garbage collector, which is no part of reading
_PAGE = resource.getpagesize()


class Refused(Exception):
    """For parsers that say in another way than by an exception that they refuse an input."""


@dataclass(frozen=True)
class Parser:
    """`read` gets an input and a folder of its own, and raises one of `refusals` alone."""

    name: str
    read: Callable[[bytes, Path], object]
    refusals: tuple[type[Exception], ...]
    seeds: Sequence[bytes]
    large: Sequence[bytes] = ()


@dataclass(frozen=True)
class Fault:
    """What came of an input that must not; `trace` ends with where."""

    number: int
    what: str
    text: bytes
    trace: str = ""


@dataclass
class Figures:
    """Of one parser: how many inputs, how many of them were accepted, and the worst of each."""

    inputs: int = 0
    accepted: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    largest: int = 0
    faults: dict[str, Fault] = field(default_factory=dict)  # the first of each kind


def input_of(parser: Parser, seed: str, number: int) -> bytes:
    """The input with this number. The first ones are the seeds themselves."""
    untouched = (*parser.seeds, *parser.large)
    if number < len(untouched):
        return untouched[number]
    rng = Random(f"{seed} {parser.name} {number}")
    if parser.large and rng.randrange(_LARGE) == 0:
        return scratched(rng, rng.choice(parser.large))
    return mutated(rng, parser.seeds)


def run(parser: Parser, numbers: range, seed: str, folder: Path) -> Figures:
    found = Figures()
    collecting = gc.isenabled()
    gc.disable()
    gc.freeze()  # what was there before is not looked through again and again, nor after this run
    with suppress(OSError):  # from here on the highest is what it is now
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    try:
        for number in numbers:
            if number % _COLLECT == 0:
                gc.collect()
            _read(parser, number, input_of(parser, seed, number), folder, found)
    finally:
        if collecting:
            gc.enable()
    return found


def _read(parser: Parser, number: int, text: bytes, folder: Path, found: Figures) -> None:
    before, highest = _resident(), _highest()
    seconds, refusal = _timed(parser, text, folder)
    for _ in range(2):  # another process may have had the caches
        if seconds > MAX_SECONDS:
            seconds = min(seconds, _timed(parser, text, folder)[0])
    # Only a new peak says what this input took; below an earlier one it took less than that.
    taken = _highest() - before if _highest() > highest else 0
    found.inputs += 1
    found.accepted += refusal is None
    found.seconds += seconds
    found.slowest = max(found.slowest, seconds)
    found.largest = max(found.largest, taken)
    if refusal is not None and not isinstance(refusal, parser.refusals):
        lines = traceback.format_exception(refusal)
        where = traceback.extract_tb(refusal.__traceback__)[-1]
        what = f"{type(refusal).__name__} in {Path(where.filename).name}:{where.lineno}"
        found.faults.setdefault(what, Fault(number, what, text, "".join(lines)))
    if seconds > MAX_SECONDS and seconds == found.slowest:
        found.faults["slow"] = Fault(number, f"{seconds * 1000:.0f} ms", text)
    if taken > MAX_MEMORY and taken == found.largest:
        found.faults["large"] = Fault(number, f"{taken >> 20} MiB", text)


def _timed(parser: Parser, text: bytes, folder: Path) -> tuple[float, Exception | None]:
    """Seconds of this thread's processor time, and how the input was refused."""
    refusal = None
    began = time.thread_time()
    try:
        parser.read(text, folder)
    except Exception as error:  # noqa: BLE001 - which ones may be is judged by the caller
        refusal = error
    return time.thread_time() - began, refusal


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE


def _highest() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
