"""One step of health: what was known and a new reading in, what is known now and what changed out.

Rules, in this order:

1. A reboot (another boot id) ends everything. A reset of a GPU (told by the agent, or its energy
   counter went back) ends what a reset mends, unless the same reading still shows it.
2. What is told once (XIDs, events) is counted once, whoever tells it, and lasts until it is mended.
3. What is measured is raised and ended by readings; a value that was not read changes nothing.
4. The driver's own recovery action outranks the table of XIDs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from nodeagent.health import xid_findings
from nodeagent.health.checks import device, heat, link, memory
from nodeagent.health.checks.heat import REASONS
from nodeagent.health.checks.observation import GpuCheck, Look, Sign
from nodeagent.health.finding_store import Ended, Ledger
from nodeagent.health.findings import End, Finding, Moment, Place, Severity, in_order
from nodeagent.health.limits import Limits
from nodeagent.health.readings import GpuReading, NodeReading, XidEvent
from nodeagent.health.state import GpuPast, HealthState, Repair, Trail, XidCount
from nodeagent.health.table import BY_CAUSE
from nodeagent.health.xids import RECOVERY_CHANGED, XidTable, default_table

GPU_CHECKS: tuple[GpuCheck, ...] = (
    *device.CHECKS,
    *memory.CHECKS,
    *heat.CHECKS,
    *link.CHECKS,
)

_MOST_REPAIRS = 100


@dataclass(frozen=True, slots=True)
class Rules:
    """What the checks go by: thresholds and the table of XIDs."""

    limits: Limits = field(default_factory=Limits)
    xids: XidTable = field(default_factory=default_table)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The state afterwards, and what is new in it: findings raised, worse or better, and ended.

    `xids` are those that were news, with the UUID of their GPU.
    """

    state: HealthState
    raised: tuple[Finding, ...] = ()
    changed: tuple[Finding, ...] = ()
    ended: tuple[Ended, ...] = ()
    xids: tuple[XidEvent, ...] = ()


def judge(state: HealthState, reading: NodeReading, rules: Rules) -> Judgement:
    """What `reading` makes of `state`."""
    now = _not_back(reading.at, state, reading.boot_id)
    ledger = Ledger(state.findings, state.holds, now, rules.limits)
    if state.boot_id not in ("", reading.boot_id):
        ledger.end_all(End.REBOOT)
        state = replace(state, gpus={}, heard=(), kernel_log_read=-1)
    resets = reading.resets | _turned_back(state.gpus, reading.gpus)
    for uuid in resets:
        ledger.end_reset(uuid)
    gpus = _remembered(state.gpus, reading, now, resets, rules.limits)
    repairs = _repairs(state.repairs, ledger, now, rules.limits)

    state = replace(state, boot_id=reading.boot_id, at=now, gpus=gpus, repairs=repairs)
    state, news = _listen(state, reading, now, rules, ledger)
    for event in reading.events:
        ledger.tell(xid_findings.of_event(event, state.gpus.get(event.gpu, GpuPast()), now))
    judged = _look(state, reading, rules, ledger)
    gpus = {
        uuid: replace(past, judged=past.judged | judged.get(uuid, frozenset()))
        for uuid, past in state.gpus.items()
    }
    _end_the_told(ledger, gpus, reading, rules.limits)
    for cleared in reading.cleared:
        ledger.clear(cleared.gpu, cleared.check, cleared.code)
    state = replace(state, gpus=gpus, findings=in_order(ledger.findings), holds=ledger.holds)
    return Judgement(state, ledger.raised, ledger.changed, tuple(ledger.ended), news)


def _not_back(at: Moment, state: HealthState, boot_id: str) -> Moment:
    """Uptime never goes back within one boot, whoever delivers late."""
    if state.at is None or state.boot_id != boot_id or at.uptime >= state.at.uptime:
        return at
    return replace(at, uptime=state.at.uptime)


def _turned_back(known: Mapping[str, GpuPast], gpus: tuple[GpuReading, ...]) -> frozenset[str]:
    """GPUs whose energy counter is lower than it was: reset, or their driver was loaded anew."""
    return frozenset(
        gpu.uuid
        for gpu in gpus
        if gpu.power.energy is not None
        and gpu.uuid in known
        and (known[gpu.uuid].energy or 0) > gpu.power.energy
    )


def _remembered(
    known: Mapping[str, GpuPast],
    reading: NodeReading,
    now: Moment,
    resets: frozenset[str],
    limits: Limits,
) -> dict[str, GpuPast]:
    pasts = dict(known)
    for uuid in resets & pasts.keys():
        past = pasts[uuid]
        pasts[uuid] = replace(past, trails={}, energy=None, recovery=None, links_up=frozenset())
    for gpu in reading.gpus:
        pasts[gpu.uuid] = remembered(pasts.get(gpu.uuid, GpuPast()), gpu, now.uptime, limits)
    return pasts


def _repairs(
    before: tuple[Repair, ...], ledger: Ledger, now: Moment, limits: Limits
) -> tuple[Repair, ...]:
    """Those of the last days, and those that just ended an XID."""
    new = [
        Repair(e.finding.place.gpu, e.finding.code, now.wall)
        for e in ledger.ended
        if e.mended and e.finding.check == "xid"
    ]
    young = [r for r in before if r.wall >= now.wall - limits.repairs_memory]
    return (*young, *new)[-_MOST_REPAIRS:]


# --- what is told ---------------------------------------------------------------------------------


def _listen(
    state: HealthState, reading: NodeReading, now: Moment, rules: Rules, ledger: Ledger
) -> tuple[HealthState, tuple[XidEvent, ...]]:
    """Count each XID once, and make findings of them."""
    heard, read = state.heard, state.kernel_log_read
    counts = {(c.gpu, c.xid, c.instance): c for c in state.xids}
    gpus = dict(state.gpus)
    news = []
    for given in sorted(reading.xids, key=lambda e: e.at):
        if 0 <= given.sequence <= state.kernel_log_read:
            continue
        read = max(read, given.sequence)
        event = xid_findings.named(given, gpus.items())
        heard, is_news = xid_findings.hear(heard, event, rules.limits.same_event)
        past = gpus.get(event.gpu, GpuPast())
        if event.gpu in gpus and event.xid == RECOVERY_CHANGED:
            gpus[event.gpu] = _announced(past, event)
        row = rules.xids.row(event.xid)
        finding = xid_findings.of_xid(event, row, past, now)
        if not is_news:
            if finding is not None:
                ledger.refine(finding)
            continue
        news.append(event)
        key = (event.gpu, event.xid, event.instance)
        count = counts[key].count if key in counts else 0
        counts[key] = XidCount(*key, count + 1, xid_findings.moment(event.at, now))
        if finding is not None:
            ledger.tell(xid_findings.escalated(finding, state.repairs, rules.limits))
    state = replace(
        state, heard=heard, xids=tuple(counts.values()), kernel_log_read=read, gpus=gpus
    )
    return state, tuple(news)


def _announced(past: GpuPast, event: XidEvent) -> GpuPast:
    """With the recovery action that the kernel log tells, unless it was asked since."""
    if event.recovery is None or (past.recovery is not None and past.recovery[1] >= event.at):
        return past
    return replace(past, recovery=(event.recovery, event.at))


def _end_the_told(
    ledger: Ledger, gpus: Mapping[str, GpuPast], reading: NodeReading, limits: Limits
) -> None:
    """Correct by the driver's word, and end, what no reading ends."""
    read = {gpu.uuid: gpu for gpu in reading.gpus}
    for finding in tuple(ledger.findings):
        past = gpus.get(finding.place.gpu, GpuPast())
        better = xid_findings.corrected(finding, past, limits)
        if finding.place.instance is not None and finding.place.placement is None:
            placement = past.placements.get(finding.place.instance)
            better = replace(better, place=replace(better.place, placement=placement))
        ledger.replace(better)
        end = ending_of(better, read.get(better.place.gpu), ledger.now, limits)
        if end is not None:
            ledger.end(better.key, end)


# --- what is measured -----------------------------------------------------------------------------


def _look(
    state: HealthState, reading: NodeReading, rules: Rules, ledger: Ledger
) -> dict[str, frozenset[str]]:
    """Run every check; by GPU, the checks for which anything was read."""
    judged: dict[str, set[str]] = {}

    def measure(sign: Sign, place: Place) -> None:
        ledger.measure(sign, place)
        if sign.present is not None:
            judged.setdefault(place.gpu, set()).add(BY_CAUSE[sign.cause].check.value)

    for gpu in reading.gpus:
        past = state.gpus[gpu.uuid]
        look = Look(gpu, past, rules.limits, ledger.now.uptime, ledger.raised_on(gpu.uuid))
        for sign in _signs(look):
            placement = past.placements.get(sign.instance) if sign.instance is not None else None
            measure(sign, Place(gpu.uuid, sign.instance, None, placement))
        if gpu.instances is not None:
            ledger.end_instances(gpu.uuid, frozenset(i.instance for i in gpu.instances))
    for place, sign in device.node_signs(state, reading, rules.limits):
        measure(sign, place)
    for event in reading.events:
        judged.setdefault(event.gpu, set()).add(BY_CAUSE[xid_findings.cause_of(event)].check.value)
    for xid in reading.xids:
        judged.setdefault(xid_findings.named(xid, state.gpus.items()).gpu, set()).add("xid")
    return {uuid: frozenset(checks) for uuid, checks in judged.items()}


def _signs(look: Look) -> Iterator[Sign]:
    for check in GPU_CHECKS:
        yield from check(look)


# --- what one reading of a GPU adds to its past ---


def remembered(past: GpuPast, gpu: GpuReading, uptime: float, limits: Limits) -> GpuPast:
    """The past with this reading in it."""
    trails = dict(past.trails)
    for name, value, window in _counters(gpu, limits):
        if value is not None:
            trails[name] = trails.get(name, Trail()).grown(uptime, value, window)
    if gpu.throttling.reasons is not None:
        for name, bit in REASONS.items():
            active = bool(gpu.throttling.reasons & bit)
            trail = trails.get(name, Trail())
            trails[name] = trail.with_time(uptime, active, limits.throttling_window)
    up = frozenset() if gpu.mig else past.links_up
    recovery = gpu.recovery_action
    return replace(
        past,
        index=gpu.index,
        pci_bus_id=gpu.pci_bus_id or past.pci_bus_id,
        trails=trails,
        energy=past.energy if gpu.power.energy is None else gpu.power.energy,
        recovery=past.recovery if recovery is None else (recovery, uptime),
        links_up=up | {link.link for link in gpu.nvlinks if link.up},
        placements=past.placements
        if gpu.instances is None
        else {i.instance: i.placement for i in gpu.instances if i.placement is not None},
    )


def _counters(gpu: GpuReading, limits: Limits) -> Iterator[tuple[str, int | None, float]]:
    """Every counter whose growth matters: name, value, window in seconds."""
    read, window = gpu.throttling, limits.throttling_window
    yield "power", read.power, window
    yield "thermal", read.thermal, window
    yield "softwareThermal", read.software_thermal, window
    yield "hardwareThermal", read.hardware_thermal, window
    yield "powerBrake", read.power_brake, window
    yield "replays", gpu.pcie.replays, limits.replay_window
    for nvlink in gpu.nvlinks:
        errors = [count for count in (nvlink.replays, nvlink.recoveries) if count is not None]
        total = sum(errors) if errors else None
        yield f"link{nvlink.link}", total, limits.nvlink_window
        yield f"crc{nvlink.link}", nvlink.crc_errors, limits.crc_window


# --- what ends a finding that no reading ends ---


def ending_of(finding: Finding, gpu: GpuReading | None, now: Moment, limits: Limits) -> End | None:
    """Why the finding is over now, if it is. `gpu` is the new reading of its GPU, if any."""
    ends = BY_CAUSE[finding.cause].ends
    if End.GONE in ends:  # a reading ends it
        return None
    minor = finding.severity is Severity.HEALTHY
    if (minor or End.INSTANCE_GONE in ends) and _instance_gone(finding, gpu):
        return End.INSTANCE_GONE
    if minor or (End.LAPSED in ends and finding.severity is not Severity.UNHEALTHY):
        patience = limits.application_lapse if minor else limits.told_lapse
        if now.uptime - finding.last.uptime >= patience:
            return End.LAPSED
    return None


def _instance_gone(finding: Finding, gpu: GpuReading | None) -> bool:
    """Its GPU instance is not there any more, or another one has its id."""
    place = finding.place
    if place.instance is None or gpu is None or gpu.instances is None:
        return False
    there = next((i for i in gpu.instances if i.instance == place.instance), None)
    if there is None:
        return True
    return None not in (place.placement, there.placement) and place.placement != there.placement
