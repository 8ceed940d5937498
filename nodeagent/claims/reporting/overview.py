"""The claims of this node for people and metrics, from all that is known of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, assert_never

from nodeagent.claims.capacity import CLIENTS, MEMORY, THREADS
from nodeagent.claims.model import ClaimedDevice, ClaimRecord, RecordPhase
from nodeagent.claims.offering.devices import UUID
from nodeagent.claims.offering.pool_offer import PoolOffer
from nodeagent.claims.reporting.device_reports import DeviceHealth
from nodeagent.claims.serving.attempts import Attempt, Operation
from nodeagent.claims.serving.claim_pods import ClaimKey, ClaimPods
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.problems import Code, Problem
from nodeagent.structs import Struct, field, replace
from nodeagent.views.claims import Claim, ClaimDevice, ClaimPhase, ClaimShare, FreeShare
from nodeagent.views.text import time_json

if TYPE_CHECKING:
    from nodeagent.claims.records import UnreadableRecord


class ClaimFacts(Struct, frozen=True):
    """All that is known; `attempts`, `upkeep_problems` (what the last round of upkeep left) and
    `pod_problems` are by uid, `health` by pool and device. `boot_id` is this start of the machine.
    """

    node: ObservedNode
    boot_id: str
    pods: ClaimPods
    records: tuple[ClaimRecord, ...] = ()
    unreadable: tuple[UnreadableRecord, ...] = ()
    attempts: Mapping[str, Attempt] = field(default_factory=dict)
    upkeep_problems: Mapping[str, Problem] = field(default_factory=dict)
    health: Mapping[tuple[str, str], DeviceHealth] = field(default_factory=dict)
    pod_problems: Mapping[str, tuple[Problem, ...]] = field(default_factory=dict)


def served_claims(facts: ClaimFacts) -> tuple[Claim, ...]:
    """Claims with a record and those that the kubelet asks for, by namespace and name."""
    recorded = {record.uid for record in facts.records} | {one.uid for one in facts.unreadable}
    found = [_recorded(record, facts) for record in facts.records]
    found += [_unreadable(one, facts) for one in facts.unreadable]
    found += [
        _claim(facts, uid, (attempt.namespace, attempt.name), _phase_unready(attempt))
        for uid, attempt in facts.attempts.items()
        if uid not in recorded
    ]
    return tuple(sorted(found, key=lambda one: (one.namespace, one.name, one.uid)))


def _recorded(record: ClaimRecord, facts: ClaimFacts) -> Claim:
    key, attempt = (record.namespace, record.name), facts.attempts.get(record.uid)
    since = record.since
    match record.phase:
        case RecordPhase.READY:
            phase = ClaimPhase.READY
        case RecordPhase.RELEASING:
            phase = ClaimPhase.RELEASING
        case RecordPhase.INTENT:
            phase = _phase_unready(attempt)
            since = attempt.since if attempt else since
        case _:
            assert_never(record.phase)
    found = [facts.upkeep_problems[record.uid]] if record.uid in facts.upkeep_problems else []
    of_pods = facts.pod_problems.get(record.uid, ())
    problems = (*found, *_health_problems(record, facts), *of_pods)
    same_boot = record.boot_id == facts.boot_id
    devices = [_device(one, facts.node, with_ids=same_boot) for one in record.devices]
    claim = _claim(facts, record.uid, key, phase, problems)
    return replace(claim, since=_time(since), devices=devices)


def _unreadable(one: UnreadableRecord, facts: ClaimFacts) -> Claim:
    """Its name is known where the kubelet asked for it."""
    attempt = facts.attempts.get(one.uid)
    key = (attempt.namespace, attempt.name) if attempt else ("", "")
    problem = Problem.from_error(Code.STATE_FILE, one.error)
    return _claim(facts, one.uid, key, ClaimPhase.UNREADABLE, (problem,))


def _claim(
    facts: ClaimFacts, uid: str, key: ClaimKey, phase: ClaimPhase, problems: Iterable[Problem] = ()
) -> Claim:
    """The claim as the kubelet's attempts have it."""
    attempt = facts.attempts.get(uid)
    return Claim(
        namespace=key[0],
        name=key[1],
        uid=uid,
        phase=phase,
        since=_time(attempt.since) if attempt else "",
        pods=facts.pods.of(key),
        devices=[],
        refusal=attempt.refusal if attempt else None,
        problems=list(problems),
    )


def _phase_unready(attempt: Attempt | None) -> ClaimPhase:
    """The phase of a claim of which nothing is ready. One that was refused waits, also while the
    kubelet's next attempt runs.
    """
    if attempt and attempt.operation is Operation.RELEASE:
        return ClaimPhase.RELEASING
    first = attempt is not None and attempt.running and attempt.refusal is None
    return ClaimPhase.PREPARING if first else ClaimPhase.WAITING


def _time(moment: float) -> str:
    """Nothing where it is not known."""
    return time_json(datetime.fromtimestamp(moment, UTC)) if moment else ""


def _device(one: ClaimedDevice, node: ObservedNode, *, with_ids: bool) -> ClaimDevice:
    """Ids count in one start of the machine alone."""
    gpu, place = node.gpu(one.gpu), one.placement
    return ClaimDevice(
        request=one.result.request,
        pool=one.result.pool,
        device=one.result.device,
        share_id=one.result.share_id,
        share=_share(one),
        daemon=one.daemon if len(one.daemon) > 1 else (),
        admin_access=one.result.admin_access,
        gpu=one.gpu,
        index=gpu.index if gpu else None,
        profile=one.profile,
        start=place.start if place else None,
        size=place.size if place else None,
        gi=one.instance if with_ids else None,
        ci=one.compute if with_ids else None,
        uuid=one.uuid if with_ids else "",
    )


def _share(one: ClaimedDevice) -> ClaimShare | None:
    consumed = one.result.consumed
    if not one.shared or consumed is None:
        return None
    [limits] = one.mps.sharing.shares if one.mps else (None,)
    return ClaimShare(
        memory=consumed.memory,
        threads=limits.threads if limits else None,
        reserved=consumed.threads,
        clients=consumed.clients,
    )


def free_shares(
    offers: Iterable[PoolOffer], records: Iterable[ClaimRecord]
) -> Mapping[str, FreeShare]:
    """What is left of each GPU that claims may share, by UUID; nothing of one that a claim has as a
    whole or a part of by MIG, or that takes nothing new.
    """
    held = [one for record in records for one in record.devices if not one.result.admin_access]
    found: dict[str, FreeShare] = {}
    for device in (one for offer in offers for one in offer.devices):
        gpu = str(device.attributes.get(UUID, ""))
        if not gpu or MEMORY not in device.policies:  # one of another release may be held, too
            continue
        here = [one for one in held if one.gpu == gpu]
        own = all(one.shared and one.placement is None for one in here)
        closed = bool(device.taints) or not own
        shares = [one.result.consumed for one in here if one.result.consumed]
        consumed = {
            MEMORY: sum(one.memory for one in shares),
            THREADS: sum(one.threads for one in shares),
            CLIENTS: sum(one.clients for one in shares),
        }
        left = {
            name: max(0, device.capacity[name] - consumed.get(name, 0)) // one.step * one.step
            for name, one in device.policies.items()
        }
        if closed or any(left[name] < one.least for name, one in device.policies.items()):
            left = dict.fromkeys(left, 0)
        found[gpu] = FreeShare(
            memory=left[MEMORY], threads=left.get(THREADS), clients=left.get(CLIENTS)
        )
    return found


def _health_problems(record: ClaimRecord, facts: ClaimFacts) -> Iterator[Problem]:
    """Devices that are not well, or of which that is not known."""
    for device in record.devices:
        name = device.result.device
        found = facts.health.get((device.result.pool, name))
        if found and found.health != "healthy":
            code = Code.GPU_UNHEALTHY if found.health == "unhealthy" else Code.GPU_UNKNOWN
            message = f"{name}: {found.message.removesuffix(found.remedy).rstrip()}"
            yield Problem(code=code, message=message, gpu=device.gpu, remedy=found.remedy)
