"""The node's state as nos' status annotations.

nos' partitioner makes its picture of a node of nothing else, and it waits, with the whole cluster,
until every node has answered its newest plan.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from nodeagent.cluster.plan_sources.nos import grammar
from nodeagent.cluster.plan_sources.nos.grammar import NosDeviceUse, StatusKey
from nodeagent.documents.reading import digest_of
from nodeagent.plan.observed import Gpu
from nodeagent.plan.users import as_used
from nodeagent.reconcile.plan_update import NoPlan, PlanUpdate, UnreadablePlan
from nodeagent.text import alike
from nodeagent.views.node_state import NodeState, Phase

_Counts = Counter[StatusKey]
_MAX_ID = 1024  # characters of a plan's id, which is a time; all annotations have 256 KiB together


def status_annotations(
    state: NodeState,
    offered: PlanUpdate | None,
    *,
    annotations: Mapping[str, str],
    labels: Mapping[str, str],
    judged: bool = True,
) -> Mapping[str, str | None]:
    """What is to be written to a Node with these annotations and labels; None takes a key away.

    `offered` is the plan that the state was made from; `judged`: these annotations and labels ask
    for that plan. All of it belongs into one patch: nos takes the counts for those of the plan
    that is acknowledged in it. A key that is not named stays as it is. On a node that
    nos does not divide nothing is written at all.
    """
    if not grammar.is_divided(labels):
        return {}
    wanted: dict[str, str | None] = {}
    if state.observed_at is not None:
        silent, counts = _counted(state, annotations)
        for key in grammar.status_keys(annotations):
            found = grammar.read_status(key)
            if found is None or found.index not in silent:
                wanted[key] = None
        wanted |= {str(key): str(counts[key]) for key in sorted(counts)}
    plan = annotations.get(grammar.SPEC_PLAN, "")
    if 0 < len(plan) <= _MAX_ID and (state.driver_error or (judged and _answered(state, offered))):
        wanted[grammar.STATUS_PLAN] = plan
    return wanted


def _answered(state: NodeState, offered: PlanUpdate | None) -> bool:
    """Whether the agent is done with this plan for now: it is in place, failed, refused or blocked.

    Unanswered, a plan would hold up the whole cluster.
    """
    if offered is None or isinstance(offered, NoPlan):
        return False
    if isinstance(offered, UnreadablePlan):
        return True
    digest = digest_of(offered.text)
    if state.refusal is not None and state.refusal.digest == digest:
        return True
    return state.digest == digest and state.phase is not Phase.WORKING


# --- counting -------------------------------------------------------------------------------------


def _counted(state: NodeState, annotations: Mapping[str, str]) -> tuple[set[int], _Counts]:
    """The GPUs of which nothing is known now, and the counts of all others.

    A GPU that does not answer is counted as it was last seen, and as in use: nos must not plan
    with it.
    """
    asked = alike(grammar.requested_profiles(annotations))
    silent: set[int] = set()
    counts: _Counts = Counter()
    for gpu in state.observed.gpus:
        answers = gpu.answers and not state.driver_error
        if answers or gpu.instances:
            counts.update(_devices(as_used(gpu), asked.get(gpu.index, ()), answers=answers))
        else:
            silent.add(gpu.index)
    return silent, counts


def _devices(gpu: Gpu, asked: Iterable[str], *, answers: bool) -> Iterator[StatusKey]:
    """One key for each MIG device."""
    asked_names = grammar.requested_names(gpu, asked)
    for _, device in gpu.mig_devices():
        profile = asked_names.get(device.profile) or grammar.nos_spelling(device.profile)
        if profile is not None:
            used = not answers or device.usage.in_use
            yield StatusKey(gpu.index, profile, NosDeviceUse.USED if used else NosDeviceUse.FREE)
