"""What was called: for tests and benchmarks to read."""

import threading
from collections import Counter, deque
from fnmatch import fnmatchcase

from msgspec import Struct

from nodeagent.simulation.codes import Code
from nodeagent.simulation.handles import Handle

_KEPT = 4096


class Call(Struct, frozen=True):
    """One call. `given` are its arguments; `result` is the NVML code; `started` (monotonic) and
    `seconds` include injected delays. `thread` is the caller's.
    """

    number: int
    name: str
    given: tuple[object, ...]
    result: int
    gpu: int | None
    started: float
    seconds: float
    thread: int

    @property
    def arguments(self) -> tuple[object, ...]:
        """Those that go in, as plain values."""
        return tuple(given for given in self.given if isinstance(given, int | str | Handle))

    def __str__(self) -> str:
        try:
            result = Code(self.result).name
        except ValueError:
            result = str(self.result)
        return f"{self.name}({', '.join(map(str, self.arguments))}) -> {result}"


class Journal:
    """The last calls of this process, and how many there were of each function."""

    def __init__(self) -> None:
        self._calls: deque[Call] = deque(maxlen=_KEPT)
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.begun = 0
        """How many calls this process began, ever; `at_call` of a fault counts these."""

    @property
    def calls(self) -> tuple[Call, ...]:
        """The last calls in the order of their ends, at most 4096."""
        with self._lock:
            return tuple(self._calls)

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

    def record(self, call: Call) -> None:
        with self._lock:
            self._calls.append(call)
            self.counts[call.name] += 1

    def clear(self) -> None:
        """Forget the calls so far; their numbers go on."""
        with self._lock:
            self._calls.clear()
            self.counts.clear()
