"""What is to be done for each claim, from all that was read at one moment. Pure.

After a start, and every minute: records, hardware, CDI files, the kubelet's allocations and the
claims at the API server are brought together. What no record has is never destroyed. A claim is
released only when it is gone, deallocated or allocated anew, or when the kubelet asked for it, and
when its devices have no users; not knowing counts as use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import assert_never

from nodeagent.claims.goals import daemon_of_shares
from nodeagent.claims.model import ClaimedDevice, ClaimRecord, FileState, Phase
from nodeagent.claims.serving.making import is_taken_out
from nodeagent.claims.upkeep.decisions import (
    Adopt,
    Allocated,
    ClaimState,
    Decision,
    FinishRelease,
    HoldBack,
    Keep,
    Repair,
    ReportForeign,
    Snapshot,
)
from nodeagent.mps.lifecycle.model import Phase as DaemonPhase
from nodeagent.plan.mps_users import as_used
from nodeagent.plan.observed import Access, Gpu, GpuInstance
from nodeagent.plan.users import IDLE, Usage


def reconcile(snapshot: Snapshot) -> tuple[Decision, ...]:
    """One decision for each record, readable or not; then the foreign instances."""
    held = [HoldBack(one.uid, one.reason) for one in snapshot.unreadable]
    claims = [_Claim(record, snapshot) for record in snapshot.records]
    return *held, *(claim.decision() for claim in claims), *_foreign(snapshot, claims)


def reconcile_claim(record: ClaimRecord, snapshot: Snapshot) -> Decision:
    """That of one record of the snapshot's."""
    return _Claim(record, snapshot).decision()


def _foreign(snapshot: Snapshot, claims: Iterable[_Claim]) -> Iterator[ReportForeign]:
    """Where a record cannot be read, an instance may be that claim's."""
    held = [one.gpus for one in snapshot.unreadable]
    own = {
        (device.gpu, found.instance.id)
        for claim in claims
        for device, found in claim.found
        if isinstance(found, _Present) and found.instance is not None
    }
    for gpu in snapshot.node.gpus:
        if gpu.access is not Access.OK or any(gpus is None or gpu.uuid in gpus for gpus in held):
            continue
        for instance in gpu.instances:
            known = (gpu.uuid, instance.id) in own
            if not known and (gpu.uuid, instance.placement) not in snapshot.planned:
                yield ReportForeign(gpu.uuid, instance)


# --- a device beside the hardware -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Present:
    """It is there: its GPU instance, None for a GPU as a whole or a share of it."""

    gpu: Gpu
    instance: GpuInstance | None = None


@dataclass(frozen=True, slots=True)
class _Missing:
    """Its place is empty."""


@dataclass(frozen=True, slots=True)
class _InTheWay:
    """Its place has an instance that was not made for it."""

    instance: GpuInstance


@dataclass(frozen=True, slots=True)
class _NotKnown:
    """The driver does not say."""

    why: str


_Found = _Present | _Missing | _InTheWay | _NotKnown


def _find(device: ClaimedDevice, snapshot: Snapshot, *, rebooted: bool) -> _Found:
    gpu = snapshot.node.gpu(device.gpu)
    if gpu is None:
        if rebooted and is_taken_out(device.gpu, snapshot.node):
            return _Missing()
        return _NotKnown(f"the driver does not list {device.gpu}")
    if gpu.access is not Access.OK:
        return _NotKnown(f"GPU {gpu.index} does not answer: {gpu.access_reason}")
    if device.placement is None:
        return _find_whole(device, gpu)
    mask = device.placement.mask
    there = [i for i in gpu.instances if i.placement.mask & mask]
    alike = [i for i in there if (i.profile, i.placement) == (device.profile, device.placement)]
    if not there:
        return _Missing()
    # Instances do not outlive the machine's start, and their ids are used again.
    if not alike or (device.is_made and (rebooted or not device.was_made_as(alike[0]))):
        return _InTheWay((alike or there)[0])
    return _Present(gpu, alike[0])


def _find_whole(device: ClaimedDevice, gpu: Gpu) -> _Found:
    """The GPU as a whole is there outside MIG mode; in whatever mode for an administrator."""
    if device.result.admin_access or not gpu.in_mig_mode:
        return _Present(gpu)
    return _InTheWay(gpu.instances[0]) if gpu.instances else _Missing()


# --- one claim ------------------------------------------------------------------------------------


class _Claim:
    """A record beside all the rest."""

    def __init__(self, record: ClaimRecord, snapshot: Snapshot) -> None:
        self._record = record
        self._snapshot = snapshot
        self._rebooted = record.boot_id != snapshot.boot_id
        self.found = [
            (device, _find(device, snapshot, rebooted=self._rebooted)) for device in record.devices
        ]

    def decision(self) -> Decision:
        uid, end = self._record.uid, self._end()
        unknown = {  # what an administrator only looks at gives nothing back in the end
            found.why
            for device, found in self.found
            if isinstance(found, _NotKnown) and not (end and device.result.admin_access)
        }
        if unknown:
            return HoldBack(uid, "; ".join(sorted(unknown)))
        if end and (users := self._users()):
            return Keep(uid, f"{end}, but it is used by {users}")
        if end:
            return FinishRelease(uid)
        for _, found in self.found:
            if isinstance(found, _InTheWay):
                one = found.instance
                where = f"GPU instance {one.id} ({one.profile} at {one.placement})"
                return Keep(uid, f"{where} is in its place, and was not made for it")
        return self._ready() if self._record.phase is Phase.READY else self._unfinished()

    def _end(self) -> str:
        """Why the claim is over; "" while it is not, or that is not known."""
        if self._record.phase is Phase.RELEASING:
            return "its release was begun"
        match self._snapshot.claims.get(self._record.uid, ClaimState.UNKNOWN):
            case ClaimState.GONE:
                return "the claim is gone"
            case ClaimState.DEALLOCATED:
                return "the claim is deallocated"
            case ClaimState.OTHER_RESULTS:
                return "the claim was allocated again"
            case ClaimState.SAME | ClaimState.UNKNOWN:
                return ""
            case other:
                assert_never(other)

    # --- one that goes on -----------------------------------------------------------------------

    def _unfinished(self) -> Decision:
        """What a crash left is not lost. The kubelet asks again, unless it was answered before: a
        claim that has a CDI file, or a pod with its devices, was ready once.
        """
        file = self._snapshot.files.get(self._record.uid, FileState.MISSING)
        keys = {result.key for result in self._record.results}
        allocations = self._snapshot.allocations or ()
        runs = any(one.key in keys for one in allocations if self._is_own(one))
        if runs or file is not FileState.MISSING:
            return Repair(self._record.uid)
        unwritten = (f for device, f in self.found if device.is_made and device.instance is None)
        if any(isinstance(found, _Present) for found in unwritten):
            return Adopt(self._record.uid)
        return Keep(self._record.uid, "it was not finished; the kubelet retries")

    def _ready(self) -> Decision:
        uid = self._record.uid
        missing = [device for device, found in self.found if isinstance(found, _Missing)]
        planned = [d for d in missing if d.placement is not None and not d.is_made]
        if planned and planned == missing:
            return Keep(uid, f"{planned[0].result.device} is not there; the plan makes it")
        is_whole = (
            not (missing or self._rebooted)
            and all(_is_intact(device, found) for device, found in self.found)
            and all(self._is_served(device, found) for device, found in self.found)
            and self._snapshot.files.get(uid) is FileState.SAME
        )
        return Keep(uid) if is_whole else Repair(uid)

    def _is_served(self, device: ClaimedDevice, found: _Found) -> bool:
        """Whether it has the MPS daemon that it is to have, and that is Ready."""
        wanted = device.mps
        if wanted is None or not isinstance(found, _Present):
            return True
        if device.share:
            wanted = daemon_of_shares(device.gpu, self._snapshot.records)
        daemon = next((d.mps for d in found.gpu.devices() if d.uuid == device.device_uuid), None)
        return daemon is not None and (daemon.runs, daemon.state) == (wanted, DaemonPhase.READY)

    # --- one that is over -----------------------------------------------------------------------

    def _users(self) -> str:
        """Who uses the claim's devices; "" where there is no user.

        The claim's own allocation is one, also after its release was begun: while the kubelet lists
        the claim it asks again itself, or another pod has it by now.
        """
        allocations = self._snapshot.allocations
        if allocations is None:
            return "unknown pods (the kubelet does not say)"
        own = {one for one in allocations if self._is_own(one)}
        others = {one for one in allocations if one not in own}
        keys = {device.result.key for device in self._record.devices}
        counted = own | {one for one in others if not self._is_administrators(one)}
        holders = {one for one in counted if one.key in keys}
        if holders:
            return ", ".join(sorted({str(one) for one in holders}))
        own_pods = {(one.namespace, one.pod) for one in own}
        other_pods = {(one.namespace, one.pod) for one in others} - own_pods
        for device, found in self.found:
            passed_over = other_pods if device.share else set()
            usage = _usage(device, found)
            users = tuple(
                user for user in usage.processes if (user.namespace, user.pod) not in passed_over
            )
            if users or not usage.known:
                return str(Usage(users, usage.known, usage.reason))
        return ""

    def _is_own(self, one: Allocated) -> bool:
        return (one.namespace, one.claim) == (self._record.namespace, self._record.name)

    def _is_administrators(self, one: Allocated) -> bool:
        """Monitors may have what others use, and do not hold it up."""
        return any(
            (one.namespace, one.claim, one.key) == (record.namespace, record.name, result.key)
            for record in self._snapshot.records
            for result in record.results
            if result.admin_access
        )


def _usage(device: ClaimedDevice, found: _Found) -> Usage:
    """Of a MIG device, or of all that is on a GPU. A process on the GPU of which no instance is
    known may be on any.
    """
    if device.result.admin_access or not isinstance(found, _Present):
        return IDLE
    gpu = as_used(found.gpu)
    usage = gpu.usage
    for instance in gpu.instances:
        if found.instance is None or instance.id == found.instance.id:
            for one in instance.compute:
                usage = usage.together(one.usage)
    return usage


def _is_intact(device: ClaimedDevice, found: _Found) -> bool:
    """Whether the compute instance in it is the one that was made."""
    if not isinstance(found, _Present) or found.instance is None or not device.uuid:
        return True
    return any(one.uuid == device.uuid for one in found.instance.compute)
