"""Loads that run as processes of a simulated node, whose sensors are sampled as the agent does it;
of the records they are advised.
"""

import random
from collections.abc import Sequence
from pathlib import Path

from nodeagent.cluster.kubelet.processes import Owner
from nodeagent.documents.reading import read_document
from nodeagent.errors import UsageError
from nodeagent.gpu.driver import Driver
from nodeagent.metrics.catalogue import catalogue
from nodeagent.metrics.samples import merged
from nodeagent.plan.desired import DesiredNode, Layout
from nodeagent.plan.observed import DeviceDaemon, Gpu, ObservedNode
from nodeagent.plan.planner import plan
from nodeagent.plan.resolve import resolve
from nodeagent.plan.shares import WantedMps
from nodeagent.reconcile.executor import execute
from nodeagent.simulation import SimulatedNode, Switches, simulated
from nodeagent.simulation.boards import Board
from nodeagent.structs import Struct, replace
from nodeagent.telemetry.accounting import ACTIVITY_FIELDS, activity, readings
from nodeagent.telemetry.ownership import FB_USED, Device, uses
from nodeagent.telemetry.process_reader import ProcessReader
from nodeagent.telemetry.sampler import Intervals, Sampler
from nodeagent.telemetry.samples import ProcessReading
from nodeagent.use.advice import Advice, advise
from tests.telemetry.use_rig import DAY, Agent

MIB, GIB = 1 << 20, 1 << 30
SAMPLES = 25
STEP = 1.1 * DAY / SAMPLES
_FIELDS = (FB_USED, *ACTIVITY_FIELDS, 1002, 1005)
_CALM = Intervals(slow=1e9, patience=60, stagger=60, deadline=60)
_AT_ONCE = Switches(ampere_mode="whenIdle")
_QUIET = (0.2, 0.2, 0.3, 1.0)  # most of the time
_PERCENT = (3.0, 20.0, 45.0, 79.0, 99.0)


class Has(Struct, frozen=True):
    """A device as a plan gives it: `gpu`, a profile, `share` or `share of` a profile."""

    device: str
    memory: int = 0  # of a share
    threads: float | None = None

    @property
    def profile(self) -> str:
        return "" if self.device in {"gpu", "share"} else self.device.removeprefix("share of ")

    @property
    def is_shared(self) -> bool:
        return self.device.startswith("share")

    def entry(self, index: int) -> str:
        share = f"{{count: 2, memory: {self.memory // MIB}Mi, threads: {self.threads or 100:g}}}"
        mps = f", mps: {{oversubscribe: true, shares: {{a: {share}}}}}" if self.is_shared else ""
        mig = f", mig: [{{profile: {self.profile}{mps}}}]" if self.profile else mps
        return f"- {{devices: [{index}]{mig or ', timeSlice: short'}}}\n"

    def size(self, board: Board) -> tuple[float, float, float]:
        """Bytes, multiprocessors and memory slices."""
        size = float(board.memory), float(board.multiprocessors), float(board.memory_slices or 1)
        for one in board.profiles:
            if one.name == self.profile:
                size = float(one.memory), float(one.multiprocessors), one.placements[0].size
        memory = float(self.memory) if self.is_shared else size[0]
        return memory, size[1] * (self.threads or 100) / 100, size[2]


class Moment(Struct, frozen=True):
    """What a load wants: bytes, multiprocessors, and the bandwidth of so many memory slices."""

    memory: int
    work: float
    traffic: float


class Load(Struct):
    """A workload of one process, and how it fared the last time."""

    name: str
    moments: Sequence[Moment]
    beside: Sequence[bool]  # when another one has the device, too
    has: Has
    busier: float  # how much more of the time than of the multiprocessors it is at work
    refused: int = 0  # allocations
    advice: Advice | None = None  # the last one

    @property
    def at_p95(self) -> tuple[float, float]:
        """Multiprocessors at work, and memory slices' worth of bandwidth."""
        place = int(0.95 * (SAMPLES - 1))
        work = sorted(moment.work for moment in self.moments)
        return work[place], sorted(moment.traffic for moment in self.moments)[place]

    @property
    def next_device(self) -> Has | None:
        """What it is to have from now on, if something else."""
        advice = self.advice
        assert advice
        if advice.memory is None:
            return Has(advice.advised) if advice.advised else None
        device = self.has.device if self.has.is_shared else "share"
        return Has(device, advice.memory, advice.threads)


def a_load(name: str, board: Board, has: Has, chance: random.Random) -> Load:
    """One that, as far as its device lets it, takes any part of it."""
    memory, work, traffic = has.size(board)
    peak, busy, moving = (chance.choice(_PERCENT) / 100 for _ in range(3))
    grows = chance.random() < 0.2
    moments = []
    for number in range(SAMPLES):
        burst = number == 7
        once = peak * (1.0 if burst else chance.uniform(0.1, 0.4))
        part = 0.4 + number / SAMPLES if grows else once
        moments.append(
            Moment(
                int(part * memory * (1.0 if grows else 0.97)),
                work * (1.0 if burst else busy * chance.choice(_QUIET)),
                traffic * (1.0 if burst else moving * chance.choice(_QUIET)),
            )
        )
    often = chance.choice((0.0, 0.5, 0.9)) if not has.profile or has.is_shared else 0.0
    beside = [number < often * SAMPLES for number in range(SAMPLES)]
    if often and chance.random() < 0.5:  # at night it has nothing to do, and the device alone
        moments = [m if b else replace(m, work=0.0) for m, b in zip(moments, beside, strict=True)]
    return Load(name, moments, beside, has, chance.choice((1.0, 1.5)))


def some_device(board: Board, chance: random.Random) -> Has:
    device = chance.choice(("gpu", "gpu", *(profile.name for profile in board.profiles)))
    if chance.random() < 0.5:
        return Has(device)
    of = Has(device)
    part = chance.choice((0.13, 0.3, 0.5, 0.9))
    memory = int(of.size(board)[0] * part / MIB) * MIB
    threads = chance.choice((None, 5.0, 25.0, 60.0))
    return Has("share" if device == "gpu" else f"share of {device}", memory, threads)


class Replay:
    """Runs loads, each on a GPU of its own of one board."""

    def __init__(self, board: str, folder: Path) -> None:
        self._board, self._folder = board, folder
        self._now = 0.0

    async def run(self, loads: Sequence[Load]) -> None:
        """Let them run on what they have, and be advised."""
        file = self._folder / "use.json"
        file.unlink(missing_ok=True)
        agent = Agent(file, longest_gap=2 * STEP)
        with simulated(f"{self._board}:{len(loads)}", switches=_AT_ONCE) as node:
            node.clock = lambda: self._now
            async with Driver(observe_deadline=60, step_deadline=60) as driver:
                observed = await _applied(driver, loads)
                fields = [row for row in catalogue().fields if row.id in _FIELDS]
                sampler = Sampler(driver, fields, intervals=_CALM, clock=lambda: self._now)
                ran = [_Ran(node, *one) for one in zip(loads, observed.gpus, strict=True)]
                for number in range(SAMPLES):
                    for one in ran:
                        one.go_on(number)
                    self._now += STEP
                    batch = await sampler.round()
                    slices = {sample.gpu.uuid: sample.slices for sample in batch.latest}
                    wholes = [sample.whole for sample in batch.latest]
                    sample = merged(batch.samples.values(), slices, wholes)
                    active = activity(sample)
                    processes = {one.device: await one.processes(driver) for one in ran}
                    owners = {pid: owner for one in ran for pid, owner in one.owners.items()}
                    who = uses(observed, processes, owners.get)
                    agent.see(observed, STEP, active, read=readings(sample, active), who=who)
        agent.restart()
        advices = (advise(use, observed.gpus) for use in agent.records.uses())
        found = {advice.workload: advice for advice in advices}
        for load in loads:
            load.advice = found[load.name]


class _Ran:
    """A load on its device."""

    def __init__(self, node: SimulatedNode, load: Load, gpu: Gpu) -> None:
        self._node, self._load = node, load
        self._index, self._board = gpu.index, node.cards[gpu.index].board
        part = gpu.instances[0] if gpu.instances else None
        self.device: Device = gpu.uuid, part.id if part else None
        self._named = f"{gpu.index}/{part.id}/0" if part else gpu.index
        self._pid = self._come(load.has.memory if load.has.is_shared else None)
        self._memory = 0
        self._other: int | None = None
        self.owners = {self._pid: Owner("team", f"{load.name}-0", "main")}
        self._reader = ProcessReader()
        load.refused = 0

    def _come(self, limit: int | None = None) -> int:
        kind = "mps" if self._load.has.is_shared else "compute"
        return self._node.occupy(self._named, memory=0, kind=kind, limit=limit).pid

    async def processes(self, driver: Driver) -> tuple[ProcessReading, ...]:
        found = await driver.pool.visit(
            self._index, self._reader.read, what="listing", deadline=60, gives_way=True
        )
        return found.running.get(self.device[1], ())

    def go_on(self, number: int) -> None:
        """Want what it wants then; measured is what becomes of it."""
        load, node, wanted = self._load, self._node, self._load.moments[number]
        if load.beside[number] and self._other is None:
            self._other = self._come()
            self.owners[self._other] = Owner("team", "other-0", "main")
        elif not load.beside[number] and self._other is not None:
            node.release(self._named, self._other)
            self._other = None
        most, multiprocessors, slots = load.has.size(self._board)
        if not self._allocated(wanted.memory):
            load.refused += 1
            while self._allocated(self._memory + int(most / 100)):
                pass
        _, all_of_it, _ = replace(load.has, threads=None).size(self._board)
        busy = 100 * min(wanted.work, multiprocessors) / all_of_it
        engine = min(100.0, busy * load.busier)
        moved = 100 * min(wanted.traffic / slots, 1)
        node.set_figures(self._named, {"gpm.1": engine, "gpm.2": busy, "gpm.10": moved})
        if not load.has.profile:
            of_process = {f"process.{self._pid}.sm": int(engine)}
            node.set_figures(self._index, {"utilization.gpu": engine, **of_process})

    def _allocated(self, memory: int) -> bool:
        try:
            self._node.allocate(self._named, self._pid, memory)
        except UsageError:
            return False
        self._memory = memory
        return True


async def _applied(driver: Driver, loads: Sequence[Load]) -> ObservedNode:
    """The node after a plan for what they have; its MPS daemons are values."""
    observed = await driver.observe()
    text = "".join(load.has.entry(index) for index, load in enumerate(loads))
    desired = resolve(read_document(f"version: v1\ngpus:\n{text}".encode()), observed)
    without = {uuid: replace(gpu, mps=None) for uuid, gpu in desired.gpus.items()}
    daemons = {uuid: gpu.mps for uuid, gpu in desired.gpus.items()}
    for uuid, gpu in desired.gpus.items():
        if isinstance(gpu.mig, Layout):
            [instance] = gpu.mig.instances
            daemons[uuid] = instance.mps
            bare = replace(gpu.mig, instances=(replace(instance, mps=None),))
            without[uuid] = replace(gpu, mig=bare)
    await execute(plan(DesiredNode(without), observed), driver, parallel=len(loads))
    gpus = (await driver.observe()).gpus
    made = ["".join(instance.profile for instance in gpu.instances) for gpu in gpus]
    assert made == [load.has.profile for load in loads]
    return ObservedNode(tuple(_with_daemon(gpu, daemons[gpu.uuid]) for gpu in gpus))


def _with_daemon(gpu: Gpu, wanted: WantedMps | None) -> Gpu:
    daemon = DeviceDaemon(wanted, "Ready") if wanted else None
    if not gpu.instances:
        return replace(gpu, mps=daemon)
    [instance] = gpu.instances
    compute = (replace(instance.compute[0], mps=daemon),)
    return replace(gpu, instances=(replace(instance, compute=compute),))
