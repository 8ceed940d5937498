"""What a card is doing and suffering: what was set from outside, and what has grown since.

Plain data that a state file can hold. What a sensor says in the end is in `sensors`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Number = int | float

WHOLE = 0  # stands where an instance's serial would; serials begin at 1


@dataclass(slots=True)
class Growing:
    """A quantity that grows by `rate` a second since `since`, when it was `value`."""

    value: float
    since: float
    rate: float = 0.0

    def at(self, now: float) -> float:
        return self.value + self.rate * max(0.0, now - self.since)

    def go_on(self, now: float, rate: float) -> None:
        """From now on it grows otherwise."""
        self.value, self.since, self.rate = self.at(now), now, rate


@dataclass(slots=True)
class Activity:
    """`figures`: what sensors were set to, by name. `loads`: busy share by instance serial.

    `growing`: integrals over time by name. Names of an instance's figures end in `@serial`.
    """

    figures: dict[str, Number] = field(default_factory=dict)
    loads: dict[int, float] = field(default_factory=dict)
    growing: dict[str, Growing] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.figures or self.loads or self.growing)

    def forget_instance(self, serial: int) -> None:
        """It is gone, and nothing of it comes back."""
        self.loads.pop(serial, None)
        end = f"@{serial}"
        for names in (self.figures, self.growing):
            for name in [name for name in names if name.endswith(end)]:
                del names[name]

    def to_json(self) -> dict[str, Any]:
        return {
            "figures": self.figures,
            "loads": {str(serial): share for serial, share in self.loads.items()},
            "growing": {n: [g.value, g.since, g.rate] for n, g in self.growing.items()},
        }

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Activity:
        """Raises KeyError, TypeError or ValueError for what does not fit."""
        figures = {str(name): _number(value) for name, value in stored["figures"].items()}
        loads = {int(serial): float(share) for serial, share in stored["loads"].items()}
        growing = {
            str(name): Growing(*(float(_number(v)) for v in parts))
            for name, parts in stored["growing"].items()
        }
        return cls(figures, loads, growing)


def of_instance(name: str, serial: int) -> str:
    """The name of an instance's own figure."""
    return f"{name}@{serial}" if serial else name


def _number(value: object) -> Number:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    return value
