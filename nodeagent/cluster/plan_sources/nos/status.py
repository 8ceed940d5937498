"""The node's state as nos' status annotations.

nos' partitioner makes its picture of a node of nothing else, and it waits, with the whole cluster,
until every node has answered its newest plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from nodeagent.cluster.plan_sources.nos import grammar
from nodeagent.cluster.plan_sources.nos.grammar import NosDeviceUse, PartitioningKind, StatusKey
from nodeagent.documents.reading import digest_of
from nodeagent.plan.observed import Access, DeviceDaemon, Gpu
from nodeagent.plan.shares import MIB, Share
from nodeagent.plan.users import User, as_used
from nodeagent.reconcile.plan_update import NoPlan, PlanUpdate, UnreadablePlan
from nodeagent.views import shapes
from nodeagent.views.node_state import NodeState, Phase
from nodeagent.views.shapes import MpsClient, Pod

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
    mode = grammar.partitioning_of(labels)
    if mode is None:
        return {}
    wanted: dict[str, str | None] = {}
    if state.observed_at is not None:
        silent, counts = _counted(state, mode, annotations)
        for key in grammar.status_keys(annotations):
            found = grammar.read_status(key)
            if found is None or found.index not in silent:
                wanted[key] = None
        wanted |= {str(key): str(counts[key]) for key in sorted(counts)}
    plan = annotations.get(grammar.SPEC_PLAN, "")
    if 0 < len(plan) <= _MAX_ID and (
        state.driver_error or (judged and _answered(state, offered, mode))
    ):
        wanted[grammar.STATUS_PLAN] = plan
    return wanted


def _answered(state: NodeState, offered: PlanUpdate | None, mode: PartitioningKind) -> bool:
    """Whether the agent is done with this plan for now: it is in place, failed, refused or blocked.

    Unanswered, a plan would hold up the whole cluster.
    """
    if offered is None:
        return False
    if isinstance(offered, NoPlan):
        # Outside MIG the id is left from an earlier plan, and nothing is to be done for it.
        return mode is not PartitioningKind.MIG
    if isinstance(offered, UnreadablePlan):
        return True
    digest = digest_of(offered.text)
    if state.refusal is not None and state.refusal.digest == digest:
        return True
    return state.digest == digest and state.phase is not Phase.WORKING


# --- counting -------------------------------------------------------------------------------------


def _counted(
    state: NodeState, mode: PartitioningKind, annotations: Mapping[str, str]
) -> tuple[set[int], _Counts]:
    """The GPUs of which nothing is known now, and the counts of all others.

    A GPU that does not answer is counted as it was last seen, and as in use: nos must not plan
    with it.
    """
    asked: dict[int, list[str]] = {}
    for index, profile in grammar.requested_profiles(annotations):
        asked.setdefault(index, []).append(profile)
    daemons = {daemon.device: daemon for daemon in state.mps}
    silent: set[int] = set()
    counts: _Counts = Counter()
    for gpu in state.observed.gpus:
        answers = gpu.access is Access.OK and not state.driver_error
        if not answers and not gpu.instances and gpu.mps is None:
            silent.add(gpu.index)
            continue
        seen = as_used(gpu)
        # To nos a share on a node of MIG, or the other way round, is a fault of the whole node.
        if mode is PartitioningKind.MIG:
            counts.update(_devices(seen, asked.get(gpu.index, ()), answers=answers))
        elif seen.mps is not None:
            counts.update(_shares(seen, seen.mps, daemons.get(gpu.uuid), answers=answers))
    return silent, counts


def _devices(gpu: Gpu, asked: Iterable[str], *, answers: bool) -> Iterator[StatusKey]:
    """One key for each MIG device."""
    asked_names = grammar.requested_names(gpu, asked)
    for _, device in gpu.mig_devices():
        profile = asked_names.get(device.profile) or grammar.nos_spelling(device.profile)
        if profile is not None:
            used = not answers or device.usage.in_use
            yield StatusKey(gpu.index, profile, NosDeviceUse.USED if used else NosDeviceUse.FREE)


# --- shares ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Holder:
    """The holder of a share, with its share if known: a container, or a process without one."""

    identity: tuple[str, ...]
    share: str = ""
    slot: str = ""
    limit: int | None = None  # bytes


def _shares(
    gpu: Gpu, daemon: DeviceDaemon, reported: shapes.MpsDaemon | None, *, answers: bool
) -> Iterator[StatusKey]:
    """One key for each share, of those that nos knows how to name."""
    shares = [s for s in daemon.runs.sharing.shares if s.count and grammar.share_size(s.name)]
    counts = {share.name: share.count or 0 for share in shares}
    if answers and gpu.usage.known and daemon.clients.known:
        taken = _taken(_holders(gpu, reported), shares)
    else:
        taken = Counter(counts)
    for name, count in counts.items():
        yield from [StatusKey(gpu.index, name, NosDeviceUse.USED)] * min(count, taken[name])
        yield from [StatusKey(gpu.index, name, NosDeviceUse.FREE)] * max(0, count - taken[name])


def _holders(gpu: Gpu, reported: shapes.MpsDaemon | None) -> list[_Holder]:
    """The clients that the daemon's supervisor knows, then users that only other sources report.

    A process that is neither a client nor an allocation of the kubelet's holds no share.
    """
    clients = reported.clients if reported else ()
    known = {_identity(client) for client in clients}
    pids = {client.pid for client in clients}
    others = {
        _identity(user): None
        for user in gpu.usage.processes
        if user.source in ("mps", "kubelet") and not (user.pid and user.pid in pids)
    }
    return [
        *(
            _Holder(_identity(c), c.share, c.slot, c.memory.limit if c.memory else None)
            for c in clients
        ),
        *(_Holder(identity) for identity in others if identity not in known),
    ]


def _identity(who: MpsClient | User) -> tuple[str, ...]:
    match who:
        case MpsClient(pod=Pod() as pod):
            return (pod.namespace, pod.name, pod.container)
        case User() if who.pod:
            return (who.namespace, who.pod, who.container)
    return (str(who.pid),)


def _taken(holders: Iterable[_Holder], shares: list[Share]) -> Counter[str]:
    """How many of each share are in use.

    A slot counts once, however many processes are in it. A holder without a slot has a
    share all the same: the one with a limit like its own, else the largest that is free.
    """
    holders = list(holders)
    names = {share.name for share in shares}
    slots = {(h.share, h.slot or h.identity) for h in holders if h.share in names}
    taken = Counter(name for name, _ in slots)
    placed = {h.identity for h in holders if h.share in names}
    unplaced = {h.identity: h for h in holders if h.identity not in placed}
    for holder in unplaced.values():
        free = [s for s in shares if taken[s.name] < (s.count or 0)]
        if free:
            like = [s for s in free if s.memory and s.memory * MIB == holder.limit]
            taken[max(like or free, key=lambda s: s.memory or 0).name] += 1
    return taken
