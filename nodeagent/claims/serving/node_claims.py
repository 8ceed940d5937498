"""The claims of this node: prepared, verified and released, every change written ahead.

A claim is a goal of its GPUs like a plan's: the planner decides, the executor changes and reads
back. What a crash leaves is found again by its record, and the kubelet, which repeats each call
until it succeeds, finishes it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

from nodeagent.claims.files.cdi import claim_of, file_name, stale
from nodeagent.claims.files.cdi_files import file_names, withdraw
from nodeagent.claims.files.claim_files import Capabilities, ClaimFiles
from nodeagent.claims.files.records import (
    UnreadableRecord,
    read_records,
    remove_record,
    remove_unfinished,
    write_record,
)
from nodeagent.claims.goals import to_prepare, to_release, unchanged
from nodeagent.claims.model import ClaimAllocation, ClaimedDevice, ClaimHeldUp, ClaimRecord, Phase
from nodeagent.claims.offering.gpu_rules import GpuRules
from nodeagent.claims.offering.planned import beside_records
from nodeagent.claims.reporting.claim_pods import ClaimPods
from nodeagent.claims.serving.admission import require_admission
from nodeagent.claims.serving.allocation import read_allocation
from nodeagent.claims.serving.daemons import ClaimDaemons
from nodeagent.claims.serving.intent import intended
from nodeagent.claims.serving.making import (
    begun,
    is_taken_out,
    require_lasting_unused,
    require_there,
    with_instances,
    without_ids,
)
from nodeagent.claims.serving.outcomes import require_daemons, require_done
from nodeagent.claims.upkeep.claim_state import read_state
from nodeagent.claims.upkeep.decisions import (
    Adopt,
    ClaimState,
    Decision,
    FinishRelease,
    HoldBack,
    Keep,
    Repair,
    ReportForeign,
)
from nodeagent.errors import NodeagentError, StillInUse
from nodeagent.files.cdi import Edits
from nodeagent.plan.desired import DesiredGpu
from nodeagent.plan.observed import Gpu, ObservedNode
from nodeagent.plan.plan import GpuOutcome
from nodeagent.plan.planner import plan_gpu
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.owner import Expected, GpuOwners, Part
from nodeagent.structs import replace
from nodeagent.uncancelled import uncancelled

Fetch = Callable[[str, str], Awaitable[object | None]]
"""The ResourceClaim of this namespace and name, None where there is none."""


@dataclass(frozen=True, slots=True)
class ClaimPlaces:
    """Where claims are kept and published. `boot_id`: this start of the machine."""

    node: str
    boot_id: str
    records: Path
    cdi_dir: Path


class NodeClaims:
    """Every method that changes something may be called again, and side by side for other claims.

    `owners`, `fetch`, `capabilities` and `toolkit` (what each container needs; blocks) are its
    borders; `observe` reads the node, `daemons` says what its MPS is, and `rules` what of a
    GPU as observed claims may have. With `nvidia` configurations of NVIDIA's driver are honoured.
    `pods` are those of all claims, as far as others observe them.
    """

    def __init__(
        self,
        places: ClaimPlaces,
        *,
        owners: GpuOwners,
        fetch: Fetch,
        observe: Callable[[], Awaitable[ObservedNode]],
        capabilities: Capabilities,
        toolkit: Callable[[], Edits],
        daemons: ClaimDaemons,
        rules: Callable[[Gpu], GpuRules] = lambda _: GpuRules(),
        nvidia: bool = False,
    ) -> None:
        self.places = places
        self.pods = ClaimPods()
        self._rules = rules
        self._nvidia = nvidia
        self._owners = owners
        self.fetch = fetch
        self.observe = observe
        self._daemons = daemons
        self.files = ClaimFiles(places.cdi_dir, capabilities, toolkit, daemons)
        self._records: dict[str, ClaimRecord] = {}
        self.unreadable: tuple[UnreadableRecord, ...] = ()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def load(self) -> None:
        """Read the records. Raises nothing: what cannot be read holds back its GPUs."""
        folder = self.places.records
        await asyncio.to_thread(remove_unfinished, folder)
        found = await asyncio.to_thread(read_records, folder)
        self._records = {one.uid: one for one in found if isinstance(one, ClaimRecord)}
        self.unreadable = tuple(one for one in found if isinstance(one, UnreadableRecord))

    async def reread(self) -> None:
        """Read again what could not be read: a person may have mended or removed it by now."""
        waiting = {one.uid for one in self.unreadable}
        if not waiting:
            return
        found = await asyncio.to_thread(read_records, self.places.records)
        self.unreadable = tuple(one for one in found if isinstance(one, UnreadableRecord))
        for one in found:
            if isinstance(one, ClaimRecord) and not waiting.isdisjoint((one.uid, "")):
                self._records.setdefault(one.uid, one)

    @property
    def records(self) -> tuple[ClaimRecord, ...]:
        return tuple(self._records.values())

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Records that cannot be used."""
        return tuple(Problem.from_error(Code.STATE_FILE, u) for u in self.unreadable)

    def beside(self, goal: DesiredGpu, gpu: Gpu) -> DesiredGpu:
        """A plan's goal of the GPU beside what claims have there."""
        return beside_records(goal, gpu, self.records, self.unreadable)

    # --- what the kubelet asks for ----------------------------------------------------------------

    async def prepare(self, namespace: str, name: str, uid: str) -> tuple[ClaimedDevice, ...]:
        """Make the claim's devices, or verify them, and publish its CDI file.

        Raises NodeagentError, and goes on from where it was when it is called again.
        """
        async with self._turn(uid):
            found = await self.fetch(namespace, name)
            if found is None:
                raise ClaimHeldUp(
                    f"claim {namespace}/{name} is gone",
                    remedy="its pods are created again with it; "
                    f"`kubectl get pods -n {namespace}` shows them",
                )
            record = self._records.get(uid)
            state = await asyncio.to_thread(read_state, found, record) if record else None
            if record is None or state is not ClaimState.SAME:
                allocation = await asyncio.to_thread(
                    read_allocation,
                    found,
                    namespace=namespace,
                    name=name,
                    uid=uid,
                    nvidia=self._nvidia,
                )
                if record is not None:
                    await self._take_down(record)
                self._refuse_unreadable(uid)
                record = await self._intent(allocation)
            record = await self._make(record)
            await self._publish(record)
            return record.devices

    async def release(self, uid: str) -> None:
        """Take down what the claim has; nothing where there is no record of it.

        Raises NodeagentError while it is used, or when a step fails; it is repeated then.
        """
        async with self._turn(uid):
            record = self._records.get(uid)
            if record is not None:
                await self._take_down(record)
            else:
                self._refuse_unreadable(uid)

    def _turn(self, uid: str) -> asyncio.Lock:
        """One change at a time of each claim."""
        return self._turns.setdefault(uid, asyncio.Lock())

    def _refuse_unreadable(self, uid: str) -> None:
        for one in self.unreadable:
            if one.uid in (uid, ""):
                raise NodeagentError(one.message, remedy=one.remedy)

    # --- what is found to be amiss ----------------------------------------------------------------

    async def mend(
        self, uid: str, decide: Callable[[ClaimRecord], Awaitable[Decision]]
    ) -> Decision:
        """Carry out what `decide` says of the record as it is in the claim's turn.

        Raises NodeagentError as `prepare` and `release` do.
        """
        async with self._turn(uid):
            record = self._records.get(uid)
            if record is None:  # released meanwhile
                return Keep(uid)
            match decision := await decide(record):
                case Repair():
                    await self._publish(await self._make(record))
                case Adopt():
                    await self._adopt(record)
                case FinishRelease():
                    await self._take_down(record)
                case Keep() | HoldBack() | ReportForeign():
                    pass
            return decision

    async def _adopt(self, record: ClaimRecord) -> None:
        """Write down the ids of what was made, as read in the GPU's turn; nothing is changed."""

        async def note(gpu: Gpu) -> DesiredGpu:
            await self._keep(with_instances(self._records[record.uid], gpu))
            return unchanged(gpu, record.title)

        for uuid in sorted(record.gpus):
            await self._owners.settle(Part(uuid, note))

    async def sweep(self) -> None:
        """Delete the CDI files that no record stands for. Raises PathRefused."""
        directory = self.places.cdi_dir
        names = await asyncio.to_thread(file_names, directory)
        for name in stale(names, (*self.records, *self.unreadable)):
            async with self._turn(claim_of(name) or ""):  # it may be being written
                again = stale([name], (*self.records, *self.unreadable))
                await asyncio.to_thread(withdraw, directory, again)

    # --- up ---------------------------------------------------------------------------------------

    async def _intent(self, allocation: ClaimAllocation) -> ClaimRecord:
        """What is going to be made; not written before its GPUs' turns."""
        observed, places = await self.observe(), self.places
        return await asyncio.to_thread(
            intended,
            allocation,
            observed,
            self._daemons,
            rules=self._rules,
            node=places.node,
            boot_id=places.boot_id,
        )

    async def _make(self, record: ClaimRecord) -> ClaimRecord:
        """GPU after GPU; the record has at each moment what may have been made."""
        uuids = sorted(record.gpus)
        for uuid in uuids:

            async def admit(gpu: Gpu, asked: ClaimRecord = record) -> DesiredGpu:
                return await self._admit(asked, gpu)

            outcome = await self._owners.settle(Part(uuid, admit, Expected.CREATION))
            require_done(outcome, record)
            record = with_instances(self._records[record.uid], outcome.after)
            try:
                require_there(record, outcome.after)
                require_daemons(outcome, record)
                if uuid == uuids[-1] and record.phase is Phase.INTENT:
                    record = replace(record, phase=Phase.MADE)
            finally:  # once, since each write waits for the disk twice
                await self._keep(record)
        return record

    async def _admit(self, asked: ClaimRecord, gpu: Gpu) -> DesiredGpu:
        """In the GPU's turn: refuse what another claim has, and write ahead."""
        record = self._records.get(asked.uid, asked)
        others = [one for one in self._records.values() if one.uid != record.uid]
        require_admission(record, gpu, others, self.unreadable)
        record = begun(record, gpu, self.places.boot_id)
        await self._keep(record)
        return to_prepare(record, gpu, others)

    async def _publish(self, record: ClaimRecord) -> None:
        observed = await self.observe()
        await uncancelled(asyncio.to_thread(self.files.publish, record, observed))
        await self._keep(replace(record, phase=Phase.READY))

    # --- down -------------------------------------------------------------------------------------

    async def _take_down(self, record: ClaimRecord) -> None:
        """The instances that are proven to be the claim's, its CDI file, its record."""
        record = replace(record, phase=Phase.RELEASING)
        await self._keep(record)

        # An administrator only looks at what it has: nothing of that goes.
        uuids = sorted({d.gpu for d in record.devices if not d.result.admin_access})
        # What is refused on one GPU is not begun on another: a pod may have the claim all the same.
        for uuid in uuids if len(uuids) > 1 else ():
            await self._dismiss(record, uuid, only_looks=True)
        try:
            for uuid in uuids:
                await self._dismiss(record, uuid)
                # Whatever comes in its place now is not its, and has its ids as a rule.
                record = without_ids(record, uuid)
            await uncancelled(self._forget(record))
        except NodeagentError:
            await self._keep(record)
            raise

    async def _forget(self, record: ClaimRecord) -> None:
        await asyncio.to_thread(withdraw, self.places.cdi_dir, [file_name(record.uid)])
        await asyncio.to_thread(remove_record, self.places.records, record.uid)
        del self._records[record.uid]

    async def _dismiss(self, record: ClaimRecord, uuid: str, *, only_looks: bool = False) -> None:
        """What the claim has on one GPU; with `only_looks`, raise what forbids that now."""
        if record.boot_id != self.places.boot_id and is_taken_out(uuid, await self.observe()):
            return

        async def goal(gpu: Gpu) -> DesiredGpu:
            dismissed = self._dismissed(record, gpu)
            if not only_looks:
                return dismissed
            plan = plan_gpu(dismissed, gpu)
            if not plan.steps:
                require_done(GpuOutcome(plan, (), gpu), record)
            return unchanged(gpu, dismissed.path)

        here = [device for device in record.devices if device.gpu == uuid]
        is_shared = any(device.mps for device in here)
        removes = all(device.is_made for device in here) and not (is_shared or only_looks)
        part = Part(uuid, goal, Expected.REMOVAL if removes else Expected.ANYTHING)
        try:
            require_done(await self._owners.settle(part), record)
        except StillInUse:
            if not is_shared:
                raise
            await self._daemons.poll()  # clients that have just ended are known until they answer
            require_done(await self._owners.settle(part), record)

    def _dismissed(self, record: ClaimRecord, gpu: Gpu) -> DesiredGpu:
        others = [one for one in self._records.values() if one.uid != record.uid]
        other_pods = self.pods.names(*others) - self.pods.names(record)
        require_lasting_unused(record, gpu, other_pods)
        if record.boot_id != self.places.boot_id:  # what is there was not made for it
            record = without_ids(record)
        return to_release(record, gpu, others)

    async def _keep(self, record: ClaimRecord) -> None:
        """On the disk first: what is not written down is not begun. Work that is cancelled (the
        kubelet's directory went, say) ends with its write, and not before: the next would meet it.
        """
        if self._records.get(record.uid) != record:
            await uncancelled(self._write(replace(record, since=time.time())))

    async def _write(self, record: ClaimRecord) -> None:
        await asyncio.to_thread(write_record, self.places.records, record)
        self._records[record.uid] = record
