"""Simulated nodes whose every sensor was set to a value of its own, and what is sampled of them.

No board has everything, so each field is read of several; the clock of the readers is the test's.
"""

from collections import defaultdict
from dataclasses import dataclass, field

from nodeagent.gpu import kernel
from nodeagent.gpu.driver import Driver
from nodeagent.gpu.event_listener import EventListener, Timing
from nodeagent.health.evaluate import evaluate
from nodeagent.health.readings import NodeReading, XidEvent
from nodeagent.health.state import HealthState
from nodeagent.health.xids import default_table
from nodeagent.metrics.catalogue import catalogue
from nodeagent.metrics.samples import Node, NvLink, SampleSet, Slice, WholeGpu
from nodeagent.metrics.sources import Number
from nodeagent.simulation import SimulatedNode, Switches, simulated
from nodeagent.telemetry.event_values import EventValues
from nodeagent.telemetry.sampler import Intervals, Sampler
from nodeagent.telemetry.samples import SampleBatch

MIB = 1 << 20
ALL = 0xFFFFFFFF
LINKS = 18
SECONDS = 2.0  # between the two rounds
PATIENT = Intervals(patience=30.0, deadline=30.0)  # each round has all GPUs, however slow they are

# 7g with as many engines as there are fields for.
ENGINES = {"7g.80gb": {"decoders": 8, "jpeg": 8, "ofa": 2, "encoders": 4}}
BOARDS = ("h100-80gb:2", "gb200:2", "t4:1", "rtx-pro-6000-workstation:1")
# Drivers from R610 on tell cumulative GPM metrics.
NEWEST = Switches(driver_version="610.10", gpm_of_mig_parent=False)

DIRECT: dict[str, Number] = {
    "temperature.gpu": 71, "temperature.memory": 83, "temperature.memoryMax": 105,
    "temperature.gpuMax": 88, "temperature.slowdown": 91, "temperature.shutdown": 96,
    "temperature.margin": 17, "power.usage": 251_500, "power.limit": 650_000,
    "power.enforced": 640_500, "power.default": 699_000, "power.min": 200_250,
    "power.max": 701_000, "energy": 123_456_789_012, "reasons": 0x44, "pstate": 2, "fan": 37,
    "clock.sm": 1755, "clock.memory": 2600, "clock.video": 1410,
    "application.graphics": 1700, "application.memory": 2500,
    "utilization.gpu": 81, "utilization.memory": 42, "utilization.encoder": 13,
    "utilization.decoder": 27, "pcie.replays": 7, "pcie.generation": 3, "pcie.width": 8,
    "ecc.sramThreshold": 1, "banks.max": 601, "banks.high": 33, "banks.partial": 4,
    "banks.low": 2, "banks.none": 1, "pages.singleBit": 3, "memory.unrepairable": 1,
    "fabric.state": 2, "fabric.status": 9, "fabric.clique": 5, "fabric.health": 0x300,
    "fabric.summary": 2, "inforom.checksum": 4711, "inforom.corrupt": 0, "license": 1,
    "autoboost": 1, "bar1.used": 5 * MIB + 1000, "platform.slot": 3, "platform.tray": 200,
    "platform.host": 0, "platform.peer": 2, "platform.module": 255,
}  # fmt: skip


@dataclass(slots=True)
class Sampled:
    """Values by field: of the node and of GPU 0 as a whole (`whole`), of its links by link, of its
    one instance (`part`); each as a set over all boards.
    """

    whole: dict[int, set[Number]] = field(default_factory=lambda: defaultdict(set))
    links: dict[tuple[int, int], set[Number]] = field(default_factory=lambda: defaultdict(set))
    part: dict[int, set[Number]] = field(default_factory=lambda: defaultdict(set))
    problems: list[str] = field(default_factory=list)

    def take(self, sample: SampleSet) -> None:
        for number, values in sample.values.items():
            for subject, value in values:
                match subject.entity:
                    case WholeGpu(gpu) if gpu.index == 0:
                        self.whole[number].add(value)
                    case Node():
                        self.whole[number].add(value)
                    case NvLink(gpu, link) if gpu.index == 0:
                        self.links[number, link].add(value)
                    case Slice():
                        self.part[number].add(value)
                    case _:
                        continue

    def take_round(self, reported: SampleBatch) -> None:
        for sample in reported.samples.values():
            self.take(sample)
        for problems in reported.problems.values():
            self.problems += problems


def field_raw(number: int, link: int = 0) -> Number:
    """What a field value is set to where nothing else is said."""
    return {82: 83, 186: 251_500, 220: 0x307, 222: 0x105}.get(number, 1000 + number + 10_000 * link)


def gpm_raw(metric: int) -> float:
    return metric + 0.5


def set_all(node: SimulatedNode) -> None:
    figures = dict(DIRECT)
    for number in range(1, 272):
        figures[f"field.{number}"] = field_raw(number)
        figures[f"field.{number}.{ALL}"] = field_raw(number)
        for link in range(LINKS):
            figures[f"field.{number}.{link}"] = field_raw(number, link)
    for counter, start in (("crcFlit", 100), ("crcData", 200), ("replay", 300), ("recovery", 400)):
        for link in range(LINKS):
            figures[f"nvlink.{counter}.{link}"] = start + link
    for place in range(8):
        for kind, start in (("corrected", 20), ("uncorrected", 40)):
            figures[f"ecc.{kind}.volatile.{place}"] = start + place
            figures[f"ecc.{kind}.aggregate.{place}"] = 100 + start + place
    for metric in range(1, 334):
        figures[f"gpm.{metric}"] = gpm_raw(metric)
    for counter in (*range(1, 310), 1001):
        for link in range(LINKS):
            figures[f"prm.{counter}.{link + 1}"] = counter * 100 + link
    node.set_figures(0, figures)


def grow(node: SimulatedNode) -> None:
    """What the counters behind rates grow by between the rounds, in KiB and in bytes."""
    figures: dict[str, Number] = {
        "field.197": field_raw(197) + 8_000_000,
        "field.198": field_raw(198) + 3_000_000,
        f"field.138.{ALL}": field_raw(138) + 100_000_000,
        f"field.139.{ALL}": field_raw(139) + 60_000_000,
    }
    for link in range(LINKS):
        figures[f"field.138.{link}"] = field_raw(138, link) + 4_000_000 * (link + 1)
        figures[f"field.139.{link}"] = field_raw(139, link) + 2_000_000 * (link + 1)
    node.set_figures(0, figures)


def divide(node: SimulatedNode, profile: str, count: int = 1) -> None:
    """GPU 0 in MIG mode with `count` instances of that profile, each with all its slices."""
    card = node.cards[0]
    with node.changes():
        card.set_mig_mode(enabled=True)
        wanted = next(p for p in card.board.profiles if p.name == profile)
        whole = max(wanted.compute, key=lambda c: c.slices)
        for _ in range(count):
            card.create_compute(card.create_instance(wanted.id), whole.id)


async def sample_board(boards: str, sampled: Sampled) -> None:
    overrides = {"h100-80gb": {"profiles": ENGINES}}
    with simulated(boards, switches=NEWEST, overrides=overrides) as node:
        set_all(node)
        await _two_rounds(node, sampled)


async def sample_divided(sampled: Sampled) -> None:
    """Two rounds of an instance that is the whole GPU; only its own values are taken."""
    overrides = {"h100-80gb": {"profiles": ENGINES}}
    with simulated("h100-80gb", switches=NEWEST, overrides=overrides) as node:
        divide(node, "7g.80gb")
        device = "0/0/0"
        node.occupy(device, memory=1000 * MIB)
        node.set_figures(0, {"bar1.used": 5 * MIB + 1000})
        for metric in range(1, 334):
            node.set_figures(device, {f"gpm.{metric}": gpm_raw(metric)})
        for place in range(8):
            node.set_figures(device, {f"ecc.uncorrected.volatile.{place}": 60 + place})
        found = Sampled()
        await _two_rounds(node, found)
        sampled.part = found.part
        sampled.problems += found.problems


async def _two_rounds(node: SimulatedNode, sampled: Sampled) -> None:
    now = [100.0]
    async with Driver(observe_deadline=20, step_deadline=20) as driver:
        await driver.observe()
        rows, texts = catalogue().fields, catalogue().texts
        sampler = Sampler(driver, rows, texts, intervals=PATIENT, clock=lambda: now[0])
        sampled.take_round(await sampler.round())
        if not node.cards[0].state.mig:
            grow(node)
        now[0] += SECONDS
        sampled.take_round(await sampler.round())


async def sample_events(sampled: Sampled) -> None:
    """An XID of an instance and one of NVLink, and a GPU that lost its driver."""
    with simulated("h100-80gb") as node:
        divide(node, "1g.10gb")
        instance = node.cards[0].state.instances[0].id
        async with Driver(observe_deadline=20, step_deadline=20) as driver:
            await driver.observe()
            sampler = Sampler(driver, (), intervals=PATIENT)
            reported = await sampler.round()
            listener = EventListener(driver, timing=Timing(wait=0.01))
            await listener.listen()
            node.xid(f"0/{instance}/0", 13)
            node.xid(0, 74)
            node.bind(0, bound=False)
            heard = await listener.listen()
            values = EventValues()
            values.update(heard)
            xids = tuple(event for event in heard if isinstance(event, XidEvent))
            reading = NodeReading(kernel.now(), "boot-1", xids=xids)
            counted = evaluate(HealthState(), reading, default_table()).state.xids
            sampled.take(values.sample(counted, sampler.whole_subjects, reported.slices, ()))
