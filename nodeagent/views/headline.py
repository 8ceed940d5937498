"""What needs a hand, the worst first, each in one sentence with its remedy; the worst is the node's
headline. Pure.

The order in which `_errors`, `_warnings` and `_notes` yield is the whole rule: the first counts.
Texts hold no ages and no counts that grow, because the Node is written whenever they change.
"""

import re
from collections.abc import Collection, Iterator
from itertools import chain

from nodeagent.health.findings import Action, Finding
from nodeagent.health.findings import Severity as Health
from nodeagent.health.reporting import by_urgency, sentence
from nodeagent.health.state import HealthState
from nodeagent.health.table import BY_CAUSE, GONE, ROWS, Check
from nodeagent.plan.observed import Access, Gpu, ObservedNode
from nodeagent.plan.problems import Code, Problem
from nodeagent.views.claims import Claim
from nodeagent.views.devices import devices_by_uuid, gpu_of
from nodeagent.views.health_remedies import HealthRemedies
from nodeagent.views.mps import daemon_words, without_lost_gpus
from nodeagent.views.node_state import (
    FOR_CLAIMS,
    SHOWN_ONLY,
    WAITING,
    NodeState,
    Phase,
    blocking_codes,
)
from nodeagent.views.shapes import Headline, Trouble
from nodeagent.views.shapes import HeadlineSeverity as Severity

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO
_PASSING = WAITING | SHOWN_ONLY
# With the codes of the plan's problems, which are the same words.
_GONE = {BY_CAUSE[cause].reason for cause in (*GONE, "gpuResetRequired")}
_SILENT = _GONE | {row.reason for row in ROWS if row.check is Check.GPU_ACCESS}


def headline(state: NodeState) -> Headline:
    """The worst thing."""
    remedies = HealthRemedies(state.node, state.runs_as, state.observed)
    ranked = chain(_errors(state, remedies), _warnings(state, remedies), _notes(state, remedies))
    worst = next(ranked, None) or _all_well(state)
    return Headline(worst.severity, worst.text, worst.remedy, worst.gpu, worst.code)


def troubles(state: NodeState, remedies: HealthRemedies) -> list[Trouble]:
    """All that needs a hand, each said once: that a GPU is gone by who knows most of it. The first
    is the headline, if that warns of anything; the last ones never are: they leave the node as it
    should be.
    """
    found: list[Trouble] = []
    ranked = chain(_errors(state, remedies), _warnings(state, remedies), _beside(state))
    for trouble in ranked:
        said = trouble.text[1:].rstrip(".")  # within another sentence its first letter is small
        if not any(
            other.gpu == trouble.gpu
            and (
                said in other.text
                or trouble.text.startswith(other.text.rstrip("."))
                or same(trouble, other)
            )
            for other in found
        ):
            found.append(trouble)
    return found


def same(one: Headline | Problem, other: Headline | Problem) -> bool:
    """Whether both say, each in its words, that the same GPU does not answer."""
    return bool(one.gpu) and one.gpu == other.gpu and {one.code, other.code} <= _SILENT


# --- the ranking ----------------------------------------------------------------------------------


def _errors(state: NodeState, remedies: HealthRemedies) -> Iterator[Trouble]:
    # GPUs that fell off the bus, are lost, answer only after a reset, or are not listed any more.
    unhealthy = [_of_finding(ERROR, f, state, remedies) for f in _findings(state, Health.UNHEALTHY)]
    yield from (found for found in unhealthy if found.code in _GONE)
    yield from _silent(ERROR, Access.LOST, state, remedies)
    yield from _problems(ERROR, state, {Code.GPU_LOST})
    if state.driver_error:
        yield _driver(state, remedies)
    yield from unhealthy  # reboot before reset before inspection
    # A GPU of which nothing is known, and with which the plan is not done.
    planned = {p.gpu for p in state.problems if p.code is Code.GPU_UNKNOWN}
    yield from (found for found in _unknown(ERROR, state, remedies) if found.gpu in planned)
    # A step, an MPS daemon, a plan that fits no card.
    refused = state.refusal.problems if state.refusal else ()
    failures = (p for p in state.problems if p.code not in _PASSING and p not in refused)
    yield from (_of_problem(ERROR, problem) for problem in failures)
    # The newest plan was refused.
    kept = "the last good plan stays in force" if state.digest else "no plan is in force"
    for problem in refused:
        where = f"{problem.path}: " if problem.path else ""
        text = f"The newest plan is refused, {kept}: {where}{_end(problem.message)}"
        yield _of_problem(ERROR, problem, text)


def _warnings(state: NodeState, remedies: HealthRemedies) -> Iterator[Trouble]:
    yield from _unknown(WARNING, state, remedies)  # the driver does not say how a GPU is
    yield from _problems(WARNING, state, WAITING)  # in use, needs a reset, another program's
    unexplained = not blocking_codes(state.problems)
    if state.phase in (Phase.BLOCKED, Phase.FAILED, Phase.REJECTED) and unexplained:
        text = f"The plan is {state.phase.value.lower()}."
        yield Trouble(WARNING, text, code=state.phase.value)
    if state.cluster and state.cluster.problem:
        yield _of_problem(WARNING, state.cluster.problem)
    # What is wrong with the plan's carrier; the last good plan counts.
    yield from _problems(WARNING, state, {Code.SOURCE_MISSING})
    if state.note and state.digest:
        yield Trouble(WARNING, _sentence(state.note), code="PlanMissing")
    yield from _users_unknown(state)
    for finding in _findings(state, Health.DEGRADED):
        yield _of_finding(WARNING, finding, state, remedies)
    yield from _problems(WARNING, state, SHOWN_ONLY)  # MPS clients, metrics, the agent's files
    yield from _mps_troubles(state)
    for claim in state.claims or ():  # of pods that wait, or whose release does
        if claim.refusal:
            yield _of_claim(claim, claim.refusal)


def _beside(state: NodeState) -> Iterator[Trouble]:
    for claim in state.claims or ():
        for problem in claim.problems:
            yield _of_claim(claim, problem)
    for problem in state.less_offered:
        text = f"Less is offered to claims: {_end(problem.message)}"
        yield _of_problem(INFO, problem, text)


def _notes(state: NodeState, remedies: HealthRemedies) -> Iterator[Trouble]:
    if state.observed_at is None:
        yield Trouble(INFO, "The GPUs were not read yet.", code="NotObservedYet")
    if state.phase is Phase.WORKING:
        yield Trouble(INFO, "The plan is being applied.", code=Phase.WORKING.value)
    for finding in _findings(state, Health.HEALTHY):  # XIDs of applications and the like
        yield _of_finding(INFO, finding, state, remedies)
    if not state.observed.gpus:
        yield Trouble(INFO, "The node has no GPUs.", code="NoGpus")
    if state.phase is Phase.NO_PLAN and state.claims is None:
        text = "No plan was given. The GPUs are left as they are."
        yield Trouble(INFO, text, code=Phase.NO_PLAN.value)
    # Such as while a fresh node's first plan is applied; nothing may call these GPUs healthy.
    if gpus := gpus_not_read(state.observed, state.health):
        yield Trouble(INFO, _sentence(not_read_words(gpus)), code="HealthNotReadYet")


def _all_well(state: NodeState) -> Trouble:
    count = len(state.observed.gpus)
    gpus = "its GPU is" if count == 1 else f"its {count} GPUs are"
    if state.phase is Phase.NO_PLAN:
        text = f"{_sentence(FOR_CLAIMS)[:-1]}, and {gpus} healthy."
        return Trouble(Severity.OK, text, code=Phase.NO_PLAN.value)
    text = f"The node is as the plan says, and {gpus} healthy."
    return Trouble(Severity.OK, text, code=Phase.IN_SYNC.value)


# --- health ---------------------------------------------------------------------------------------


def _findings(state: NodeState, severity: Health) -> list[Finding]:
    """Findings of this severity, the most urgent first."""
    if state.health is None:
        return []
    found = by_urgency(state.health.findings, state.health.gpus)
    return [finding for finding in found if finding.severity is severity]


def _of_finding(
    severity: Severity, finding: Finding, state: NodeState, remedies: HealthRemedies
) -> Trouble:
    known, gpu = state.health.gpus if state.health else {}, finding.place.gpu
    remedy = remedies.of_finding(finding, known[gpu].index if gpu in known else None)
    text = _sentence(sentence(finding, known))
    code = BY_CAUSE[finding.cause].reason
    return Trouble(severity, text, remedy, gpu, code, evidence=finding.evidence)


def _unknown(severity: Severity, state: NodeState, remedies: HealthRemedies) -> Iterator[Trouble]:
    """What the driver does not report, unless it does not answer at all, which is said once."""
    if state.driver_error:
        return
    for finding in _findings(state, Health.UNKNOWN):
        yield _of_finding(severity, finding, state, remedies)
    yield from _silent(severity, Access.UNKNOWN, state, remedies)


def _silent(
    severity: Severity, access: Access, state: NodeState, remedies: HealthRemedies
) -> Iterator[Trouble]:
    """GPUs that do not answer, before a health check has a finding of it."""
    row = BY_CAUSE["gpuLost" if access is Access.LOST else "gpuUnknown"]
    for gpu in state.observed.gpus:
        if gpu.access is access:
            text = f"GPU {gpu.index} {row.words}."
            remedy = remedies.of(row.cause, row.action, gpu.index)
            yield Trouble(severity, text, remedy, gpu.uuid, row.reason)


def gpus_not_read(observed: ObservedNode, health: HealthState | None) -> tuple[Gpu, ...]:
    """The GPUs that answer and of which no check has read anything yet; none without checks."""
    if health is None or health.at is None:
        return ()
    judged = {uuid for uuid, past in health.gpus.items() if past.checked}
    return tuple(g for g in observed.gpus if g.answers and g.uuid not in judged)


def not_read_words(gpus: tuple[Gpu, ...]) -> str:
    """`the health of GPUs 0 and 1 was not read yet`."""
    *others, last = (str(gpu.index) for gpu in gpus)
    named = f"GPUs {', '.join(others)} and {last}" if others else f"GPU {last}"
    return f"the health of {named} was not read yet"


# --- the driver, the plan and MPS -----------------------------------------------------------------


def _driver(state: NodeState, remedies: HealthRemedies) -> Trouble:
    problem = next((p for p in state.problems if p.message == state.driver_error), None)
    code = problem.code if problem else Code.DRIVER
    text = _sentence(state.driver_error if code is Code.DRIVER_MISSING else state.unread)
    causes = (f.cause for f in _findings(state, Health.UNKNOWN) if f.check == Check.DRIVER)
    cause = next(causes, "driverHangs")
    remedy = _remedy(problem.remedy) if problem else remedies.of(cause, Action.NONE)
    return Trouble(ERROR, text, remedy, code=code)


def _problems(severity: Severity, state: NodeState, codes: Collection[Code]) -> Iterator[Trouble]:
    return (_of_problem(severity, p) for p in state.problems if p.code in codes)


def _of_problem(severity: Severity, problem: Problem, text: str = "") -> Trouble:
    text = text or _sentence(problem.message)
    remedy = _remedy(problem.remedy)
    return Trouble(severity, text, remedy, problem.gpu, problem.code, path=problem.path)


def _users_unknown(state: NodeState) -> Iterator[Trouble]:
    """GPUs whose users neither the driver nor the kubelet reports."""
    for gpu in state.observed.gpus:
        unknown = next((usage for usage in gpu.usages if not usage.known), None)
        if gpu.answers and unknown is not None:
            why = f": {unknown.reason}" if unknown.reason else ""
            text = f"The users of GPU {gpu.index} are not known{_end(why)}"
            remedy = "Until they are known, it counts as in use. Run `nodeagent check`."
            yield Trouble(WARNING, text, remedy, gpu.uuid, Code.READER.value)


def _mps_troubles(state: NodeState) -> Iterator[Trouble]:
    """Daemons that are drained, are started again, or take no new client."""
    devices = devices_by_uuid(state.observed)
    for daemon in without_lost_gpus(state.mps, devices):
        of = f"The MPS daemon of {daemon_words(daemon, devices)}"
        remedy = f"See the end of its log: `nodeagent mps status {daemon.device}`."
        if daemon.is_wanted and daemon.state == "Down" and daemon.why:
            text = f"{of} is down: {_end(daemon.why)}"
            remedy = f"Start it again: `nodeagent mps restart {daemon.device}`."
        elif daemon.is_wanted and daemon.state == "Backoff":
            text = f"{of} ended and is being restarted{f': {daemon.why}' if daemon.why else ''}."
            if not daemon.last_lines:  # it never began, and why not has what mends it
                remedy = f"Once that is mended, `nodeagent mps restart {daemon.device}` tries it."
        elif daemon.trouble:
            text = f"{of}: {_end(daemon.trouble)}"
            gpu = state.observed.gpu(gpu_of(daemon.device, devices))
            if gpu and (sick := gpu.health_limits).why and sick.why in daemon.trouble:
                remedy = sick.remedy
        else:
            continue
        yield Trouble(WARNING, text, remedy, gpu_of(daemon.device, devices), Code.MPS.value)


def _of_claim(claim: Claim, problem: Problem) -> Trouble:
    title = f"claim {claim.namespace}/{claim.name or claim.uid}"
    message = problem.message
    text = _sentence(message if title in message else f"{title}: {message}")
    return _of_problem(WARNING, problem, text)


# --- sentences ------------------------------------------------------------------------------------


def _sentence(text: str) -> str:
    """A fragment as a sentence; what begins with a name, a path or a URL keeps its first letter."""
    plain = re.match(r"[a-z]+[,;:]? ", text)
    return _end(text[:1].upper() + text[1:] if plain else text)


def _remedy(text: str) -> str:
    """End a remedy as a sentence; its first letter stays, as it may be of a command."""
    return _end(text) if text else ""


def _end(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
