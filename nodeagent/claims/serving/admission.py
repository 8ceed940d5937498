"""What a claim's allocation comes to on this node's GPUs, and whether it may have that beside the
other claims of a GPU.

The scheduler says what a claim gets. That is not taken at its word: it may have allocated what was
offered a moment ago and is not any more, schedulers race, and a force-deleted pod frees a device
before its containers have stopped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from nodeagent.claims.capacity import excess
from nodeagent.claims.model import (
    CLASSES,
    ClaimedDevice,
    ClaimHeldUp,
    ClaimRecord,
    ClaimReference,
    ClaimRefused,
    RecordPhase,
    Result,
)
from nodeagent.claims.names import locate
from nodeagent.claims.offering.gpu_rules import GpuRules, refusal
from nodeagent.claims.serving.cdi import device_id
from nodeagent.claims.serving.daemons import ClaimDaemons
from nodeagent.errors import NodeagentError, Transient, UnknownDevice
from nodeagent.plan.desired import MpsEntry
from nodeagent.plan.observed import Access, Gpu, ObservedNode
from nodeagent.plan.shares import ANY_USER, Account, TimeSlice

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
        if gpu.access is not Access.OK:
            raise Transient(
                f"{claim} has to wait: {gpu.title} does not answer: {gpu.access_reason}",
                remedy=f"`nodeagent status --gpu {gpu.index}` shows what is wrong with it",
            )
        consumed, own_rules = result.consumed, rules(gpu)
        shared = place is None and consumed is not None and not consumed.is_whole(gpu.memory)
        fixed = admit(own_rules, result, gpu, claim, shared=shared)
        profile, mps = place.profile if place else None, None
        entry = result.configuration if isinstance(result.configuration, MpsEntry) else None
        if shared and consumed and own_rules.shared_by(gpu) != "time":
            mps = daemons.wanted_share(entry, gpu, consumed, result.share_id, claim)
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
    require_one_daemon(devices, claim)
    return ClaimRecord(uid, claim.namespace, claim.name, RecordPhase.INTENT, boot_id, devices)


def require_one_daemon(devices: Collection[ClaimedDevice], claim: ClaimReference) -> None:
    """A program is a client of one MPS daemon, and a container gets all devices of a request; one
    GPU has clients of one user, and one daemon for all shares.
    """
    for gpu in dict.fromkeys(device.gpu for device in devices):
        here = [(one.mps, one.shared) for one in devices if one.mps and one.gpu == gpu]
        users = {_user(mps.account) for mps, _ in here}
        shares = {(mps.account, mps.sharing.enforce) for mps, shared in here if shared}
        if len(users) > 1 or len(shares) > 1:
            raise ClaimRefused(
                f"{claim}: its requests have devices of {gpu} with another MPS user or enforce "
                "each, but one GPU has clients of one user, and all its shares one MPS daemon",
                remedy="name DeviceClasses with the same mps.user and mps.enforce in "
                f"spec.devices.requests of the claim or its template ({CLASSES} lists them)",
            )
    shared = Counter(device.result.main_request for device in devices if device.mps)
    for request, count in shared.items():
        if count > 1:
            raise ClaimRefused(
                f"{claim}: request {request} has {count} devices with MPS, but a program is a "
                "client of one MPS daemon",
                remedy="use a separate request for each device in spec.devices.requests of the "
                f"claim or its template ({claim.show}), and name one of the requests in "
                "resources.claims of each container",
            )


def admit(
    rules: GpuRules, result: Result, gpu: Gpu, claim: ClaimReference, *, shared: bool = False
) -> bool:
    """Whether the claim has a device that is fixed, or, `shared`, a part of one that is. Raises
    ClaimRefused where it may not have it; an administrator may look at any.
    """
    if result.admin_access:
        return False
    by_turns = shared and rules.shared_by(gpu) == "time"
    why = refusal(rules, gpu, result.device) or (rules.why_not_shared(gpu) if shared else "")
    if why:
        raise ClaimRefused(
            f"{claim} does not get {result.device} of {gpu.title}, which is not offered any "
            f"more: {why}",
            remedy=f"have its pods scheduled again: {claim.schedule_anew}",
        )
    if shared and result.consumed and by_turns is bool(result.consumed.clients):
        raise ClaimRefused(
            f"{claim} was allocated a share of {gpu.title} when claims shared it in another way, "
            "by MPS or by turns",
            remedy=f"have its pods scheduled again: {claim.schedule_anew}",
        )
    wanted = result.configuration
    fits = wanted in (None, TimeSlice.DEFAULT) if by_turns else not isinstance(wanted, TimeSlice)
    if shared and not fits:
        found = "timeSlice" if isinstance(wanted, TimeSlice) else "mps"
        way = "by turns of one length" if by_turns else "by MPS"
        raise ClaimRefused(
            f"{claim}: request {result.request} requests {found} on a share of {gpu.title}, which "
            f"claims share {way}",
            remedy=f"drop {found} from spec.devices.config of the claim or its template, or from "
            f"its DeviceClass, or request the whole GPU (without capacity); {claim.show} has it, "
            "with its source, in status.allocation.devices.config",
        )
    fixed = rules.is_fixed(result.device) and (by_turns or not shared)
    if fixed and wanted is not None:
        raise ClaimRefused(
            f"{claim} says how {result.device} of {gpu.title} is shared, which the plan does",
            remedy="drop the configuration from spec.devices.config of the claim or its "
            "template, or from its DeviceClass, or share the device by the plan; "
            f"{claim.show} has it, with its source, in status.allocation.devices.config",
        )
    return fixed


def require_admission(
    record: ClaimRecord,
    gpu: Gpu,
    others: Collection[ClaimRecord],
    unreadable: Iterable[UnreadableRecord],
) -> None:
    """Raise NodeagentError, with the claim or record that is in the way, unless it may."""
    for one in unreadable:
        if one.concerns(gpu.uuid):
            raise NodeagentError(one.message, remedy=one.remedy)
    for other in others:
        if device := _common(record, other):
            made_anew = record.reference == other.reference
            holder = f"the earlier {other.title}" if made_anew else other.title
            raise ClaimHeldUp(
                f"{record.title} was allocated a device that is held: {device} of {holder}",
                remedy=f"wait until the pods of {holder} have ended, or have this one's "
                f"scheduled again: {record.reference.schedule_anew}",
            )
        users = _mps_user(record, gpu.uuid), _mps_user(other, gpu.uuid)
        if all(users) and len(set(users)) > 1:
            raise ClaimHeldUp(
                f"{record.title} wants MPS as user {users[0]} on {gpu.title}, where it runs as "
                f"user {users[1]} for {other.title}: one GPU has clients of one user",
                remedy=_one_class("with the same mps.user", other),
            )
        ways = {device.mps is None for one in (record, other) for device in _shares(one, gpu.uuid)}
        if len(ways) > 1:
            raise ClaimHeldUp(
                f"{record.title} was allocated a share of {gpu.title} while {other.title} has one "
                "that is shared in another way, by MPS or by turns",
                remedy=f"wait until the pods of {other.title} have ended",
            )
        daemons = _daemon_of_share(record, gpu.uuid), _daemon_of_share(other, gpu.uuid)
        if all(daemons) and len(set(daemons)) > 1:
            raise ClaimHeldUp(
                f"{record.title} wants a share of {gpu.title} with another enforce, or with other "
                f"groups, than {other.title} has: all shares of a GPU have one MPS daemon",
                remedy=_one_class("with the same mps.enforce and groups", other),
            )
    _require_room(record, gpu, others)
    user = _mps_user(record, gpu.uuid)
    if user and record.phase is RecordPhase.INTENT:  # a plan that came later does not end it
        _require_user_of_plan(record, gpu, user)


def _require_room(record: ClaimRecord, gpu: Gpu, others: Iterable[ClaimRecord]) -> None:
    """Its shares and those of others, as they were consumed, have to be there together."""
    mine = record.consumed_on(gpu.uuid)
    theirs = [(other, one) for other in others for one in other.consumed_on(gpu.uuid)]
    over = excess(gpu.memory, (*mine, *(one for _, one in theirs))) if mine else None
    if over:
        holders = "; ".join(f"{other.title} has {one}" for other, one in theirs)
        raise ClaimHeldUp(
            f"{record.title} was allocated {' and '.join(map(str, mine))} of {gpu.title}, {over} "
            f"more than is free: {holders or 'it has no more'}",
            remedy="wait until pods of these claims have ended, or have this one's scheduled "
            f"again: {record.reference.schedule_anew}",
        )


def _one_class(alike: str, other: ClaimRecord) -> str:
    """The remedy where two claims differ in what only a DeviceClass says."""
    return (
        f"name a DeviceClass {alike} in spec.devices.requests of both claims or their templates "
        f"({CLASSES} lists them), or wait until the pods of {other.title} have ended"
    )


def _require_user_of_plan(record: ClaimRecord, gpu: Gpu, user: str) -> None:
    """The daemons of other claims there run as this `user`; any other daemon is the plan's."""
    for daemon in (device.mps for device in gpu.devices() if device.mps):
        theirs = _user(daemon.runs.account)
        if theirs != user:
            path = daemon.runs.path or "the plan"
            raise ClaimRefused(
                f"{record.title} wants MPS as user {user} on {gpu.title}, where it runs as user "
                f"{theirs} for {path}: one GPU has clients of one user",
                remedy=f"name a DeviceClass with mps.user {theirs} in spec.devices.requests of the "
                f"claim or its template ({CLASSES} lists them), or write user: {user} at {path}",
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


def _daemon_of_share(record: ClaimRecord, gpu: str) -> tuple[Account, str] | None:
    """Account and `enforce` of the daemon of its share of the GPU with that UUID."""
    found = (device.mps for device in _shares(record, gpu) if device.mps)
    return next(((mps.account, mps.sharing.enforce) for mps in found), None)


def _shares(record: ClaimRecord, gpu: str) -> tuple[ClaimedDevice, ...]:
    return tuple(device for device in record.devices if device.shared and device.gpu == gpu)


def _user(account: Account) -> str:
    return ANY_USER if account.any_user else str(account.uid)
