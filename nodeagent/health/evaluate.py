"""One step of health: what was known and a new reading in, what is known now and what changed out.

Rules, in this order:

1. A reboot (another boot id) ends everything. A reset of a GPU (by the agent, or its energy
   counter went back) ends what a reset mends, unless the same reading still shows it.
2. An event (an XID or another) is counted once, though two sources report it, and lasts until it is
   repaired.
3. What is measured is raised and ended by readings; a value that was not read changes nothing.
4. The driver's own recovery action outranks the table of XIDs.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Final

from nodeagent.health import limits, xid_findings
from nodeagent.health.checks import device, heat, link, memory, neighbours
from nodeagent.health.checks.heat import REASONS
from nodeagent.health.checks.observation import GpuCheck, GpuView, Observation
from nodeagent.health.fencing import with_pods
from nodeagent.health.finding_store import EndedFinding, FindingStore
from nodeagent.health.findings import End, Finding, Location, Moment, Severity, in_order
from nodeagent.health.kernel_log import pci_address
from nodeagent.health.readings import GpuReading, NodeReading, XidEvent
from nodeagent.health.state import GpuHistory, HealthState, Trail, XidCount, XidRepair
from nodeagent.health.table import BY_CAUSE, ROWS, Check
from nodeagent.health.xids import RECOVERY_CHANGED, XidTable
from nodeagent.plan.observed import NVSWITCH, ObservedNode
from nodeagent.structs import Struct, replace

GPU_CHECKS: tuple[GpuCheck, ...] = (
    *device.CHECKS,
    *memory.CHECKS,
    *heat.CHECKS,
    *link.CHECKS,
    *neighbours.CHECKS,
)

_MAX_REPAIRS = 100
_NOTHING_SEEN: Final = ObservedNode()


class Evaluation(Struct, frozen=True):
    """The state afterwards, and what is new in it: findings raised, worse or better, and ended.

    `xids` are those that were news, with the UUID of their GPU.
    """

    state: HealthState
    raised: tuple[Finding, ...] = ()
    changed: tuple[Finding, ...] = ()
    ended: tuple[EndedFinding, ...] = ()
    xids: tuple[XidEvent, ...] = ()


def evaluate(
    state: HealthState, reading: NodeReading, xids: XidTable, observed: ObservedNode = _NOTHING_SEEN
) -> Evaluation:
    """Evaluate `reading` on top of `state`; `observed` has who uses what a finding hits."""
    now = reading.at
    # Uptime never goes back in a boot.
    if state.at is not None and state.boot_id == reading.boot_id:
        now = now._replace(uptime=max(now.uptime, state.at.uptime))
    rebooted = state.boot_id not in ("", reading.boot_id)
    state = replace(state, xids=_of_what_is_there(state, reading, rebooted=rebooted))
    if rebooted:
        state = replace(state, gpus={}, holds=(), recent_xids=(), kernel_log_read=-1)
    replaced = _replaced(state.gpus, reading)
    state = replace(state, gpus={u: g for u, g in state.gpus.items() if u not in replaced})
    store = FindingStore(state, now)
    resets = reading.resets | _turned_back(state.gpus, reading.gpus)

    def repaired(finding: Finding) -> End | None:
        if rebooted:
            return End.REBOOT
        if finding.place.gpu in replaced:
            return End.REPLACED
        mended = finding.place.gpu in resets and End.RESET in BY_CAUSE[finding.cause].ends
        return End.RESET if mended else None

    store.end(repaired)
    gpus = _histories(state.gpus, reading, now, resets)
    repairs = _repairs(state.repairs, store, now)

    state = replace(state, boot_id=reading.boot_id, at=now, gpus=gpus, repairs=repairs)
    state, news = _record_xids(state, reading, now, xids, store)
    for event in reading.events:
        past = state.gpus.get(event.gpu, GpuHistory())
        located = xid_findings.without_false_instance(event, past)
        store.record(xid_findings.event_finding(located, past, now))
    gpus = _measure(state, reading, store, observed)
    _correct(store, gpus)
    store.end(lambda finding: end_of(finding, reading, now))
    for finding in store.findings:
        store.replace(with_pods(finding, observed, now.uptime))
    state = replace(state, gpus=gpus, findings=in_order(store.findings), holds=store.holds)
    return Evaluation(state, store.raised, store.changed, tuple(store.ended), news)


def _replaced(known: Mapping[str, GpuHistory], reading: NodeReading) -> frozenset[str]:
    """GPUs that NVML lists no more, while it lists another one at their PCI address."""
    if reading.known is None:
        return frozenset()
    taken = {pci_address(gpu.pci_bus_id) for gpu in reading.gpus} - {None}
    gone = ((uuid, past) for uuid, past in known.items() if uuid not in reading.known)
    return frozenset(uuid for uuid, past in gone if pci_address(past.pci_bus_id) in taken)


def _turned_back(known: Mapping[str, GpuHistory], gpus: tuple[GpuReading, ...]) -> frozenset[str]:
    """GPUs whose energy counter is lower than it was: reset, or their driver was loaded anew."""
    return frozenset(
        gpu.uuid
        for gpu in gpus
        if gpu.energy is not None
        and gpu.uuid in known
        and (known[gpu.uuid].energy or 0) > gpu.energy
    )


def _histories(
    known: Mapping[str, GpuHistory], reading: NodeReading, now: Moment, resets: frozenset[str]
) -> dict[str, GpuHistory]:
    histories = dict(known)
    for uuid in resets & histories.keys():
        past = histories[uuid]
        histories[uuid] = replace(past, trails={}, energy=None, recovery=None, links_up=frozenset())
    for gpu in reading.gpus:
        histories[gpu.uuid] = extended(histories.get(gpu.uuid, GpuHistory()), gpu, now.uptime)
    return histories


def _repairs(
    before: tuple[XidRepair, ...], store: FindingStore, now: Moment
) -> tuple[XidRepair, ...]:
    """Repairs of the last days, and those that just ended an XID."""
    new = [
        XidRepair(e.finding.place.gpu, e.finding.code, now.wall)
        for e in store.ended
        if e.mended and e.finding.check == "xid"
    ]
    # A clock that was ahead and is set to right must not keep a repair for so much longer; one that
    # is not set yet, as early after a boot, must not make it old.
    latest = now.wall if now.wall >= limits.CLOCK_SET else math.inf
    past = (replace(r, wall=min(r.wall, latest)) for r in before)
    young = [r for r in past if r.wall >= now.wall - limits.REPAIRS_MEMORY]
    return (*young, *new)[-_MAX_REPAIRS:]


# --- events ---------------------------------------------------------------------------------------


def _record_xids(
    state: HealthState, reading: NodeReading, now: Moment, xids: XidTable, store: FindingStore
) -> tuple[HealthState, tuple[XidEvent, ...]]:
    """Count each XID once, and make findings of them."""
    recent, read = state.recent_xids, state.kernel_log_read
    counts = {(c.gpu, c.xid, c.instance): c for c in state.xids}
    gpus = dict(state.gpus)
    news = []
    for given in sorted(reading.xids, key=lambda e: e.at):
        if 0 <= given.sequence <= state.kernel_log_read:
            continue
        read = max(read, given.sequence)
        event = xid_findings.with_uuid(given, gpus.items())
        past = gpus.get(event.gpu, GpuHistory())
        event = xid_findings.without_false_instance(event, past)
        recent, is_news = xid_findings.deduplicated(recent, event)
        if event.gpu in gpus and event.xid == RECOVERY_CHANGED:
            gpus[event.gpu] = _announced(past, event)
        row = xids.row(event.xid)
        finding = xid_findings.xid_finding(event, row, past, now)
        if not is_news:
            if finding is not None:
                store.refine(finding)
            continue
        news.append(event)
        key, at = (event.gpu, event.xid, event.instance), xid_findings.moment(event.at, now)
        before = counts.get(key, XidCount(*key, 0, at))
        counts[key] = replace(before, count=before.count + 1, last=max(before.last, at))
        if finding is not None:
            store.record(xid_findings.escalate(finding, state.repairs))
    state = replace(
        state, recent_xids=recent, xids=tuple(counts.values()), kernel_log_read=read, gpus=gpus
    )
    return state, tuple(news)


def _of_what_is_there(
    state: HealthState, reading: NodeReading, *, rebooted: bool
) -> tuple[XidCount, ...]:
    """The counts so far; those of an earlier boot, or of an instance that is gone, are no news."""
    gpus = {gpu.uuid: gpu for gpu in reading.gpus}

    def is_over(count: XidCount) -> bool:
        past = state.gpus.get(count.gpu, GpuHistory())
        placement = None if count.instance is None else past.placements.get(count.instance)
        place = Location(count.gpu, count.instance, None, placement)
        return rebooted or _instance_gone(place, gpus.get(count.gpu), by_placement=True)

    return tuple(
        replace(count, last=count.last._replace(uptime=0.0)) if is_over(count) else count
        for count in state.xids
    )


def _announced(past: GpuHistory, event: XidEvent) -> GpuHistory:
    """Add the recovery action that the kernel log reports, unless it was asked since."""
    if event.recovery is None or (past.recovery is not None and past.recovery[1] >= event.at):
        return past
    return replace(past, recovery=(event.recovery, event.at))


def _correct(store: FindingStore, gpus: Mapping[str, GpuHistory]) -> None:
    """Correct findings by the driver's word, and by where their instances lie."""
    for finding in store.findings:
        past = gpus.get(finding.place.gpu, GpuHistory())
        better, place = xid_findings.with_driver_action(finding, past), finding.place
        if place.instance is not None and place.placement is None:
            place = replace(place, placement=past.placements.get(place.instance))
        store.replace(replace(better, place=place))


# --- what is measured -----------------------------------------------------------------------------


# What a complete reading of a GPU has no observation of, or one of a GPU that does not answer,
# cannot be read there at present.
_READ = frozenset(row.check.value for row in ROWS if End.GONE in row.ends) - {Check.GPU_COUNT}


def _measure(
    state: HealthState, reading: NodeReading, store: FindingStore, node: ObservedNode
) -> dict[str, GpuHistory]:
    """Run every check; the GPUs with the checks of which something was read, less those that
    cannot be read or judged at present.
    """
    checked: defaultdict[str, set[str]] = defaultdict(set)
    observed: defaultdict[str, set[str]] = defaultdict(set)
    unsure: defaultdict[str, set[str]] = defaultdict(set)
    for place, observation in _observations(state, reading, store, node):
        store.measure(observation, place)
        check = BY_CAUSE[observation.cause].check.value
        observed[place.gpu].add(check)
        if observation.unsure:
            unsure[place.gpu].add(check)
        if observation.present is not None:
            checked[place.gpu].add(check)
    for event in reading.events:
        checked[event.gpu].add(BY_CAUSE[xid_findings.cause_of(event)].check.value)
    for xid in reading.xids:
        checked[xid_findings.with_uuid(xid, state.gpus.items()).gpu].add(Check.XID.value)
    complete = {gpu.uuid for gpu in reading.gpus if gpu.complete or gpu.silent}
    unread = {uuid: _READ - observed[uuid] for uuid in complete}
    return {
        uuid: replace(
            past, checked=(past.checked - unread.get(uuid, set()) | checked[uuid]) - unsure[uuid]
        )
        for uuid, past in state.gpus.items()
    }


def _observations(
    state: HealthState, reading: NodeReading, store: FindingStore, node: ObservedNode
) -> Iterator[tuple[Location, Observation]]:
    for gpu in reading.gpus:
        past, seen = state.gpus[gpu.uuid], node.gpu(gpu.uuid)
        like = [g for g in node.gpus if seen and g is not seen and g.name == seen.name]
        view = GpuView(
            gpu,
            past,
            store.now.uptime,
            store.raised_on(gpu.uuid),
            tuple(state.gpus[g.uuid] for g in like if g.uuid in state.gpus),
            any(peer == NVSWITCH for g in like if g.nvlink for peer, _ in g.nvlink.peers),
        )
        checks = device.OF_SILENT if gpu.silent else GPU_CHECKS
        for observation in chain.from_iterable(check(view) for check in checks):
            instance = observation.instance
            placement = None if instance is None else past.placements.get(instance)
            yield Location(gpu.uuid, instance, None, placement), observation
    yield from device.node_observations(state, reading)


# --- what one reading of a GPU adds to its past ---


def extended(past: GpuHistory, gpu: GpuReading, uptime: float) -> GpuHistory:
    """The past with this reading in it."""
    trails = dict(past.trails)
    for name, value, window in _counters(gpu):
        if value is not None:
            trails[name] = trails.get(name, Trail()).grown(uptime, value, window)
    if gpu.clock_reasons is not None:
        for name, bit in REASONS.items():
            active = bool(gpu.clock_reasons & bit)
            trail = trails.get(name, Trail())
            trails[name] = trail.with_time(uptime, active, limits.THROTTLING_WINDOW)
    up = frozenset() if gpu.mig else past.links_up
    recovery = gpu.recovery_action
    return replace(
        past,
        index=gpu.index,
        pci_bus_id=gpu.pci_bus_id or past.pci_bus_id,
        mig=past.mig if gpu.mig is None else gpu.mig,
        trails=trails,
        energy=past.energy if gpu.energy is None else gpu.energy,
        recovery=past.recovery if recovery is None else (recovery, uptime),
        links_up=up | {link.link for link in gpu.nvlinks if link.up},
        traits={**past.traits, **neighbours.traits_of(gpu)},
        placements=past.placements
        if gpu.instances is None
        else {i.instance: i.placement for i in gpu.instances if i.placement is not None},
    )


def _counters(gpu: GpuReading) -> Iterator[tuple[str, int | None, float]]:
    window = limits.THROTTLING_WINDOW
    yield "power", gpu.held_by_power, window
    yield "thermal", gpu.held_by_heat, window
    yield "softwareThermal", gpu.held_by_software_heat, window
    yield "hardwareThermal", gpu.held_by_hardware_heat, window
    yield "powerBrake", gpu.held_by_power_brake, window
    yield "replays", gpu.pcie_replays, limits.REPLAY_WINDOW
    for nvlink in gpu.nvlinks:
        errors = [count for count in (nvlink.replays, nvlink.recoveries) if count is not None]
        total = sum(errors) if errors else None
        yield f"link{nvlink.link}", total, limits.NVLINK_WINDOW
        yield f"crc{nvlink.link}", nvlink.crc_errors, limits.CRC_WINDOW


# --- what ends a finding besides a reading without its cause ---


def end_of(finding: Finding, reading: NodeReading, now: Moment) -> End | None:
    """Why the finding is over now, if it is."""
    ends, place = BY_CAUSE[finding.cause].ends, finding.place
    gpu = next((gpu for gpu in reading.gpus if gpu.uuid == place.gpu), None)
    measured = End.GONE in ends  # while its instance is there, a reading ends it
    minor = finding.severity is Severity.HEALTHY and not measured
    of_instance = measured or minor or End.INSTANCE_GONE in ends
    if of_instance and _instance_gone(place, gpu, by_placement=not measured):
        return End.INSTANCE_GONE
    if minor or (End.LAPSED in ends and finding.severity is not Severity.UNHEALTHY):
        patience = limits.APPLICATION_LAPSE if minor else limits.EVENT_LAPSE
        if now.uptime - finding.last.uptime >= patience:
            return End.LAPSED
    return End.CLEARED if finding.key in reading.cleared else None


def _instance_gone(place: Location, gpu: GpuReading | None, *, by_placement: bool) -> bool:
    """Whether the GPU instance of a place is gone, or another one has its id."""
    if place.instance is None or gpu is None or gpu.instances is None:
        return False
    existing = next((i for i in gpu.instances if i.instance == place.instance), None)
    if existing is None:
        return True
    known = None not in (place.placement, existing.placement)
    return by_placement and known and place.placement != existing.placement
