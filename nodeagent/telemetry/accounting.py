"""What devices do, and accounts of it by owner: time held, time used, how long they have been idle.

The time between two observations counts for those who held something when it began, and as used to
the share that the GPU or slice was active meanwhile. A gap that is too long counts for none. What
counts for a pod's account counts for the records of its workload, too. The time between two agents
counts for the records of who held the same before and after.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from nodeagent.cluster.kubelet.processes import Owner
from nodeagent.metrics.agent_metrics import AgentSample
from nodeagent.metrics.samples import SampleSet
from nodeagent.metrics.selection import CLOCK_EVENT_REASONS
from nodeagent.plan.observed import Gpu, ObservedNode
from nodeagent.structs import Struct, field
from nodeagent.telemetry.holds import DeviceHold, holds_of
from nodeagent.telemetry.ownership import FB_USED, GPU_UTIL, UNUSED, Device, DeviceUse, device_of
from nodeagent.use.advice import Advice
from nodeagent.use.records import Measured, PodKey, Records
from nodeagent.views.claims import Claim
from nodeagent.views.node_state import Reading
from nodeagent.views.shapes import MpsDaemon

GRAPHICS_ACTIVE = 1001  # DCGM's field id; 0 to 1, of a GPU or an instance
ACTIVITY_FIELDS = (GPU_UTIL, GRAPHICS_ACTIVE)
_IDLE_BELOW = 0.005  # less is shown as 0 percent


def activity(sample: SampleSet) -> Mapping[Device, float]:
    """The activity of each device, from 0 to 1, where it is known."""
    found: dict[Device, float] = {}
    for number, scale in ((GPU_UTIL, 0.01), (GRAPHICS_ACTIVE, 1.0)):  # the finer one wins
        for subject, value in sample.values.get(number, ()):
            device = device_of(subject.entity)
            if device is not None:
                found[device] = value * scale
    return found


_FIGURES: Final = {  # DCGM's field ids, by what a Reading calls it
    "temperature": 150,
    "slowdown_temperature": 158,
    "power": 155,
    "power_limit": 164,
    "memory": FB_USED,
    "sm_clock": 100,
    "memory_clock": 101,
    "clock_reasons": CLOCK_EVENT_REASONS,
    "ecc_corrected": 310,
    "ecc_uncorrected": 311,
    "sm_active": 1002,
    "dram_active": 1005,
}
READING_FIELDS = (*ACTIVITY_FIELDS, *_FIGURES.values())
_SCALES: Final = {"memory": 1 << 20, "sm_active": 100, "dram_active": 100}


def readings(sample: SampleSet, active: Mapping[Device, float]) -> Mapping[Device, Reading]:
    """The status' figures of each GPU and GPU instance; `active`: as `activity` has it."""
    found: dict[Device, dict[str, Any]] = defaultdict(
        dict, {device: {"utilization": round(100.0 * part, 1)} for device, part in active.items()}
    )
    for name, number in _FIGURES.items():
        for subject, value in sample.values.get(number, ()):
            device = device_of(subject.entity)
            if device is not None:
                found[device][name] = round(value * _SCALES.get(name, 1), 1)
    return {device: Reading(**figures) for device, figures in found.items()}


class _Account(Struct):
    """Seconds by metric; those used are a floor where activity was not always measured, and absent
    where it never was. `last` is when the holder last held something.
    """

    totals: dict[str, float] = field(default_factory=dict)
    last: float = 0.0


class Accounts:
    """Adds up, observation by observation. Times are seconds of a clock that does not jump.

    A holder is forgotten `keep` seconds after it let go, so that its last values are still scraped;
    a gap above `longest_gap` does not count. `records` are of workloads.
    """

    def __init__(self, *, longest_gap: float, keep: float = 600.0) -> None:
        self.records = Records()
        self.advice: tuple[Advice, ...] = ()  # for who holds something now
        self.gpus: tuple[Gpu, ...] = ()
        self.workloads: dict[PodKey, str] = {}
        self._longest_gap = longest_gap
        self._keep = keep
        self._accounts: dict[Owner, _Account] = {}
        self._holds: Mapping[tuple[Device, Owner], DeviceHold] = {}
        self._active: Mapping[Device, float] = {}
        self._since: float | None = None

    def observe(
        self,
        now: float,
        observed: ObservedNode,
        uses: Mapping[Device, DeviceUse],
        active: Mapping[Device, float],
        *,
        read: Mapping[Device, Reading] = MappingProxyType({}),
        claims: Iterable[Claim] = (),
        daemons: Iterable[MpsDaemon] = (),
    ) -> None:
        """Record who has what at `now`, and its activity since the last time: the part of the time
        in which it worked (0 to 1), where that is known. `read` is of devices, `claims` and the
        clients of `daemons` say which parts of them were granted.
        """
        self.gpus = observed.gpus
        holds = holds_of(observed, uses, claims, daemons)
        since, before = self._since, self._holds
        if since is None:
            known = 0.0 <= now - self.records.seen <= self._longest_gap
            since = self.records.seen if known else now
            before = {key: hold for key, hold in holds.items() if str(key) in self.records.held}
        else:
            self.records.grow_older(max(now - since, 0.0))
        passed = now - since
        # What was just active can be idle from the next sample on; what was idle is so until it is
        # known to be active, which after a start takes two samples.
        was = self.records.idle
        idle = {
            name: was.get(name, -passed) + passed
            for (device, _), name in zip(holds, map(str, holds), strict=True)
            if active.get(device, float(name not in was)) < _IDLE_BELOW
        }
        if 0.0 < passed <= self._longest_gap:
            for key, hold in before.items():
                device, holder = key
                goes_on, part = key in holds, active.get(device)
                worked = None if part is None else min(max(part, 0.0), 1.0) * goes_on
                if before is self._holds:  # counters are of this agent alone
                    self._add(holder, hold, passed, worked)
                if hold.grant is None:
                    continue
                use, reading = uses.get(device, UNUSED), read.get(device, _UNREAD)
                did = _measured(hold, use, reading, idle.get(str(key), 0.0))
                whose, did = (hold.holder(self.workloads), hold.grant), did if goes_on else _NOTHING
                self.records.add(whose, did, passed=passed, active=worked, sharing=hold.sharing)
        self._holds, self._active, self._since = holds, active, now
        for (device, holder), hold in holds.items():
            self._add(holder, hold, 0.0, active.get(device)).last = now
        self._accounts = {o: a for o, a in self._accounts.items() if now - a.last <= self._keep}
        there = {(holder.namespace, holder.pod) for holder in self._accounts}
        self.workloads = {pod: name for pod, name in self.workloads.items() if pod in there}
        self.records.idle, self.records.held, self.records.seen = idle, tuple(map(str, holds)), now

    def name_workloads(self, workloads: Mapping[PodKey, str]) -> None:
        """Let pods count for these, also what they did until now; "": for those by their names."""
        self.workloads |= workloads
        self.records.name_workloads(workloads)

    def _add(
        self, holder: Owner, hold: DeviceHold, passed: float, worked: float | None
    ) -> _Account:
        account = self._accounts.setdefault(holder, _Account())
        for kind, part in (("", hold.gpus), ("slice_", hold.slices)):
            held, used = (f"nodeagent_{did}_{kind}seconds_total" for did in ("held", "used"))
            account.totals[held] = account.totals.get(held, 0.0) + passed * part
            if worked is not None and part:  # a whole GPU has no slice-seconds
                account.totals[used] = account.totals.get(used, 0.0) + passed * part * worked
        return account

    @property
    def pods(self) -> set[PodKey]:
        """Those that hold something now."""
        return {(holder.namespace, holder.pod) for _, holder in self._holds}

    def held(self) -> Iterator[tuple[Device, tuple[str, ...]]]:
        """What is held now, by whom: container, namespace, workload, and the kind of device."""
        for (device, _), hold in self._holds.items():
            of, has = hold.holder(self.workloads).named(""), hold.grant.device if hold.grant else ""
            yield device, (of.container, of.namespace, of.name, has)

    def samples(self) -> Iterator[AgentSample]:
        """Time held and used, and for how long devices that are held have done nothing."""
        for holder, account in self._accounts.items():
            for name, seconds in account.totals.items():
                yield AgentSample(name, seconds, _labels(holder))
        for key, hold in self._holds.items():
            if key[0] in self._active:
                idle = self.records.idle.get(str(key), 0.0)
                for owner in hold.owners:
                    labels = (*hold.labels, *_labels(owner))
                    yield AgentSample("nodeagent_held_idle_seconds", idle, labels)


def _labels(owner: Owner) -> tuple[str, ...]:
    return (owner.container, owner.namespace, owner.pod, owner.unit, owner.user)


_UNREAD: Final = Reading()
_NOTHING: Final = Measured()


def _measured(hold: DeviceHold, use: DeviceUse, read: Reading, idle: float) -> Measured:
    """What the device does where the holder has it alone, else what is known of its processes. A
    share is granted to each client, so of several the one that needs most counts.
    """
    is_share = hold.grant is not None and hold.grant.device.startswith("share")
    largest = is_share and len(use.of(hold.owners, "pid")) > 1
    if hold.sharing == 1 and not largest:
        return Measured(read.memory, read.utilization, read.sm_active, read.dram_active, idle)
    memory, busy = (use.of(hold.owners, figure) for figure in ("memory", "multiprocessors"))
    join: Callable[[list[Any]], float] = max if largest else sum
    engine = min(join(busy), 100.0) if busy else None
    return Measured(join(memory) if memory else None, engine, idle=idle)
