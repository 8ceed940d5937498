"""An agent that counts its own calls: `python -m bench.calls_agent FILE run --simulate ...`.

At each SIGUSR1 it writes to FILE, as JSON, the calls of each function of the product since the one
before, by "file:function", and begins anew. All threads count. The simulator is not the product,
and a coroutine that goes on is not called again.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

import nodeagent

_ROOT = Path(nodeagent.__file__).parent
_RESUME = 151  # the instruction at which Python 3.11 reports a call; with 0 it is the first one


class Calls:
    """Counts calls as a profiler's function. `counts`: by code."""

    def __init__(self) -> None:
        self.counts: Counter[CodeType] = Counter()
        self._first: dict[CodeType, int] = {}  # where a call of it begins; -1: not the product's

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        if (first := self._first.get(code)) is None:
            first = self._first[code] = _first(code)
        if first == frame.f_lasti:
            self.counts[code] += 1

    def take(self) -> dict[str, int]:
        """The counts so far, which begin anew."""
        counts, self.counts = self.counts, Counter()
        named = Counter[str]()
        for code, number in counts.items():
            named[f"{Path(code.co_filename).relative_to(_ROOT)}:{code.co_qualname}"] += number
        return named


def _first(code: CodeType) -> int:
    """Where a call of it begins; -1 for what is not the product's, or an import."""
    path = Path(code.co_filename)
    if not path.is_relative_to(_ROOT) or path.is_relative_to(_ROOT / "simulation"):
        return -1
    if code.co_name == "<module>":  # it is imported
        return -1
    content = code.co_code
    for offset in range(0, len(content), 2):
        if content[offset : offset + 2] == bytes((_RESUME, 0)):
            return offset
    return -1


def main(file: Path) -> int:
    """The agent's exit code."""
    calls = Calls()

    def write(_: int, __: FrameType | None) -> None:
        new = file.with_suffix(".new")
        new.write_text(json.dumps(calls.take()))
        new.replace(file)

    signal.signal(signal.SIGUSR1, write)
    threading.setprofile(calls)
    sys.setprofile(calls)
    from nodeagent.cli import main as command_line

    return command_line()


if __name__ == "__main__":
    target = Path(sys.argv.pop(1))
    sys.exit(main(target))
