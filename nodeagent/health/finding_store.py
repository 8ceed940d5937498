"""The findings during an evaluation: what is raised, what changes, what ends and why."""

from collections.abc import Callable

from nodeagent.health.checks.observation import Observation
from nodeagent.health.findings import Action, End, Finding, Key, Location, Moment, Severity
from nodeagent.health.state import HealthState, Hold
from nodeagent.health.table import BY_CAUSE, new_finding
from nodeagent.health.xid_findings import merge
from nodeagent.structs import Struct, replace


class EndedFinding(Struct, frozen=True):
    """A finding that is over, and what ended it."""

    finding: Finding
    end: End

    @property
    def mended(self) -> bool:
        repairs = (Action.RESET_GPU, Action.REBOOT, Action.INSPECT_HARDWARE)
        return (
            self.end in (End.RESET, End.REBOOT)
            and self.finding.severity is Severity.UNHEALTHY
            and self.finding.action in repairs
        )


class FindingStore:
    """Findings by key at the moment `now`."""

    def __init__(self, state: HealthState, now: Moment) -> None:
        self.now = now
        self.ended: list[EndedFinding] = []
        self._before = {f.key: f for f in state.findings}
        self._findings = dict(self._before)
        self._holds = {hold.key: hold for hold in state.holds}

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(self._findings.values())

    @property
    def holds(self) -> tuple[Hold, ...]:
        return tuple(self._holds.values())

    @property
    def raised(self) -> tuple[Finding, ...]:
        """Findings that did not exist before, or ended meanwhile."""
        return tuple(f for f in self.findings if self._is_new(f.key))

    @property
    def changed(self) -> tuple[Finding, ...]:
        """Findings that are worse or better than before, ask for other things, or concern more."""
        before = ((f, self._before[f.key]) for f in self.findings if not self._is_new(f.key))
        return tuple(
            f
            for f, b in before
            if (f.severity, f.action) != (b.severity, b.action) or not set(f.parts) <= set(b.parts)
        )

    def _is_new(self, key: Key) -> bool:
        return key not in self._before or any(e.finding.key == key for e in self.ended)

    def raised_on(self, gpu: str) -> frozenset[str]:
        return frozenset(f.cause for f in self.findings if f.place.gpu == gpu)

    def replace(self, finding: Finding) -> None:
        self._findings[finding.key] = finding

    def end(self, why: Callable[[Finding], End | None]) -> None:
        for finding in self.findings:
            end = why(finding)
            if end is not None:
                self.ended.append(EndedFinding(self._findings.pop(finding.key), end))
                self._holds.pop(finding.key, None)

    # --- events -------------------------------------------------------------------------------

    def record(self, finding: Finding) -> None:
        """An event: one more of a kind that is known, or the first."""
        existing = self._findings.get(finding.key)
        self._findings[finding.key] = finding if existing is None else merge(existing, finding)

    def refine(self, finding: Finding) -> None:
        """The other source's report of a known event, the newest that it can be of: it may know
        more of it.

        One source may name a place that the other does not; then the narrower place counts, and
        what was found there before goes on.
        """
        same = (f for f in self.findings if _same_event(f, finding))
        existing = max(same, key=lambda f: f.last, default=None)
        if existing is None:
            return
        place = max(existing.place, finding.place, key=lambda p: p.ids)
        longer = max(existing.evidence, finding.evidence, key=len)
        worse = merge(existing, finding)
        self._findings.pop(existing.key)
        merged = replace(
            existing,
            place=place,
            evidence=longer,
            severity=worse.severity,
            action=worse.action if worse.severity is not existing.severity else existing.action,
            pid=existing.pid or finding.pid,
            # The process is known now, and it alone was hit.
            pods=() if finding.pid and existing.count == 1 else existing.pods,
        )
        self.record(merged)

    # --- what was measured --------------------------------------------------------------------

    def measure(self, observation: Observation, place: Location) -> None:
        """Raise, keep or end what `observation` says of `place`, as slowly as its damping asks."""
        if observation.present is None:
            return
        key = (observation.cause, -1, *place.ids)
        holds = BY_CAUSE[observation.cause].holds
        after_raise, after_end = holds
        lasted = self._lasted(key, present=observation.present) if any(holds) else 0.0
        if not observation.present:
            if lasted >= after_end and key in self._findings:
                self.ended.append(EndedFinding(self._findings.pop(key), End.GONE))
            return
        mended = next((e for e in self.ended if e.finding.key == key and e.end is End.RESET), None)
        if mended is not None:  # the reset did not help
            self.ended.remove(mended)
            self._findings[key] = mended.finding
        existing = self._findings.get(key)
        if existing is not None or lasted >= after_raise:
            self._findings[key] = self._measured(observation, place, existing)

    def _lasted(self, key: Key, *, present: bool) -> float:
        hold = self._holds.get(key)
        if hold is None or hold.present is not present:
            hold = Hold(key, present, self.now.uptime)
        self._holds[key] = hold
        return self.now.uptime - hold.since

    def _measured(
        self, observation: Observation, place: Location, existing: Finding | None
    ) -> Finding:
        found = new_finding(observation.cause, place, observation.evidence, self.now)
        return replace(
            found,
            parts=observation.parts,
            severity=observation.severity or found.severity,
            action=observation.action or found.action,
            since=existing.since if existing else self.now,
            pods=existing.pods if existing else (),
        )


def _same_event(existing: Finding, other: Finding) -> bool:
    place, second = existing.place, other.place
    return (
        (existing.cause, existing.code, place.gpu) == (other.cause, other.code, second.gpu)
        and (None in (place.instance, second.instance) or place.instance == second.instance)
        and (None in (place.compute, second.compute) or place.compute == second.compute)
    )
