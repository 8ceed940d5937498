"""What a card's sensors say: what they were set to, or what follows from how busy it is.

A figure set from outside wins. Without one, clocks, power and temperature follow from the load,
and counters grow with it. Until a load is put on the card nothing grows, so that a node that is not
touched reads the same for ever. The limits below are round figures of each generation; what was not
published is assumed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodeagent.simulation.activity import WHOLE, Activity, Growing, Number, of_instance

if TYPE_CHECKING:
    from nodeagent.simulation.card import Card
    from nodeagent.simulation.state import GpuInstance

_MIB = 1 << 20
_AMBIENT = 30  # degrees of an idle card
_HEAT = 40  # degrees more of a busy one
_PCIE_BYTES = 4_000_000_000  # a second, of a busy card and direction
_LINK_KIB = 1_000_000  # KiB a second and link
IDLE = 0x1  # NVML's reason for low clocks of a card without work


@dataclass(frozen=True, slots=True)
class Limits:
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

NAMES = frozenset({
    "temperature.gpu", "temperature.memory", "temperature.slowdown", "temperature.shutdown",
    "temperature.memoryMax", "temperature.gpuMax", "temperature.margin",
    "power.usage", "power.limit", "power.enforced", "power.default", "power.min", "power.max",
    "energy", "reasons", "pstate", "fan",
    "clock.graphics", "clock.sm", "clock.memory", "clock.video",
    "application.graphics", "application.sm", "application.memory", "application.video",
    "utilization.gpu", "utilization.memory", "utilization.encoder", "utilization.decoder",
    "utilization.jpeg", "utilization.ofa",
    "pcie.replays", "pcie.generation", "pcie.width", "pcie.sent", "pcie.received",
    "ecc.mode", "ecc.pending", "ecc.sramThreshold",
    "ecc.corrected.volatile", "ecc.uncorrected.volatile",
    "ecc.corrected.aggregate", "ecc.uncorrected.aggregate",
    "rows.correctable", "rows.uncorrectable", "rows.pending", "rows.failed",
    "banks.max", "banks.high", "banks.partial", "banks.low", "banks.none",
    "pages.singleBit", "pages.doubleBit", "pages.pending",
    "memory.unrepairable", "repair.channel", "repair.tpc", "recovery",
    "fabric.state", "fabric.status", "fabric.clique", "fabric.health", "fabric.summary",
    "inforom.checksum", "inforom.corrupt", "license", "autoboost", "bar1.used",
    "platform.slot", "platform.tray", "platform.host", "platform.peer", "platform.module",
})  # fmt: skip
# Those that come with a number, as they are written for people.
NUMBERED = (
    "field.NUMBER", "field.NUMBER.LINK", "gpm.METRIC", "prm.COUNTER.PORT", "link.LINK.up",
    "nvlink.COUNTER.LINK", "ecc.corrected.(volatile|aggregate).LOCATION",
    "ecc.uncorrected.(volatile|aggregate).LOCATION", "process.PID.(sm|memory)",
)  # fmt: skip
_PATTERN = re.compile(
    r"field\.\d+(\.\d+)?|gpm\.\d+|prm\.\d+\.\d+|link\.\d+\.up|nvlink\.[a-zA-Z]+\.\d+"
    r"|ecc\.(un)?corrected\.(volatile|aggregate)\.\d|process\.\d+\.(sm|memory)"
)
# What does not outlive a reset of the card or a start of the driver.
_VOLATILE = re.compile(
    r"ecc\.\w+\.volatile.*|rows\.pending|pages\.pending|recovery|repair\..*|process\..*|nvlink\..*"
    r"|link\..*|energy|pcie\.(replays|sent|received)|reasons|field\.[34]|field\.23\d|.*@\d+"
)


def is_known(name: str) -> bool:
    """Whether a figure of that name can be set."""
    return name in NAMES or _PATTERN.fullmatch(name) is not None


class Sensors:
    """The sensors of one card. Values are NVML's: milliwatts, millijoules, MHz, degrees."""

    def __init__(self, card: Card) -> None:
        self._card = card
        capability = card.board.compute_capability
        known = [least for least in _LIMITS if least <= capability]
        self.limits: Limits = _LIMITS[max(known, default=(7, 5))]

    @property
    def _activity(self) -> Activity:
        return self._card.state.activity

    # --- what was set -------------------------------------------------------------------------

    def set_to(self, name: str, serial: int = WHOLE) -> Number | None:
        """What a figure was set to, if it was."""
        if not self._activity.figures:
            return None
        return self._activity.figures.get(of_instance(name, serial))

    def value(self, name: str, otherwise: Number, serial: int = WHOLE) -> Number:
        value = self._activity.figures.get(of_instance(name, serial))
        return otherwise if value is None else value

    # --- load ---------------------------------------------------------------------------------

    def put_load(self, serial: int, share: float, now: float) -> None:
        """Let the card, or one of its instances, be busy from now on; what it was counts."""
        self._activity.loads[serial] = share
        load = self._sum_of_loads()
        self._grow({of_instance("busy", serial): share, "busy": load}, now)
        self._grow(
            {
                "energy": self.power,
                "pcie.sent": load * _PCIE_BYTES,
                "pcie.received": load * _PCIE_BYTES / 2,
                "nvlink.sent": load * _LINK_KIB,
                "nvlink.received": load * _LINK_KIB,
            },
            now,
        )

    def _grow(self, rates: dict[str, float], now: float) -> None:
        """From now on at these rates."""
        growing = self._activity.growing
        for name, rate in rates.items():
            growing.setdefault(name, Growing(0.0, now)).go_on(now, rate)

    def instances_changed(self, now: float) -> None:
        """Instances went; the card's load is now that of those that are left."""
        if self._activity.growing:
            self.put_load(WHOLE, self._activity.loads.get(WHOLE, 0.0), now)

    @property
    def load(self) -> float:
        """How busy the card is: itself, or its instances by their slices."""
        return self.busy_now(WHOLE)

    def _sum_of_loads(self) -> float:
        loads, card = self._activity.loads, self._card
        if not card.state.mig:
            return loads.get(WHOLE, 0.0)
        slices = sum(
            loads.get(i.serial, 0.0) * card.profile(i.profile).slices for i in card.state.instances
        )
        return slices / card.board.compute_slices

    def busy_so_far(self, serial: int, now: float) -> float:
        """Seconds of full work until `now`."""
        growing = self._activity.growing.get(of_instance("busy", serial))
        return growing.at(now) if growing else 0.0

    def busy_now(self, serial: int) -> float:
        growing = self._activity.growing.get(of_instance("busy", serial))
        return growing.rate if growing else 0.0

    def _grown(self, name: str) -> float:
        growing = self._activity.growing.get(name)
        return growing.at(self._card.now()) if growing else 0.0

    # --- what follows from it -----------------------------------------------------------------

    def clock(self, kind: str) -> int:
        """MHz of `graphics`, `sm`, `memory` or `video`."""
        busy = self.load > 0
        derived = {
            "memory": self.limits.memory,
            "video": self.limits.video if busy else _IDLE_VIDEO,
        }.get(kind, self.limits.sm if busy else _IDLE_SM)
        return int(self.value(f"clock.{kind}", derived))

    def highest_clock(self, kind: str) -> int:
        return {"memory": self.limits.memory, "video": self.limits.video}.get(kind, self.limits.sm)

    @property
    def power(self) -> int:
        span = self.limits.power - self.limits.idle_power
        return int(self.value("power.usage", self.limits.idle_power + round(span * self.load)))

    @property
    def temperature(self) -> int:
        return int(self.value("temperature.gpu", _AMBIENT + round(_HEAT * self.load)))

    @property
    def margin(self) -> int:
        slowdown = int(self.value("temperature.slowdown", self.limits.slowdown))
        return int(self.value("temperature.margin", slowdown - self.temperature))

    @property
    def reasons(self) -> int:
        return int(self.value("reasons", 0 if self.load else IDLE))

    def named(self, name: str) -> Number:
        """A figure that several functions read."""
        match name:
            case "temperature.memory":
                return self.value(name, self.temperature + 5)
            case "power.usage":
                return self.power
            case "energy" | "pcie.sent" | "pcie.received":
                return self.value(name, int(self._grown(name)))
            case "ecc.mode":
                return self.value(name, 1)
            case "ecc.pending":
                return self.value(name, self.named("ecc.mode"))
            case "ecc.corrected.volatile" | "ecc.uncorrected.volatile":
                return self.value(name, self._ecc_sum(name))
            case "ecc.corrected.aggregate" | "ecc.uncorrected.aggregate":
                return self.value(name, self._ecc_sum(name))
            case _:
                return self.value(name, 0)

    def _ecc_sum(self, name: str) -> Number:
        """Of what was set for single places of the memory."""
        return sum(self.value(f"{name}.{place}", 0) for place in range(8))

    def gpm(self, metric: int, serial: int, busy: float) -> float:
        """A GPM metric over a time in which the card or instance was `busy` for that share."""
        if self._activity.figures:
            value = self.set_to(f"gpm.{metric}", serial)
            if value is not None:
                return float(value)
        if metric in {20, 21}:
            return busy * _PCIE_BYTES / _MIB / (metric - 19)
        if metric in {60, 61}:
            return busy * _LINK_KIB * self._card.board.nvlinks / 1024
        if 62 <= metric <= 97:
            return busy * _LINK_KIB / 1024
        return 100.0 * busy * _GPM_SHARES.get(metric, 0.0)

    # --- links --------------------------------------------------------------------------------

    def link_errors(self, counter: str, link: int) -> Number:
        """Of one link, or of all for -1."""
        if link >= 0:
            return self.value(f"nvlink.{counter}.{link}", 0)
        links = range(self._card.board.nvlinks)
        return sum(self.value(f"nvlink.{counter}.{link}", 0) for link in links)

    def link_bytes(self, *, sent: bool, link: int) -> int:
        """KiB so far over one link, or over all."""
        links = self._card.board.nvlinks if link >= self._card.board.nvlinks else 1
        return int(self._grown("nvlink.sent" if sent else "nvlink.received") * links)

    def link_is_up(self, link: int) -> int:
        return int(self.value(f"link.{link}.up", 1))

    # --- the card's life ----------------------------------------------------------------------

    def start_over(self) -> None:
        """After a reset or with another start of the driver."""
        activity = self._activity
        mode = activity.figures.get("ecc.pending")
        activity.loads.clear()
        activity.growing.clear()
        for name in [name for name in activity.figures if _VOLATILE.fullmatch(name)]:
            del activity.figures[name]
        if mode is not None:
            activity.figures["ecc.mode"] = mode

    def forget_instances(self, gone: list[GpuInstance]) -> None:
        for instance in gone:
            self._activity.forget_instance(instance.serial)
        self.instances_changed(self._card.now())
