"""The worst thing about the node, in one sentence with its remedy. Pure.

`RANKING` is the whole rule: the first row that finds something gives the headline. Texts hold no
ages and no counts that grow, because the Node is written whenever they change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from nodeagent.health.findings import Action, Finding
from nodeagent.health.findings import Severity as Health
from nodeagent.health.reporting import GONE, by_urgency, sentence
from nodeagent.health.table import BY_CAUSE, REBOOT_NODE, advice
from nodeagent.plan.observed import Access, Gpu
from nodeagent.plan.problems import Code, Problem
from nodeagent.views.devices import device_words, gpus_not_read, not_read_words
from nodeagent.views.mps_state import DaemonState
from nodeagent.views.node_state import SHOWN_ONLY, WAITING, NodeState, Phase
from nodeagent.views.shapes import Headline
from nodeagent.views.shapes import HeadlineSeverity as Severity


@dataclass(frozen=True, slots=True)
class Matter:
    """What a row of the ranking found: a headline without its severity."""

    text: str
    remedy: str = ""
    gpu: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """The state, and whether the node belongs to a cluster: its remedies are then kubectl's."""

    state: NodeState
    in_cluster: bool


Finder = Callable[[Seen], Iterator[Matter]]


def headline(state: NodeState, *, in_cluster: bool) -> Headline:
    """The first thing that the ranking finds."""
    seen = Seen(state, in_cluster)
    for severity, find in RANKING:
        for matter in find(seen):
            return Headline(severity, matter.text, matter.remedy, matter.gpu, matter.code)
    raise AssertionError  # the last row always finds something


# --- health ---------------------------------------------------------------------------------------


def _gone_gpus(seen: Seen) -> Iterator[Matter]:
    found = _findings(seen, Health.UNHEALTHY)
    yield from (_of_finding(f, seen) for f in found if f.cause in GONE)
    for gpu in seen.state.observed.gpus:
        if gpu.access is Access.LOST:
            yield _of_access(gpu, "gpuLost", seen)
    yield from _problems(seen, lambda code: code is Code.GPU_LOST)


def _unhealthy(seen: Seen) -> Iterator[Matter]:
    return (_of_finding(f, seen) for f in _findings(seen, Health.UNHEALTHY))


def _unknown(seen: Seen) -> Iterator[Matter]:
    yield from (_of_finding(f, seen) for f in _findings(seen, Health.UNKNOWN))
    for gpu in seen.state.observed.gpus:
        if gpu.access is Access.UNKNOWN:
            yield _of_access(gpu, "gpuUnknown", seen)


def _degraded(seen: Seen) -> Iterator[Matter]:
    return (_of_finding(f, seen) for f in _findings(seen, Health.DEGRADED))


def _notices(seen: Seen) -> Iterator[Matter]:
    return (_of_finding(f, seen) for f in _findings(seen, Health.HEALTHY))


def _findings(seen: Seen, severity: Health) -> list[Finding]:
    """Those of this severity, the most urgent first."""
    health = seen.state.health
    if health is None:
        return []
    return [f for f in by_urgency(health.findings, health.gpus) if f.severity is severity]


def _of_finding(finding: Finding, seen: Seen) -> Matter:
    health = seen.state.health
    known = health.gpus if health else {}
    text = _sentence(sentence(finding, known))
    number = known[finding.place.gpu].index if finding.place.gpu in known else None
    remedy = _advice(finding.cause, finding.action, number, seen)
    return Matter(text, remedy, finding.place.gpu, _camel(finding.cause))


def _of_access(gpu: Gpu, cause: str, seen: Seen) -> Matter:
    """A GPU that does not answer, before a check has found it."""
    row = BY_CAUSE[cause]
    remedy = _advice(cause, row.action, gpu.index, seen)
    return Matter(f"GPU {gpu.index} {row.words}.", remedy, gpu.uuid, _camel(cause))


def _advice(cause: str, action: Action, gpu: int | None, seen: Seen) -> str:
    return advice(cause, action, reboot=_reboot(seen), reset=_reset(gpu, seen))


def _reset(gpu: int | None, seen: Seen) -> str:
    """The driver resets no GPU that anything has open, this agent included."""
    which = "the GPU" if gpu is None else f"GPU {gpu}"
    reset = f"`nvidia-smi --gpu-reset -i {'NUMBER' if gpu is None else gpu}`"
    if not seen.in_cluster:
        stop, start = "`systemctl stop nodeagent`", "`systemctl start nodeagent`"
        return f"Reset {which}: end its users, then {stop}, {reset}, {start}."
    label = f"kubectl label node {seen.state.node} nodeagent.io/off"
    return (
        f"Reset {which}: drain the node, take the agent off it (`{label}=`), run {reset} on the "
        f"node, then `{label}-`; or reboot the node."
    )


def _reboot(seen: Seen) -> str:
    if not seen.in_cluster:
        return (
            f"{REBOOT_NODE.removesuffix('.')}: end the users of its GPUs, then `systemctl reboot`."
        )
    drain = f"kubectl drain {seen.state.node} --ignore-daemonsets --delete-emptydir-data"
    return f"{REBOOT_NODE.removesuffix('.')}: `{drain}`, then `systemctl reboot` on the node."


def _camel(cause: str) -> str:
    return cause[0].upper() + cause[1:]


# --- the driver, the plan and its source ----------------------------------------------------------


def _driver(seen: Seen) -> Iterator[Matter]:
    """The driver answers for no GPU."""
    state = seen.state
    if state.driver_error:
        said = [p for p in state.problems if p.message == state.driver_error]
        remedy = (
            _remedy(said[0].remedy)
            if said
            else advice("driverHangs", Action.NONE, reboot=_reboot(seen))
        )
        code = said[0].code if said else Code.DRIVER
        text = f"The driver does not answer: {_end(state.driver_error)}"
        if code is Code.DRIVER_MISSING:
            text = _sentence(state.driver_error)
        yield Matter(text, remedy, code=code.value)


def _failures(seen: Seen) -> Iterator[Matter]:
    refused = set(seen.state.refusal.problems) if seen.state.refusal else set()
    passing = WAITING | SHOWN_ONLY
    return _problems(seen, lambda code: code not in passing, without=refused)


def _silent_in_plan(seen: Seen) -> Iterator[Matter]:
    """A GPU of which nothing is known, and with which the plan is not done."""
    planned = {p.gpu for p in seen.state.problems if p.code is Code.GPU_UNKNOWN}
    return (matter for matter in _unknown(seen) if matter.gpu in planned)


def _rejected(seen: Seen) -> Iterator[Matter]:
    refusal = seen.state.refusal
    if refusal:
        kept = "the last good plan stays in force" if seen.state.digest else "no plan is in force"
        for problem in refusal.problems:
            where = f"{problem.path}: " if problem.path else ""
            text = f"The newest plan is refused, {kept}: {where}{_end(problem.message)}"
            yield Matter(text, _remedy(problem.remedy), problem.gpu, problem.code.value)


def _waiting(seen: Seen) -> Iterator[Matter]:
    return _problems(seen, lambda code: code in WAITING)


def _users_unknown(seen: Seen) -> Iterator[Matter]:
    """The kubelet, or the driver, does not say who uses what."""
    for gpu in seen.state.observed.gpus:
        usages = (gpu.usage, *(c.usage for i in gpu.instances for c in i.compute))
        unknown = next((usage for usage in usages if not usage.known), None)
        if gpu.access is Access.OK and unknown is not None:
            why = f": {unknown.reason}" if unknown.reason else ""
            text = f"It is not known who uses GPU {gpu.index}{_end(why)}"
            remedy = "Until it is, what it has counts as in use. Run `nodeagent check`."
            yield Matter(text, remedy, gpu.uuid, Code.READER.value)


def _shown_only(seen: Seen) -> Iterator[Matter]:
    return _problems(seen, lambda code: code in SHOWN_ONLY)


def _problems(
    seen: Seen, wanted: Callable[[Code], bool], without: Iterable[Problem] = ()
) -> Iterator[Matter]:
    for problem in seen.state.problems:
        if wanted(problem.code) and problem not in without:
            text, remedy = _sentence(problem.message), _remedy(problem.remedy)
            yield Matter(text, remedy, problem.gpu, problem.code.value)


def _phase_alone(seen: Seen) -> Iterator[Matter]:
    """A phase that needs a person, without a problem that says why."""
    phase = seen.state.phase
    if phase in (Phase.BLOCKED, Phase.FAILED, Phase.REJECTED):
        yield Matter(f"The plan is {phase.value.lower()}.", code=phase.value)


def _note(seen: Seen) -> Iterator[Matter]:
    """What is wrong with the plan's carrier."""
    yield from _problems(seen, lambda code: code is Code.SOURCE_MISSING)
    if seen.state.note and seen.state.digest:
        yield Matter(_sentence(seen.state.note), code="PlanMissing")


def _cluster(seen: Seen) -> Iterator[Matter]:
    cluster = seen.state.cluster
    if cluster and cluster.problem:
        yield Matter(_sentence(cluster.problem), _remedy(cluster.remedy), code=Code.CLUSTER.value)


def _mps_troubles(seen: Seen) -> Iterator[Matter]:
    for daemon in seen.state.mps:
        where = device_words(daemon.device, seen.state.observed)
        if daemon.wanted is not None and daemon.phase == "Backoff":
            why = f": {daemon.why}" if daemon.why else ""
            yield Matter(
                f"The MPS daemon of {where} ended and is started again{why}.",
                code=Code.MPS.value,
                gpu=_gpu_of(daemon, seen),
            )
        elif daemon.trouble:
            text = f"The MPS daemon of {where}: {_end(daemon.trouble)}"
            yield Matter(text, gpu=_gpu_of(daemon, seen), code=Code.MPS.value)


def _gpu_of(daemon: DaemonState, seen: Seen) -> str:
    for gpu in seen.state.observed.gpus:
        if daemon.device == gpu.uuid or any(
            daemon.device == device.uuid for i in gpu.instances for device in i.compute
        ):
            return gpu.uuid
    return ""


# --- nothing is wrong -----------------------------------------------------------------------------


def _not_seen_yet(seen: Seen) -> Iterator[Matter]:
    if seen.state.observed_at is None:
        yield Matter("The GPUs were not looked at yet.", code="NotObservedYet")


def _working(seen: Seen) -> Iterator[Matter]:
    if seen.state.phase is Phase.WORKING:
        yield Matter("The plan is being applied.", code=Phase.WORKING.value)


def _no_gpus(seen: Seen) -> Iterator[Matter]:
    if not seen.state.observed.gpus:
        yield Matter("The node has no GPUs.", code="NoGpus")


def _no_plan(seen: Seen) -> Iterator[Matter]:
    if seen.state.phase is Phase.NO_PLAN:
        text = "No plan was given. The GPUs are left as they are."
        yield Matter(text, code=Phase.NO_PLAN.value)


def _health_not_read(seen: Seen) -> Iterator[Matter]:
    """Such as while a fresh node's first plan is applied; nothing may call these GPUs healthy."""
    gpus = gpus_not_read(seen.state.observed, seen.state.health)
    if gpus:
        yield Matter(_sentence(not_read_words(gpus)), code="HealthNotReadYet")


def _all_well(seen: Seen) -> Iterator[Matter]:
    count = len(seen.state.observed.gpus)
    gpus = "its GPU is" if count == 1 else f"its {count} GPUs are"
    yield Matter(f"The node is as the plan says, and {gpus} healthy.", code=Phase.IN_SYNC.value)


# The first row that finds something counts.
RANKING: Final[tuple[tuple[Severity, Finder], ...]] = (
    (Severity.ERROR, _gone_gpus),  # fell off the bus, is lost, is not listed any more
    (Severity.ERROR, _driver),  # answers for no GPU
    (Severity.ERROR, _unhealthy),  # reboot before reset before inspection
    (Severity.ERROR, _silent_in_plan),
    (Severity.ERROR, _failures),  # a step, an MPS daemon, a plan that fits no card
    (Severity.ERROR, _rejected),  # the newest plan was refused
    (Severity.WARNING, _unknown),  # the driver does not say how a GPU is
    (Severity.WARNING, _waiting),  # in use, needs a reset, another program's
    (Severity.WARNING, _phase_alone),
    (Severity.WARNING, _cluster),  # the API server cannot be reached, or has no such Node
    (Severity.WARNING, _note),  # the plan is gone; the last good one counts
    (Severity.WARNING, _users_unknown),  # what has them counts as in use
    (Severity.WARNING, _degraded),
    (Severity.WARNING, _shown_only),  # MPS clients, metrics, readers, the agent's files
    (Severity.WARNING, _mps_troubles),  # daemons that are restarted, or take no new client
    (Severity.INFO, _not_seen_yet),
    (Severity.INFO, _working),
    (Severity.INFO, _notices),  # XIDs of applications and the like
    (Severity.INFO, _no_gpus),
    (Severity.INFO, _no_plan),
    (Severity.INFO, _health_not_read),
    (Severity.OK, _all_well),
)


# --- sentences ------------------------------------------------------------------------------------


def _sentence(text: str) -> str:
    """A fragment as a sentence; what begins with a name or a path keeps its first letter."""
    plain = re.match(r"[a-z]+[ ,;:]", text)
    return _end(text[:1].upper() + text[1:] if plain else text)


def _remedy(text: str) -> str:
    """It may begin with a command, so its first letter stays."""
    return _end(text) if text else ""


def _end(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
