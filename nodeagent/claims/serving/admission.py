"""What a claim's allocation comes to on this node's GPUs, and whether it may have that beside the
other claims of a GPU.

The scheduler says what a claim gets. That is not taken at its word: it may have allocated what was
offered a moment ago and is not any more, schedulers race, and a force-deleted pod frees a device
before its containers have stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

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
from nodeagent.claims.names import DevicePlace, GpuShare, locate
from nodeagent.claims.offering.gpu_rules import GpuRules, refusal
from nodeagent.claims.serving.cdi import device_id
from nodeagent.claims.serving.daemons import ClaimDaemons
from nodeagent.errors import NodeagentError, Transient, UnknownDevice
from nodeagent.plan.desired import MpsEntry
from nodeagent.plan.observed import Access, Gpu, ObservedNode
from nodeagent.plan.shares import ANY_USER, Account

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
        gpu, part = located.gpu, located.part
        if gpu.access is not Access.OK:
            raise Transient(
                f"{claim} has to wait: {gpu.title} does not answer: {gpu.access_reason}",
                remedy=f"`nodeagent status --gpu {gpu.index}` shows what is wrong with it",
            )
        fixed = admit(rules(gpu), result, gpu, claim)
        place = part if isinstance(part, DevicePlace) else None
        profile, mps = place.profile if place else None, None
        entry = result.configuration if isinstance(result.configuration, MpsEntry) else None
        if isinstance(part, GpuShare):
            mps = daemons.wanted_share(entry, gpu, part, claim)
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
        )

    devices = tuple(map(device, results))
    return ClaimRecord(uid, claim.namespace, claim.name, RecordPhase.INTENT, boot_id, devices)


def admit(rules: GpuRules, result: Result, gpu: Gpu, claim: ClaimReference) -> bool:
    """Whether the claim has a device that is fixed. Raises ClaimRefused where it may not have
    it; an administrator may look at any.
    """
    if result.admin_access:
        return False
    if why := refusal(rules, gpu, result.device):
        raise ClaimRefused(
            f"{claim} does not get {result.device} of {gpu.title}, which is not offered any "
            f"more: {why}",
            remedy=f"have its pods scheduled again: {claim.schedule_anew}",
        )
    fixed = rules.is_fixed(result.device)
    if fixed and result.configuration is not None:
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
    others: Iterable[ClaimRecord],
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
        daemons = _daemon_of_share(record, gpu.uuid), _daemon_of_share(other, gpu.uuid)
        if all(daemons) and len(set(daemons)) > 1:
            raise ClaimHeldUp(
                f"{record.title} wants a share of {gpu.title} with another enforce, or with other "
                f"groups, than {other.title} has: all shares of a GPU have one MPS daemon",
                remedy=_one_class("with the same mps.enforce and groups", other),
            )
    user = _mps_user(record, gpu.uuid)
    if user and record.phase is RecordPhase.INTENT:  # a plan that came later does not end it
        _require_user_of_plan(record, gpu, user)


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
    shares = (device for device in record.devices if device.share and device.gpu == gpu)
    found = (one.mps for one in shares if one.mps)
    return next(((mps.account, mps.sharing.enforce) for mps in found), None)


def _user(account: Account) -> str:
    return ANY_USER if account.any_user else str(account.uid)
