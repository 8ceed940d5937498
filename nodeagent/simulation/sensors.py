"""What a card's sensors report: what they were set to, or what follows from how busy it is.

A figure set from outside wins. Without one, clocks, power and temperature follow from the load,
and counters grow with it. Until a load is put on the card nothing grows, so that a node that is not
touched reads the same for ever. The limits below are round figures of each generation; what was not
published is assumed.
"""

import re
from collections.abc import Callable, Iterable

from msgspec import Struct

from nodeagent.simulation.boards import Board
from nodeagent.simulation.state import WHOLE, Activity, Growing, Number, of_instance

_MIB = 1 << 20
_AMBIENT = 30  # degrees of an idle card
_HEAT = 40  # degrees more of a busy one
_PCIE_BYTES = 4_000_000_000  # a second, of a busy card and direction
_LINK_KIB = 1_000_000  # KiB a second and link
_IDLE = 0x1  # NVML's reason for low clocks of a card without work


class Limits(Struct, frozen=True):
    """MHz, milliwatts, degrees Celsius, PCIe generation."""

    sm: int
    memory: int
    video: int
    power: int
    idle_power: int
    slowdown: int
    shutdown: int
    memory_max: int
    pcie: int


_LIMITS = {
    (7, 5): Limits(1590, 5001, 1470, 70_000, 10_000, 93, 96, 0, 3),
    (8, 0): Limits(1410, 1593, 1290, 400_000, 55_000, 92, 95, 95, 4),
    (8, 9): Limits(2520, 9001, 1965, 350_000, 35_000, 95, 100, 0, 4),
    (9, 0): Limits(1980, 2619, 1545, 700_000, 70_000, 87, 92, 95, 5),
    (10, 0): Limits(1965, 3996, 1650, 1_000_000, 140_000, 87, 92, 95, 5),
    (12, 0): Limits(2430, 14001, 2100, 600_000, 30_000, 90, 95, 0, 5),
}
_IDLE_SM, _IDLE_VIDEO = 345, 615

# Shares of a busy card's cycles by GPM metric: what a training job is like.
_GPM_SHARES = {
    1: 1.0, 2: 0.9, 3: 0.5, 4: 0.2, 5: 0.4, 6: 0.01, 7: 0.35, 8: 0.01, 9: 0.05,
    10: 0.3, 11: 0.01, 12: 0.2, 13: 0.1,
}  # fmt: skip


class Sensors:
    """The sensors of one card. Values are NVML's: milliwatts, millijoules, MHz, degrees."""

    def __init__(self, board: Board, activity: Activity, clock: Callable[[], float]) -> None:
        self._board = board
        self._activity = activity
        self._clock = clock
        known = [least for least in _LIMITS if least <= board.compute_capability]
        self.limits: Limits = _LIMITS[max(known, default=(7, 5))]

    def figure(self, name: str, serial: int = WHOLE) -> Number | None:
        """What a figure was set to, if it was."""
        if not self._activity.figures:
            return None
        return self._activity.figures.get(of_instance(name, serial))

    def value(self, name: str, otherwise: Number | None = None, serial: int = WHOLE) -> Number:
        """What was set, else `otherwise`, else what the figure is by itself."""
        value = self.figure(name, serial)
        if value is not None:
            return value
        if otherwise is not None:
            return otherwise
        own = _FIGURES.get(name, 0)
        return own(self) if callable(own) else own

    def integer(self, name: str, otherwise: int | None = None, serial: int = WHOLE) -> int:
        return int(self.value(name, otherwise, serial))

    def set_figure(self, name: str, value: Number | None, serial: int = WHOLE) -> None:
        """None: what follows from the load again."""
        if value is None:
            self._activity.figures.pop(of_instance(name, serial), None)
        else:
            self._activity.figures[of_instance(name, serial)] = value

    # --- load ---------------------------------------------------------------------------------

    def put_load(self, serial: int, share: float, load: float) -> None:
        """Be busy from now on for this `share`, which makes `load` of the whole card; what was
        counts.
        """
        self._grow({of_instance("busy", serial): share, "busy": load})
        self._grow(
            {
                "energy": float(self.value("power.usage")),
                "pcie.sent": load * _PCIE_BYTES,
                "pcie.received": load * _PCIE_BYTES / 2,
                "nvlink.sent": load * _LINK_KIB,
                "nvlink.received": load * _LINK_KIB,
            }
        )

    def _grow(self, rates: dict[str, float]) -> None:
        """From now on at these rates."""
        now, growing = self._clock(), self._activity.growing
        for name, rate in rates.items():
            before = growing[name].at(now) if name in growing else 0.0
            growing[name] = Growing(before, now, rate)

    def grown(self, name: str, now: float | None = None) -> float:
        growing = self._activity.growing.get(name)
        return growing.at(self._clock() if now is None else now) if growing else 0.0

    def load(self, serial: int = WHOLE) -> float:
        """How busy the card or an instance is now."""
        growing = self._activity.growing.get(of_instance("busy", serial))
        return growing.rate if growing else 0.0

    def gpm(self, metric: int, serial: int, busy: float) -> float:
        """A GPM metric over a time in which the card or instance was `busy` for that share."""
        value = self.figure(f"gpm.{metric}", serial)
        if value is not None:
            return float(value)
        if metric in {20, 21}:
            return busy * _PCIE_BYTES / _MIB / (metric - 19)
        if metric in {60, 61}:
            return busy * _LINK_KIB * self._board.nvlinks / 1024
        if 62 <= metric <= 97:
            return busy * _LINK_KIB / 1024
        return 100.0 * busy * _GPM_SHARES.get(metric, 0.0)

    def link_errors(self, counter: str, link: int) -> Number:
        """Of one link, or of all for -1."""
        links = range(self._board.nvlinks) if link < 0 else [link]
        return sum(self.value(f"nvlink.{counter}.{one}") for one in links)

    def link_kib(self, *, sent: bool, link: int) -> int:
        """KiB so far over one link, or over all."""
        links = self._board.nvlinks if link >= self._board.nvlinks else 1
        return int(self.grown("nvlink.sent" if sent else "nvlink.received") * links)

    # --- the card's life ----------------------------------------------------------------------

    def start_over(self) -> None:
        """After a reset or with another start of the driver."""
        activity = self._activity
        mode = activity.figures.get("ecc.pending")
        activity.loads.clear()
        activity.growing.clear()
        for name in [name for name in activity.figures if re.fullmatch(_VOLATILE, name)]:
            del activity.figures[name]
        if mode is not None:
            activity.figures["ecc.mode"] = mode

    def forget_instances(self, serials: Iterable[int]) -> None:
        for serial in serials:
            self._activity.forget_instance(serial)


def _sum_of_places(name: str) -> Callable[[Sensors], Number]:
    """Of what was set for single places of the memory."""
    return lambda sensors: sum(sensors.value(f"{name}.{place}") for place in range(8))


def _counted(name: str) -> Callable[[Sensors], Number]:
    return lambda sensors: int(sensors.grown(name))


def _power(sensors: Sensors) -> int:
    span = sensors.limits.power - sensors.limits.idle_power
    return sensors.limits.idle_power + round(span * sensors.load())


def _sm_clock(sensors: Sensors) -> int:
    return sensors.limits.sm if sensors.load() else _IDLE_SM


# What each figure is where it was not set.
_FIGURES: dict[str, Number | Callable[[Sensors], Number]] = {
    "temperature.gpu": lambda s: _AMBIENT + round(_HEAT * s.load()),
    "temperature.memory": lambda s: s.value("temperature.gpu") + 5,
    "temperature.slowdown": lambda s: s.limits.slowdown,
    "temperature.shutdown": lambda s: s.limits.shutdown,
    "temperature.memoryMax": lambda s: s.limits.memory_max,
    "temperature.gpuMax": lambda s: s.limits.slowdown - 2,
    "temperature.margin": lambda s: s.value("temperature.slowdown") - s.value("temperature.gpu"),
    "power.usage": _power,
    "power.limit": lambda s: s.limits.power,
    "power.enforced": lambda s: s.value("power.limit"),
    "power.default": lambda s: s.limits.power,
    "power.min": lambda s: s.limits.power // 2,
    "power.max": lambda s: s.limits.power,
    "energy": _counted("energy"),
    "reasons": lambda s: 0 if s.load() else _IDLE,
    "pstate": 0,
    "fan": 30,
    "clock.graphics": _sm_clock,
    "clock.sm": _sm_clock,
    "clock.memory": lambda s: s.limits.memory,
    "clock.video": lambda s: s.limits.video if s.load() else _IDLE_VIDEO,
    "application.graphics": lambda s: s.limits.sm,
    "application.sm": lambda s: s.limits.sm,
    "application.memory": lambda s: s.limits.memory,
    "application.video": lambda s: s.limits.video,
    "utilization.gpu": lambda s: round(100 * s.load()),
    "utilization.memory": lambda s: round(100 * s.load()) * 3 // 10,
    **dict.fromkeys(("utilization.encoder", "utilization.decoder"), 0),
    **dict.fromkeys(("utilization.jpeg", "utilization.ofa"), 0),
    "pcie.replays": 0,
    "pcie.generation": lambda s: s.limits.pcie,
    "pcie.width": 16,
    "pcie.widthMax": 16,
    "pcie.sent": _counted("pcie.sent"),
    "pcie.received": _counted("pcie.received"),
    "ecc.mode": 1,
    "ecc.pending": lambda s: s.value("ecc.mode"),
    "ecc.sramThreshold": 0,
    "ecc.corrected.volatile": _sum_of_places("ecc.corrected.volatile"),
    "ecc.uncorrected.volatile": _sum_of_places("ecc.uncorrected.volatile"),
    "ecc.corrected.aggregate": _sum_of_places("ecc.corrected.aggregate"),
    "ecc.uncorrected.aggregate": _sum_of_places("ecc.uncorrected.aggregate"),
    **dict.fromkeys(("rows.correctable", "rows.uncorrectable", "rows.pending", "rows.failed"), 0),
    "banks.max": 640,
    **dict.fromkeys(("banks.high", "banks.partial", "banks.low", "banks.none"), 0),
    **dict.fromkeys(("pages.singleBit", "pages.doubleBit", "pages.pending"), 0),
    **dict.fromkeys(("memory.unrepairable", "repair.channel", "repair.tpc", "recovery"), 0),
    "fabric.state": 3,  # completed
    "fabric.status": 0,
    "fabric.clique": 1,
    "fabric.health": 0,
    "fabric.summary": 1,  # healthy
    "inforom.checksum": 0x5A17,
    **dict.fromkeys(("inforom.corrupt", "license"), 0),
    "autoboost": 0,
    "bar1.used": _MIB,
    "platform.slot": 1,
    "platform.tray": 0,
    "platform.host": 1,
    "platform.peer": 1,
    "platform.module": 1,
}
NAMES = frozenset(_FIGURES)
# Those that come with a number, as they are written for people; links are up, all else is 0.
NUMBERED = (
    "field.NUMBER", "field.NUMBER.LINK", "gpm.METRIC", "prm.COUNTER.PORT", "link.LINK.up",
    "nvlink.COUNTER.LINK", "ecc.corrected.(volatile|aggregate).LOCATION",
    "ecc.uncorrected.(volatile|aggregate).LOCATION", "process.PID.(sm|memory)",
)  # fmt: skip
_PATTERN = (
    r"field\.\d+(\.\d+)?|gpm\.\d+|prm\.\d+\.\d+|link\.\d+\.up|nvlink\.[a-zA-Z]+\.\d+"
    r"|ecc\.(un)?corrected\.(volatile|aggregate)\.\d|process\.\d+\.(sm|memory)"
)
# What does not outlive a reset of the card or a start of the driver.
_VOLATILE = (
    r"ecc\.\w+\.volatile.*|rows\.pending|pages\.pending|recovery|repair\..*|process\..*|nvlink\..*"
    r"|link\..*|energy|pcie\.(replays|sent|received)|reasons|field\.[34]|field\.23\d|.*@\d+"
)


def is_known(name: str) -> bool:
    """Whether a figure of that name can be set."""
    return name in NAMES or re.fullmatch(_PATTERN, name) is not None
