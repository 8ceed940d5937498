"""What was called: for tests and benchmarks to read."""

from __future__ import annotations

import threading
from collections import Counter, deque
from dataclasses import dataclass
from fnmatch import fnmatchcase

from nodeagent.simulation.codes import Code
from nodeagent.simulation.handles import Handle

_KEPT = 4096


@dataclass(frozen=True, slots=True)
class Call:
    """One call. `arguments` are those that go in, as plain values; `result` is the NVML code;
    `started` (monotonic) and `seconds` include injected delays. `thread` is the caller's.
    """

    number: int
    name: str
    arguments: tuple[object, ...]
    result: int
    gpu: int | None
    started: float
    seconds: float
    thread: int

    def __str__(self) -> str:
        try:
            result = Code(self.result).name
        except ValueError:
            result = str(self.result)
        return f"{self.name}({', '.join(map(str, self.arguments))}) -> {result}"


_Entry = tuple[int, str, tuple[object, ...], int, int | None, float, float, int]


def _call(
    number: int,
    name: str,
    arguments: tuple[object, ...],
    *rest: *tuple[int, int | None, float, float, int],
) -> Call:
    shown = tuple(one for one in arguments if isinstance(one, int | str | Handle))
    return Call(number, name, shown, *rest)


class Journal:
    """The last calls of this process, and how many there were of each function."""

    def __init__(self) -> None:
        self._calls: deque[_Entry] = deque(maxlen=_KEPT)
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.begun = 0
        """How many calls this process began, ever; `at_call` of a fault counts these."""

    @property
    def calls(self) -> tuple[Call, ...]:
        """The last calls in the order of their ends, at most 4096."""
        with self._lock:
            entries = tuple(self._calls)
        return tuple(_call(*entry) for entry in entries)

    def named(self, pattern: str) -> tuple[Call, ...]:
        """The calls of the functions that match, such as `nvml*Create*`."""
        return tuple(call for call in self.calls if fnmatchcase(call.name, pattern))

    def total(self, pattern: str = "*") -> int:
        """How many calls there were of the functions that match."""
        with self._lock:
            return sum(n for name, n in self.counts.items() if fnmatchcase(name, pattern))

    def begin(self) -> int:
        """The number of a call that begins."""
        with self._lock:
            self.begun += 1
            return self.begun

    def record(self, *entry: *_Entry) -> None:
        """The members of a Call, with all arguments; it is made of them when it is looked at."""
        with self._lock:
            self._calls.append(entry)
            self.counts[entry[1]] += 1

    def clear(self) -> None:
        """Forget the calls so far; their numbers go on."""
        with self._lock:
            self._calls.clear()
            self.counts.clear()
