"""What a claim's allocation comes to on this node's GPUs, and whether it may have that beside the
other claims of a GPU.

The scheduler says what a claim gets. That is not taken at its word: it may have allocated what was
offered a moment ago and is not any more, schedulers race, and a force-deleted pod frees a device
before its containers have stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from nodeagent.claims.capacity import capacity_of, excess
from nodeagent.claims.model import (
    ClaimedDevice,
    ClaimHeldUp,
    ClaimRecord,
    ClaimReference,
    ClaimRefused,
    RecordPhase,
    Result,
)
from nodeagent.claims.names import WHOLE_GPU, locate
from nodeagent.claims.offering.gpu_rules import GpuRules, refusal
from nodeagent.claims.serving.cdi import device_id
from nodeagent.claims.serving.daemons import ClaimDaemons
from nodeagent.errors import Transient, UnknownDevice
from nodeagent.plan.desired import MpsEntry
from nodeagent.plan.observed import Gpu, ObservedNode
from nodeagent.plan.shares import ANY_USER, Account, TimeSlice, WantedMps
from nodeagent.structs import replace

if TYPE_CHECKING:
    from nodeagent.claims.records import UnreadableRecord


def intended(
    claim: ClaimReference,
    uid: str,
    results: Iterable[Result],
    observed: ObservedNode,
    daemons: ClaimDaemons,
    *,
    rules: Callable[[Gpu], GpuRules],
    node: str,
    boot_id: str,
) -> ClaimRecord:
    """The claim's first record. Raises NodeagentError. May block on the user database."""

    def device(result: Result) -> ClaimedDevice:
        try:
            located = locate(result.pool, result.device, node, observed.gpus)
        except UnknownDevice as error:
            anew = f"have its pods scheduled again: {claim.schedule_anew}"
            remedy = "; ".join(filter(None, (error.remedy, anew)))
            raise UnknownDevice(f"{claim}: {error.message}", remedy=remedy) from error
        gpu, place = located.gpu, located.part
        if not gpu.answers:
            raise Transient.of("gpuSilent", claim=claim, gpu=gpu)
        consumed, own_rules = result.consumed, rules(gpu)
        profile, mps = place.profile if place else None, None
        memory = capacity_of(gpu, profile).memory
        shared = consumed is not None and not consumed.is_whole(memory)
        fixed = admit(own_rules, result, gpu, claim, shared=shared)
        entry = result.configuration if isinstance(result.configuration, MpsEntry) else None
        if shared and own_rules.shared_by(gpu, result.device) != "time":
            mps = daemons.wanted_share(result, gpu, profile, claim)
        elif entry:
            mps = daemons.wanted(entry, gpu, profile, claim)
        return ClaimedDevice(
            result,
            gpu.uuid,
            device_id(uid, result),
            profile.name if profile else "",
            place.placement if place else None,
            fixed=fixed,
            mps=mps,
            shared=shared,
        )

    devices = tuple(map(device, results))
    return ClaimRecord(uid, claim.namespace, claim.name, RecordPhase.INTENT, boot_id, devices)


def admit(
    rules: GpuRules, result: Result, gpu: Gpu, claim: ClaimReference, *, shared: bool = False
) -> bool:
    """Whether the claim has a device that is fixed, or, `shared`, a part of one that is. Raises
    ClaimRefused where it may not have it; an administrator may look at any.
    """
    if result.admin_access:
        return False
    by_turns = shared and rules.shared_by(gpu, result.device) == "time"
    why_not_shared = rules.why_not_shared(gpu, result.device) if shared else ""
    why = refusal(rules, gpu, result.device) or why_not_shared
    if why:
        raise ClaimRefused.of("notOffered", claim=claim, gpu=gpu, device=result.device, why=why)
    if shared and result.consumed and by_turns is bool(result.consumed.clients):
        raise ClaimRefused.of("sharedOtherwise", claim=claim, gpu=gpu)
    wanted = result.configuration
    fits = wanted in (None, TimeSlice.DEFAULT) if by_turns else not isinstance(wanted, TimeSlice)
    if shared and not fits:
        found = "timeSlice" if isinstance(wanted, TimeSlice) else "mps"
        way = "by turns of one length" if by_turns else "by MPS"
        raise ClaimRefused.of(
            "ofShare", claim=claim, request=result.request, gpu=gpu, found=found, way=way
        )
    fixed = rules.is_fixed(result.device)
    if fixed and wanted is not None and (by_turns or not shared):
        raise ClaimRefused.of("sharedByPlan", claim=claim, gpu=gpu, device=result.device)
    # Of a GPU the daemon is the claims', and of a MIG device the daemon alone.
    return fixed and (by_turns or not shared or result.device != WHOLE_GPU)


def require_admission(
    record: ClaimRecord,
    gpu: Gpu,
    others: Collection[ClaimRecord],
    unreadable: Iterable[UnreadableRecord],
) -> None:
    """Raise NodeagentError, with the claim or record that is in the way, unless it may."""
    claim = record.reference
    for one in unreadable:
        if one.concerns(gpu.uuid):
            raise one.error
    own = {_user(one.mps.account) for one in record.devices if one.mps and one.gpu == gpu.uuid}
    if len(own) > 1 or len({*_daemons(record, gpu.uuid)}) > 1 or _share_unlike(record, record):
        raise ClaimRefused.of("unlikeRequests", claim=claim, gpu=gpu)
    for other in others:
        if device := _common(record, other):
            made_anew = claim == other.reference
            holder = f"the earlier {other.title}" if made_anew else other.title
            raise ClaimHeldUp.of("held", claim=claim, device=device, holder=holder)
        users = _mps_user(record, gpu.uuid), _mps_user(other, gpu.uuid)
        if all(users) and len(set(users)) > 1:
            raise ClaimHeldUp.of(
                "otherUser", claim=claim, gpu=gpu, other=other.reference, users=users
            )
        if any((own.mps is None) is not (one.mps is None) for own, one in _shares(record, other)):
            raise ClaimHeldUp.of("heldOtherwise", claim=claim, gpu=gpu, other=other.reference)
        _require_same_daemon(record, gpu, other)
    _require_room(record, gpu, others)
    user = _mps_user(record, gpu.uuid)
    if user and record.phase is RecordPhase.INTENT:  # a plan that came later does not end it
        _require_user_of_plan(record, gpu, user)


def joined(record: ClaimRecord, others: Collection[ClaimRecord]) -> ClaimRecord:
    """The record with its shares on the daemons that serve their GPUs together with more, unless a
    whole GPU is beside them: the GPUs of a daemon stay the same as long as a claim has it.
    """
    known = {device.daemon for one in (record, *others) for device in one.devices}
    whole = {device.daemon for device in record.devices if not device.shared}

    def on_daemon(device: ClaimedDevice) -> ClaimedDevice:
        own = {*device.daemon}
        there = max((each for each in known if own & {*each}), key=len, default=())
        if device.daemon in whole or device.mps is None or not own < {*there}:
            return device
        return replace(device, mps=_on_some(device.mps, device.daemon, there))

    return replace(record, devices=tuple(map(on_daemon, record.devices)))


def _on_some(wanted: WantedMps, own: Iterable[str], devices: tuple[str, ...]) -> WantedMps:
    """What is wanted of some GPUs, of a daemon that serves more of them."""
    shares = tuple(
        replace(
            one, by_device=tuple((gpu, one.memory_on(gpu) or 0, one.total_on(gpu)) for gpu in own)
        )
        for one in wanted.sharing.shares
    )
    return replace(wanted, sharing=replace(wanted.sharing, shares=shares), devices=devices)


def _require_same_daemon(record: ClaimRecord, gpu: Gpu, other: ClaimRecord) -> None:
    """What serves the GPU as a whole, serves both, or one of them has nothing of it."""
    mine, theirs = record.daemon_on(gpu.uuid), other.daemon_on(gpu.uuid)
    alike = mine and theirs and mine.devices == theirs.devices
    unlike = alike and {*_daemons(record, gpu.uuid)} != {*_daemons(other, gpu.uuid)}
    if unlike or _share_unlike(record, other):
        raise ClaimHeldUp.of("otherDaemon", claim=record.reference, gpu=gpu, other=other.reference)
    apart = (mine and (theirs or other.held_on(gpu.uuid))) or (theirs and record.held_on(gpu.uuid))
    if apart and not alike:
        wanted, found = (
            f"an MPS daemon for {' and '.join(one.devices_on(gpu.uuid))}" if one else "none"
            for one in (mine, theirs)
        )
        raise ClaimHeldUp.of(
            "otherGpus",
            claim=record.reference,
            gpu=gpu,
            other=other.reference,
            wanted=wanted,
            found=found,
        )


def _require_room(record: ClaimRecord, gpu: Gpu, others: Iterable[ClaimRecord]) -> None:
    """Its shares and those of others, as they were consumed, have to be there together."""
    for device in (one for one in record.devices if one.shared and one.gpu == gpu.uuid):
        mine = record.consumed_of(device)
        theirs = [(other, one) for other in others for one in other.consumed_of(device)]
        all_of_it = capacity_of(gpu, gpu.profile(device.profile))
        if over := excess(all_of_it, (*mine, *(one for _, one in theirs))):
            holders = "; ".join(f"{other.title} has {one}" for other, one in theirs)
            name = f"{device.result.device} of " if device.placement else ""
            case = "noRoom" if theirs else "tooMuch"
            raise ClaimHeldUp.of(
                case,
                claim=record.reference,
                amounts=" and ".join(map(str, mine)),
                device=f"{name}{gpu.title}",
                over=over,
                holders=holders or "it has no more",
            )


def _require_user_of_plan(record: ClaimRecord, gpu: Gpu, user: str) -> None:
    """The daemons of other claims there run as this `user`; any other daemon is the plan's."""
    for daemon in (device.mps for device in gpu.devices() if device.mps):
        theirs = _user(daemon.runs.account)
        if theirs != user:
            path = daemon.runs.path or "the plan"
            raise ClaimRefused.of(
                "userOfPlan", claim=record.reference, gpu=gpu, user=user, theirs=theirs, path=path
            )


def _common(record: ClaimRecord, other: ClaimRecord) -> str:
    """A device of the other's of which this one has a part; "" if there is none."""
    for theirs in other.devices:
        if any(own.overlaps(theirs) for own in record.devices):
            return theirs.result.device
    return ""


def _mps_user(record: ClaimRecord, gpu: str) -> str:
    """Whom its MPS on the GPU with that UUID runs as; "" where it has none."""
    accounts = (device.mps.account for device in record.devices if device.mps and device.gpu == gpu)
    return next(map(_user, accounts), "")


def _daemons(record: ClaimRecord, gpu: str) -> Iterator[tuple[Account, str, tuple[str, ...]]]:
    """Account, `enforce` and GPUs of the daemons that it wants for that GPU as a whole."""
    for device in record.devices:
        if device.mps and gpu in device.daemon:
            yield device.mps.account, device.mps.sharing.enforce, device.daemon


def _shares(
    record: ClaimRecord, other: ClaimRecord
) -> Iterator[tuple[ClaimedDevice, ClaimedDevice]]:
    """Of one device, one share of the record's with one of the other's."""
    for own in record.devices:
        yield from ((own, one) for one in other.devices if own.shares_with(one))


def _share_unlike(record: ClaimRecord, other: ClaimRecord) -> bool:
    """Whether they want one MIG device with different daemons."""
    parts = [(own.mps, one.mps) for own, one in _shares(record, other) if own.placement]
    kinds = [[mps and (mps.account, mps.sharing.enforce) for mps in each] for each in parts]
    return any(own != one for own, one in kinds)


def _user(account: Account) -> str:
    return ANY_USER if account.any_user else str(account.uid)
