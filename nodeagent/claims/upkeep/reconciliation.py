"""What is to be done for each claim, from all that was read at one moment. Pure.

After a start, and every minute: records, hardware, CDI files, the kubelet's allocations and the
claims at the API server are brought together. What no record has is never destroyed. A claim is
released only when it is gone, deallocated or allocated anew, or when the kubelet asked for it, and
when its devices have no users; not knowing counts as use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, assert_never

from nodeagent.claims import model
from nodeagent.claims.outcomes import usage_of
from nodeagent.claims.parts import daemon_of, daemon_of_part, instance_of
from nodeagent.mps.lifecycle.model import DaemonPhase
from nodeagent.plan.observed import Gpu, GpuInstance, ObservedNode, Placement
from nodeagent.plan.problems import Code, Problem
from nodeagent.structs import Struct, field

if TYPE_CHECKING:
    from nodeagent.claims.records import UnreadableRecord


class Snapshot(Struct, frozen=True):
    """What is read of all claims at one moment. `claims` and `files` are by uid; a claim that is
    not in them is unknown, a file missing. `allocations` None: the kubelet did not answer.
    `planned` are GPU and placement of the instances that belong to a plan.
    """

    boot_id: str
    node: ObservedNode
    records: tuple[model.ClaimRecord, ...] = ()
    unreadable: tuple[UnreadableRecord, ...] = ()
    claims: Mapping[str, model.ClaimState] = field(default_factory=dict)
    files: Mapping[str, model.FileState] = field(default_factory=dict)
    allocations: tuple[model.Allocated, ...] | None = None
    planned: frozenset[tuple[str, Placement]] = frozenset()


class ClaimAction(StrEnum):
    """What is done for a claim. To repair is to make again what is gone, to verify the rest, and to
    write anew what differs.
    """

    LEAVE = "leave"
    REPAIR = "repair"
    RELEASE = "release"


class Decision(Struct, frozen=True):
    """`problem`: why a claim is left that is not as it should be."""

    action: ClaimAction
    problem: Problem | None = None


_LEAVE, _REPAIR, _RELEASE = map(Decision, ClaimAction)


def reconcile(snapshot: Snapshot) -> dict[str, Decision]:
    """Decide for each record that can be read; by uid."""
    return {record.uid: decision_of(record, snapshot) for record in snapshot.records}


def decision_of(record: model.ClaimRecord, snapshot: Snapshot) -> Decision:
    """Decide for one record of the snapshot's."""
    return _Claim(record, snapshot).decision()


def foreign_instances(snapshot: Snapshot) -> Iterator[Problem]:
    """Instances that neither a record nor a plan has: they are left alone. Where a record cannot be
    read, an instance may be that claim's.
    """
    held = [unreadable.gpus for unreadable in snapshot.unreadable]
    own = {
        (found.device.gpu, found.instance.id)
        for record in snapshot.records
        for found in _Claim(record, snapshot).found
        if found.instance is not None and found.is_there
    }
    for gpu in snapshot.node.gpus:
        if not gpu.answers or any(gpus is None or gpu.uuid in gpus for gpus in held):
            continue
        for instance in gpu.instances:
            known = (gpu.uuid, instance.id) in own
            if not known and (gpu.uuid, instance.placement) not in snapshot.planned:
                yield Problem.of(
                    Code.OWNED,
                    "unknownInstance",
                    gpu=gpu.uuid,
                    title=gpu.title,
                    instance=f"{instance.id} ({instance.profile} at {instance.placement})",
                    which=f"-i {gpu.index} -gi {instance.id}",
                )


# --- a device beside the hardware -----------------------------------------------------------------


class _Found(Struct, frozen=True):
    """A device on its `gpu`: it `is_there`, with its GPU instance if it has one; or that `instance`
    is in its place, and was not made for it; or it is missing. `unknown`: why that is not known;
    `lost`: nothing on the GPU works any more.
    """

    device: model.ClaimedDevice
    gpu: Gpu | None = None
    instance: GpuInstance | None = None
    is_there: bool = False
    unknown: str = ""
    lost: bool = False

    @property
    def is_missing(self) -> bool:
        return not (self.is_there or self.instance or self.unknown)


def _find(device: model.ClaimedDevice, snapshot: Snapshot, *, rebooted: bool) -> _Found:
    gpu = snapshot.node.gpu(device.gpu)
    if gpu is None or not gpu.answers:
        why = f"the driver does not list {device.gpu}"
        if gpu is not None:
            why = f"GPU {gpu.index} does not answer: {gpu.access_reason}"
        return _Found(device, gpu, unknown=why, lost=snapshot.node.has_lost(device.gpu))
    if device.placement is None:
        # The GPU as a whole is there outside MIG mode; in whatever mode for an administrator.
        if device.result.admin_access or not gpu.in_mig_mode:
            return _Found(device, gpu, is_there=True)
        return _Found(device, gpu, next(iter(gpu.instances), None))
    # Instances do not outlive the machine's start, and their ids are used again.
    own = None if device.is_made and rebooted else instance_of(device, gpu)
    if own is not None:
        return _Found(device, gpu, own, is_there=True)
    # What another claim's share of it was made with is this one's, too, once that is written down.
    now = [one for r in snapshot.records if r.boot_id == snapshot.boot_id for one in r.devices]
    theirs = [instance_of(one, gpu) for one in now if one.shares_with(device)]
    blockers = (i for i in gpu.instances if device.lies_on(i.placement) and i not in theirs)
    return _Found(device, gpu, next(blockers, None))


# --- one claim ------------------------------------------------------------------------------------


class _Claim:
    """A record beside all the rest."""

    def __init__(self, record: model.ClaimRecord, snapshot: Snapshot) -> None:
        self._record = record
        self._snapshot = snapshot
        self._rebooted = record.boot_id != snapshot.boot_id
        self.found = [_find(d, snapshot, rebooted=self._rebooted) for d in record.devices]

    def decision(self) -> Decision:
        end = self._end()
        needed = self.found
        if end:  # what an administrator only looks at gives nothing back
            needed = [one for one in needed if not one.device.result.admin_access]
            # A lost GPU has nothing of before a reboot, and does not hold up what is elsewhere.
            if self._rebooted or not all(one.lost for one in needed):
                needed = [one for one in needed if not one.lost]
        unknown = {one.unknown for one in needed if one.unknown}
        if unknown:
            title, why = self._record.title, "; ".join(sorted(unknown))
            problem = Problem.of(Code.GPU_UNKNOWN, "claimKept", claim=title, why=why)
            return Decision(ClaimAction.LEAVE, problem)
        if end:
            users = self._users()
            return self._left(f"{end}, but it is used by {users}") if users else _RELEASE
        for found in self.found:
            if found.instance and not found.is_there:
                blocker = found.instance
                where = f"GPU instance {blocker.id} ({blocker.profile} at {blocker.placement})"
                return self._left(f"{where} is in its place, and was not made for it")
        return (
            self._ready() if self._record.phase is model.RecordPhase.READY else self._unfinished()
        )

    def _left(self, why: str) -> Decision:
        problem = Problem.of(Code.IN_USE, "claimKept", claim=self._record.title, why=why)
        return Decision(ClaimAction.LEAVE, problem)

    def _end(self) -> str:
        """Return why the claim is over; "" while it is not, or that is not known."""
        if self._record.phase is model.RecordPhase.RELEASING:
            return "its release was begun"
        match self._snapshot.claims.get(self._record.uid, model.ClaimState.UNKNOWN):
            case model.ClaimState.GONE:
                return "the claim is gone"
            case model.ClaimState.DEALLOCATED:
                return "the claim is deallocated"
            case model.ClaimState.OTHER_RESULTS:
                return "the claim was allocated again"
            case model.ClaimState.SAME | model.ClaimState.UNKNOWN:
                return ""
            case other:
                assert_never(other)

    # --- one that goes on -----------------------------------------------------------------------

    def _unfinished(self) -> Decision:
        """The kubelet asks again, unless it was answered before: a claim that has a CDI file, or a
        pod with its devices, was ready once.
        """
        file = self._snapshot.files.get(self._record.uid, model.FileState.MISSING)
        keys = {result.key for result in self._record.results}
        runs = any(one.key in keys for one in self._allocations if self._is_own(one))
        if runs or file is not model.FileState.MISSING:
            return _REPAIR
        return self._left("it was not finished; the kubelet retries")

    def _ready(self) -> Decision:
        missing = [found.device for found in self.found if found.is_missing]
        planned = [d for d in missing if d.placement is not None and not d.is_made]
        if planned and planned == missing:
            return self._left(f"{planned[0].result.device} is not there; the plan makes it")
        is_whole = (
            not (missing or self._rebooted)
            and all(_is_intact(found) and self._is_served(found) for found in self.found)
            and self._snapshot.files.get(self._record.uid) is model.FileState.SAME
        )
        return _LEAVE if is_whole else _REPAIR

    def _is_served(self, found: _Found) -> bool:
        """Return whether it has the MPS daemon that it is to have, and that is Ready."""
        device = found.device
        wanted = device.mps
        if wanted is None or found.gpu is None:
            return True
        if device.daemon:
            wanted = daemon_of(device.gpu, self._snapshot.records)
        elif device.shared:
            records = self._snapshot.records
            wanted = daemon_of_part(device, [one for r in records for one in r.devices])
        daemon = next((d.mps for d in found.gpu.devices() if d.uuid == device.device_uuid), None)
        return daemon is not None and (daemon.runs, daemon.state) == (wanted, DaemonPhase.READY)

    # --- one that is over -----------------------------------------------------------------------

    def _users(self) -> str:
        """Return who uses the claim's devices; "" where there is no user.

        The claim's own allocation is one, also after its release was begun: while the kubelet lists
        the claim it asks again itself, or another pod has it by now.
        """
        if self._snapshot.allocations is None:
            return "unknown pods (the kubelet does not say)"
        own = {one for one in self._allocations if self._is_own(one)}
        others = {one for one in self._allocations if one not in own}
        keys = {device.result.key for device in self._record.devices}
        counted = own | {one for one in others if not self._is_administrators(one)}
        holders = {one for one in counted if one.key in keys}
        if holders:
            return ", ".join(sorted({str(one) for one in holders}))
        other_pods = {one.in_pod for one in others} - {one.in_pod for one in own}
        for found in self.found:
            if found.device.result.admin_access or not found.is_there or found.gpu is None:
                continue
            usage = usage_of(found.device, found.gpu)
            if found.device.shared:
                usage = usage.without(pods=other_pods)
            if usage.in_use:
                return str(usage)
        return ""

    @property
    def _allocations(self) -> tuple[model.Allocated, ...]:
        return self._snapshot.allocations or ()

    def _is_own(self, one: model.Allocated) -> bool:
        return (one.namespace, one.claim) == (self._record.namespace, self._record.name)

    def _is_administrators(self, one: model.Allocated) -> bool:
        """Monitors may have what others use, and do not hold it up."""
        return any(
            (one.namespace, one.claim, one.key) == (record.namespace, record.name, result.key)
            for record in self._snapshot.records
            for result in record.results
            if result.admin_access
        )


def _is_intact(found: _Found) -> bool:
    """Return whether the compute instance in it is the one that was made."""
    if found.instance is None or not found.device.uuid:
        return True
    return any(compute.uuid == found.device.uuid for compute in found.instance.compute)
