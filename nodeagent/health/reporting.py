"""Findings as a Node condition, as sentences of events and as metric samples."""

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from nodeagent.health.evaluate import Evaluation
from nodeagent.health.fencing import words
from nodeagent.health.findings import Action, End, Finding, Severity, in_order, rank, worst
from nodeagent.health.state import GpuHistory, HealthState
from nodeagent.health.table import BY_CAUSE, GONE, words_of
from nodeagent.health.xid_findings import xid_evidence
from nodeagent.health.xids import XidTable
from nodeagent.structs import Struct

_MAX_FINDINGS = 8


def of_gpu(state: HealthState, gpu: str) -> tuple[Finding, ...]:
    """The findings of one GPU; of the node itself for ""."""
    return tuple(f for f in state.findings if f.place.gpu == gpu)


# --- the Node's condition -------------------------------------------------------------------------


class Condition(Struct, frozen=True):
    """A condition of the Node. `reason` is one word in CamelCase, for programs; `message` is for
    people and has no figures, so that it changes with causes only.
    """

    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str


def condition(state: HealthState) -> Condition:
    """True while nothing is unhealthy or unknown; what is degraded is named beside it."""
    if state.at is None:
        return Condition("Unknown", "NotReadYet", "health was not read yet")
    bad = [f for f in state.findings if f.severity is not Severity.HEALTHY]
    status = worst(f.severity for f in bad)
    worst_ones = [f for f in by_urgency(bad, state.gpus) if f.severity is status]
    match status:
        case Severity.HEALTHY:
            return Condition("True", "Healthy", "all checks are good")
        case Severity.DEGRADED:
            return Condition("True", "Degraded", _message(state.gpus, worst_ones))
        case Severity.UNKNOWN:
            return Condition("Unknown", _reason(worst_ones), _message(state.gpus, worst_ones))
        case Severity.UNHEALTHY:
            return Condition("False", _reason(worst_ones), _message(state.gpus, worst_ones))


_ENDS_WORK = (Action.REBOOT, Action.RESET_GPU)  # for all users of the node, or of the GPU


def by_urgency(findings: Iterable[Finding], gpus: Mapping[str, GpuHistory]) -> tuple[Finding, ...]:
    """The worst first: GPUs that are gone, then what needs a reboot, a reset, anything else."""

    def order(finding: Finding) -> tuple[int, int, int, int]:
        known = gpus.get(finding.place.gpu)
        return (
            -rank(finding.severity),
            GONE.index(finding.cause) if finding.cause in GONE else len(GONE),
            _ENDS_WORK.index(finding.action) if finding.action in _ENDS_WORK else len(_ENDS_WORK),
            known.index if known else -1,
        )

    return tuple(sorted(in_order(findings), key=order))


def _reason(findings: list[Finding]) -> str:
    causes = {f.cause for f in findings}
    if len(causes) > 1:
        return "SeveralCauses"
    return BY_CAUSE[causes.pop()].reason


def _message(gpus: Mapping[str, GpuHistory], findings: list[Finding]) -> str:
    shown = list(dict.fromkeys(f"{sentence(f, gpus)} ({f.action.value})" for f in findings))
    more = len(shown) - _MAX_FINDINGS
    return "; ".join(shown[:_MAX_FINDINGS]) + (f"; and {more} more" if more > 0 else "")


def sentence(finding: Finding, gpus: Mapping[str, GpuHistory]) -> str:
    """`GPU 0 has uncorrected memory errors in slices 4-7`."""
    return _statement(finding, gpus, words(finding))


def _statement(finding: Finding, gpus: Mapping[str, GpuHistory], predicate: str) -> str:
    place = finding.place
    if not place.gpu:
        return f"{BY_CAUSE[finding.cause].subject} {predicate}"
    subject = f"GPU {gpus[place.gpu].index}" if place.gpu in gpus else place.gpu
    if place.placement is not None:
        first, size = place.placement.start, place.placement.size
        where = f" in slice {first}" if size == 1 else f" in slices {first}-{first + size - 1}"
    else:
        where = "" if place.instance is None else f" in GPU instance {place.instance}"
    return f"{subject} {predicate}{where}"


# --- events ---------------------------------------------------------------------------------------


class HealthEvent(Struct, frozen=True):
    """Something to report to people once; `reason` is one word for a Kubernetes Event."""

    reason: str
    message: str
    gpu: str = ""
    pods: tuple[str, ...] = ()  # namespace/name of whom it hit


def events(
    evaluation: Evaluation, xids: XidTable, advice: Callable[[Finding, int | None], str]
) -> tuple[HealthEvent, ...]:
    """The events of an evaluation: findings begun, changed and ended, XIDs without a finding.

    `advice` says what to do about a finding of the GPU with this index.
    """
    gpus = evaluation.state.gpus
    found = []
    for finding in (*evaluation.raised, *evaluation.changed):
        known = gpus.get(finding.place.gpu)
        found.append(_reported(finding, gpus, advice(finding, known.index if known else None)))
    for ended in evaluation.ended:
        verb = "forgotten" if ended.end is End.LAPSED else "over"
        message = f"{sentence(ended.finding, gpus)}: {verb}, {ended.end.value}"
        found.append(HealthEvent("GpuRecovered", message, ended.finding.place.gpu))
    with_finding = {(f.place.gpu, f.code) for f in evaluation.state.findings if f.check == "xid"}
    with_finding |= {(e.finding.place.gpu, e.finding.code) for e in evaluation.ended}  # told above
    for event in evaluation.xids:
        if (event.gpu, event.xid) not in with_finding:
            index = f"GPU {gpus[event.gpu].index}" if event.gpu in gpus else "node"
            evidence = xid_evidence(event, xids.row(event.xid))
            found.append(HealthEvent("Xid", f"{index}: {evidence}", event.gpu))
    return tuple(found)


_REASONS = {
    Severity.HEALTHY: "GpuNotice",
    Severity.DEGRADED: "GpuDegraded",
    Severity.UNKNOWN: "GpuUnknown",
    Severity.UNHEALTHY: "GpuUnhealthy",
}


def _reported(finding: Finding, gpus: Mapping[str, GpuHistory], advice: str) -> HealthEvent:
    # Not `sentence`, whose words name the XID: the evidence does, too.
    said = _statement(finding, gpus, words_of(finding))
    return HealthEvent(
        reason=_REASONS[finding.severity],
        message=f"{said}: {finding.evidence}. {advice}".rstrip(),
        gpu=finding.place.gpu,
        pods=tuple(map(str, finding.pods)),
    )
