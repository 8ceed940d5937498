"""Reads one handle: each call is made once, what the GPU does not have is not asked again.

A call that fails leaves out its own value and nothing else. Runs in a GPU's thread.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from nodeagent.errors import DriverError, DriverUnavailable, GpuLost
from nodeagent.gpu.nvml import Device, call
from nodeagent.gpu.nvml_calls import ABSENT, NO_DATA, FieldId, field_values, filled
from nodeagent.gpu.nvml_errors import NOT_KNOWN, explain
from nodeagent.metrics.sources import Number
from nodeagent.structs import Struct, field

Key = tuple[object, ...]
Answer = TypeVar("Answer")

_FIELDS: Key = ("nvmlDeviceGetFieldValues",)


class LastingAnswers(Struct):
    """Answers that outlive a reading: refusals, and those that do not change.

    It is forgotten when NVML was started anew, and where it depends on the MIG layout when that
    changed.
    """

    refused: set[Key] = field(default_factory=set)
    once: dict[Key, Any] = field(default_factory=dict)
    read_once: list[Any] | None = None  # the values of rows that are read once


class NvmlReader:
    """The calls of one reading. Raises GpuLost and DriverUnavailable; other errors are noted.

    `problems` says what failed, by call; what the GPU does not have is none. `doubted` are the
    calls that were answered as if the handle were wrong.
    """

    def __init__(self, device: Device, lasting: LastingAnswers) -> None:
        self.device = device
        self.problems: dict[Key, str] = {}
        self.doubted: set[Key] = set()
        self._lasting = lasting
        self._answers: dict[Key, Any] = {}
        self._fields: dict[FieldId, Number] = {}

    def ask(self, key: Key, function: Callable[[], Answer]) -> Answer | None:
        """The answer, None where there is none. `key` identifies the call."""
        answer: Answer | None = self._answers.get(key)
        if key in self._answers or key in self._lasting.refused:
            return answer
        try:
            answer = function()
        except (GpuLost, DriverUnavailable):
            raise
        except DriverError as error:
            self._note(key, error)
        self._answers[key] = answer
        return answer

    def once(self, key: Key, function: Callable[[], Answer]) -> Answer | None:
        """Ask until there is an answer, which then does not change."""
        answer: Answer | None = self._lasting.once.get(key)
        if answer is None:
            answer = self._lasting.once[key] = self.ask(key, function)
        return answer

    def call(self, function: str, *arguments: object) -> Any:
        return self.ask((function, *arguments), lambda: call(function, self.device, *arguments))

    def structure(self, function: str, structure: str) -> Any:
        key = (function, structure)
        return self.ask(key, lambda: filled(function, structure, self.device))

    def verdict(self, function: str, refusal: int) -> int | None:
        """1 when the call about this handle succeeds, 0 when it fails with `refusal`."""

        def ask() -> int:
            try:
                call(function, self.device)
            except DriverError as error:
                if error.code != refusal:
                    raise
                return 0
            return 1

        return self.ask((function, "verdict"), ask)

    def _note(self, key: Key, error: DriverError) -> None:
        if error.code in ABSENT:
            self._lasting.refused.add(key)
        elif error.code in NOT_KNOWN:
            self.doubted.add(key)
        elif error.code != NO_DATA:
            self.problems[key] = str(error)

    def resolve_doubts(self) -> None:
        """The handle was right, so it was the arguments: the GPU does not have that."""
        self._lasting.refused |= self.doubted
        self.doubted.clear()

    # --- field values -------------------------------------------------------------------------

    def read_fields(self, wanted: Iterable[FieldId]) -> None:
        """Read them in one call, those that the GPU has."""
        refused = self._lasting.refused
        left = [field_id for field_id in dict.fromkeys(wanted) if field_id not in refused]
        if not left or _FIELDS in refused:
            return
        answers = self.ask(_FIELDS, lambda: list(field_values(self.device, left)))
        for field_id, code, value in answers or ():
            if not code:
                self._fields[field_id] = value
            elif code in ABSENT or code in NOT_KNOWN:  # such as a link that it does not have
                refused.add(field_id)
            elif code != NO_DATA:
                number, scope = field_id
                why = explain(code, "nvmlDeviceGetFieldValues")
                self.problems[field_id] = f"field {number} of scope {scope}: {why.meaning}"

    def field(self, number: int, scope: int = 0) -> Number | None:
        return self._fields.get((number, scope))
