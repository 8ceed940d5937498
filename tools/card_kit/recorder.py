"""Run a command of the program and record every NVML call with its answer and its time.

    python -m tools.card_kit.recorder calls.json profiles -o json

What is recorded is data for the simulator. UUIDs are replaced, each by the same one everywhere.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import threading
import time
from collections import defaultdict
from ctypes import CDLL, Array, Structure, Union, _Pointer, _SimpleCData, c_void_p, cast
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pynvml

from nodeagent.cli import main as command_line

_ANSWERS = 3  # different ones that are kept of the same question
_ROWS = 64  # of an array
_UUID = re.compile(r"\b(GPU|MIG)-[0-9a-f-]{36}")


class Recorder:
    """A library object in the place of pynvml's, which passes every call on."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._lock = threading.Lock()
        self._seconds: dict[str, list[float]] = defaultdict(list)
        self._answers: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
        self._handles: dict[int, int] = {}

    def __getattr__(self, name: str) -> Any:
        recorded = _Function(getattr(self._library, name), self, name)
        setattr(self, name, recorded)
        return recorded

    def keep(self, name: str, given: list[Any], result: Any, came: list[Any], took: float) -> None:
        """One call, as plain values."""
        with self._lock:
            self._seconds[name].append(took)
            answers = self._answers[name][json.dumps(given)]
            answer = {"result": self.plain(result), "out": came}
            if len(answers) < _ANSWERS and answer not in answers:
                answers.append(answer)

    def plain(self, value: Any) -> Any:
        """A ctypes value as JSON has it; a handle by its number in the order of appearance."""
        match value:
            case None | bool() | int() | float():
                return value
            case str():
                return _UUID.sub(_pseudonym, value)
            case bytes():
                return self.plain(value.rstrip(b"\0").decode("latin-1"))
            case _Pointer():
                address = cast(value, c_void_p).value or 0
                return f"handle {self._handles.setdefault(address, len(self._handles))}"
            case Array() if isinstance(value.value if hasattr(value, "value") else None, bytes):
                return self.plain(value.value)
            case Array():
                rows = [self.plain(row) for row in value[:_ROWS]]
                while len(rows) > 1 and rows[-1] == rows[-2]:  # the unused rest of it
                    rows.pop()
                return rows
            case Structure() | Union():
                return {field[0]: self.plain(getattr(value, field[0])) for field in value._fields_}
            case _SimpleCData():
                return self.plain(value.value)
        target = getattr(value, "_obj", None)  # of a byref
        return type(value).__name__ if target is None else self.plain(target)

    def as_json(self) -> dict[str, Any]:
        """By function: how often it was called, its times in seconds, and its answers."""
        return {
            name: {
                "calls": len(times),
                "seconds": {"least": min(times), "median": median(times), "most": max(times)},
                "answers": [
                    {"given": json.loads(given), **answer}
                    for given, answers in self._answers[name].items()
                    for answer in answers
                ],
            }
            for name, times in sorted(self._seconds.items())
        }


class _Function:
    """One C function; what pynvml sets on it, such as `restype`, is set on the real one."""

    def __init__(self, function: Any, recorder: Recorder, name: str) -> None:
        self.__dict__["call"] = function
        self.__dict__["keep"] = partial(recorder.keep, name)
        self.__dict__["plain"] = recorder.plain

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["call"], name, value)

    def __call__(self, *arguments: Any) -> Any:
        call, keep, plain = (self.__dict__[name] for name in ("call", "keep", "plain"))
        given = [plain(one) for one in arguments]
        began = time.perf_counter()
        result = call(*arguments)
        took = time.perf_counter() - began
        keep(given, result, [plain(one) for one in arguments], took)
        return result


def _pseudonym(found: re.Match[str]) -> str:
    digits = hashlib.sha256(found[0].encode()).hexdigest()
    cut = (digits[:8], digits[8:12], "5" + digits[13:16], "8" + digits[17:20], digits[20:32])
    return f"{found[1]}-{'-'.join(cut)}"


def main() -> int:
    """Run the command line after the file's name; its exit code."""
    target, argv = Path(sys.argv[1]), sys.argv[2:]
    recorder = Recorder(CDLL("libnvidia-ml.so.1"))
    pynvml.nvmlLib = recorder
    code = command_line(argv)
    target.write_text(json.dumps(recorder.as_json(), indent=1), encoding="utf-8")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
