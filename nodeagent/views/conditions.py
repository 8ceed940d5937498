"""The Node's conditions: whether its GPUs are split as planned, and whether they are well.

Messages hold nothing that changes while the matter itself does not, such as an age: programs
that wait for a condition, or count its changes, rely on that.
"""

from collections.abc import Mapping
from typing import Final

from nodeagent.health.reporting import Condition, condition
from nodeagent.health.table import Check
from nodeagent.plan.observed import Access, Gpu
from nodeagent.structs import replace
from nodeagent.views.headline import gpus_not_read, not_read_words, same
from nodeagent.views.node_state import NodeState, Phase
from nodeagent.views.shapes import Headline, HeadlineSeverity
from nodeagent.views.status_annotation import has_looked
from nodeagent.views.text import gpu_words, shortened

PARTITIONS_READY: Final = "GPUPartitionsReady"
HEALTHY: Final = "GPUHealthy"

_MAX_MESSAGE = 1024  # characters


def conditions(state: NodeState, worst: Headline) -> Mapping[str, Condition]:
    """The Node's two conditions by type; `worst` is the state's headline."""
    ready = _unknown(state, looked=has_looked(state)) or _partitions(state)
    ready, health = (_with_headline(found, state, worst) for found in (ready, _health(state)))
    return {
        PARTITIONS_READY: _explained(ready, _code(state) or ready.reason),
        HEALTHY: _explained(health, health.reason),
    }


def _code(state: NodeState) -> str:
    """Code of the plan's first problem, which a condition names; "" without one."""
    refused = state.refusal.problems if state.refusal else ()
    return next((problem.code for problem in (*refused, *state.problems)), "")


# Reasons that pass by themselves and need no explanation.
_PASSING = frozenset({Phase.WORKING.value, "NotObservedYet", "NotReadYet"})


def _explained(condition: Condition, code: str) -> Condition:
    """The condition with the command that explains `code`, where a person has to act; shortened."""
    passing = condition.status == "True" or condition.reason in _PASSING
    pointer = "" if passing else f"; see nodeagent explain {code}"
    message = shortened(condition.message, most=_MAX_MESSAGE - len(pointer)) + pointer
    return replace(condition, message=message)


def _with_headline(condition: Condition, state: NodeState, worst: Headline) -> Condition:
    """The condition with the headline in front, unless it says the same already. A headline that
    warns of nothing is left out: the condition names the plan that programs wait for.
    """
    if worst.severity in (HeadlineSeverity.OK, HeadlineSeverity.INFO):
        return condition
    if worst.code == condition.reason:
        return condition
    text = worst.text.removesuffix(".")
    named = (text, *(p.message for p in state.problems if p.message in text or same(worst, p)))
    if any(words.casefold() in condition.message.casefold() for words in named):
        return condition
    return replace(condition, message=f"{text}; {condition.message}")


def _unknown(state: NodeState, *, looked: bool) -> Condition | None:
    """Condition that holds while nothing is known of the GPUs."""
    if state.unread:
        is_own_fault = state.unread == state.driver_error  # else words on the driver precede it
        reason = Phase.FAILED.value if is_own_fault else "DriverUnavailable"
        return Condition("Unknown", reason, state.unread)
    if not looked:
        return Condition("Unknown", "NotObservedYet", "the GPUs were not read yet")
    return None


def _partitions(state: NodeState) -> Condition:
    if state.phase is Phase.NO_PLAN:
        return Condition("True", Phase.NO_PLAN.value, state.sentence)
    if state.phase is not Phase.IN_SYNC:
        return Condition("False", state.phase.value, _why_not_in_sync(state))
    note = f"; {state.note}" if state.note else ""
    return Condition("True", Phase.IN_SYNC.value, f"the node is as {_plan(state)} says{note}")


def _plan(state: NodeState) -> str:
    """`plan sha256:...`, and which configuration of it, so that one can wait for just this."""
    named = f" ({state.configuration})" if state.configuration is not None else ""
    return f"plan {state.digest}{named}"


def _why_not_in_sync(state: NodeState) -> str:
    if state.phase is Phase.WORKING and not state.problems and state.digest:
        return f"working on {_plan(state)}"
    refusal = state.refusal
    if state.phase is not Phase.REJECTED or refusal is None or not refusal.problems:
        return state.sentence
    first = refusal.problems[0]
    refused = f"plan {refusal.digest}" if refusal.digest else "the plan"
    where = f"{first.path}: " if first.path else ""
    kept = f"; {_plan(state)} stays in force" if state.digest else ""
    return f"{refused} is refused: {where}{first.message}{kept}"


def _health(state: NodeState) -> Condition:
    """The worse of what the checks found and of whether the driver answers for the GPUs."""
    answers = _unknown(state, looked=state.observed_at is not None) or _answers(state)
    if state.health is None or state.health.at is None:
        return answers
    found = condition(state.health)
    if _RANK[answers.status] > _RANK[found.status]:
        return answers
    if answers.reason == "NoGpus" and found.status == "True":
        return answers
    unread = gpus_not_read(state.observed, state.health)
    if unread and found.status == "True":
        worse = f"; {found.message}" if found.reason != "Healthy" else ""
        return Condition("Unknown", "NotReadYet", not_read_words(unread) + worse)
    return found


_RANK = {"True": 0, "Unknown": 1, "False": 2}


def _answers(state: NodeState) -> Condition:
    """Whether the driver answers for every GPU of which no check has a finding about that."""
    findings = state.health.findings if state.health else ()
    judged = {f.place.gpu for f in findings if f.check == Check.GPU_ACCESS}
    gpus = [gpu for gpu in state.observed.gpus if gpu.uuid not in judged]
    lost = [f"{_named(g)} is lost: {g.access_reason}" for g in gpus if g.access is Access.LOST]
    silent = (g for g in gpus if g.access is Access.UNKNOWN)
    words = [*lost, *(f"{_named(g)} does not answer: {g.access_reason}" for g in silent)]
    if lost:
        return Condition("False", "GpuLost", "; ".join(words))
    if words:
        return Condition("Unknown", "GpuUnknown", "; ".join(words))
    if not state.observed.gpus:
        return Condition("True", "NoGpus", "the node has no GPUs")
    count = len(state.observed.gpus)
    return Condition("True", "Healthy", f"the driver answers for every GPU ({count})")


def _named(gpu: Gpu) -> str:
    return f"{gpu_words(gpu)} ({gpu.uuid})" if gpu.uuid else gpu_words(gpu)
