"""The claims of this node: prepared, verified and released, every change written ahead.

A claim is a part of its GPUs, as the plan is: its record is written, the GPU's owner settles the
part, and what came of it is written down. What a crash leaves is found again by its record, and the
kubelet, which repeats each call until it succeeds, finishes it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

from nodeagent.claims import model, parts
from nodeagent.claims.offering.gpu_rules import GpuRules
from nodeagent.claims.outcomes import require_done, require_lasting_unused, require_ready
from nodeagent.claims.records import RecordStore, UnreadableRecord
from nodeagent.claims.serving.admission import intended, joined, require_admission
from nodeagent.claims.serving.allocation import read_allocation, read_state
from nodeagent.claims.serving.cdi import ClaimFiles, claim_of, file_name, stale
from nodeagent.claims.serving.claim_object import ClaimObject
from nodeagent.claims.serving.claim_pods import ClaimPods
from nodeagent.claims.serving.containers import on_one_daemon, refuse_conflicts
from nodeagent.claims.serving.pod_object import PodObject
from nodeagent.errors import NodeagentError, StillInUse
from nodeagent.plan.desired import DesiredGpu
from nodeagent.plan.observed import Gpu, ObservedNode
from nodeagent.reconcile.owner import Expected, GpuOwners, Part
from nodeagent.structs import Struct, replace
from nodeagent.waiting import uncancelled

Fetch = Callable[[str, str], Awaitable[ClaimObject | None]]
"""The ResourceClaim of this namespace and name, None where there is none."""
FetchPod = Callable[[str, str], Awaitable[PodObject | None]]
"""The pod of this namespace and name, None where there is none, or none that may be read."""
MAX_PODS: Final = 16  # that are read before a claim is prepared; it is reserved for 256 at most


class ClaimPlaces(Struct, frozen=True):
    """Where claims are kept. `boot_id`: this start of the machine."""

    node: str
    boot_id: str
    records: Path


class NodeClaims:
    """Every method that changes something may be called again, and side by side for other claims.

    `owners`, `fetch`, `fetch_pod` and `files` are its borders; `observe` reads the node, and
    `rules` says what of a GPU as observed claims may have. With `nvidia` configurations of NVIDIA's
    driver are honoured. `pods` are those of all claims, as far as others observe them.
    """

    def __init__(
        self,
        places: ClaimPlaces,
        *,
        owners: GpuOwners,
        fetch: Fetch,
        fetch_pod: FetchPod,
        observe: Callable[[], Awaitable[ObservedNode]],
        files: ClaimFiles,
        rules: Callable[[Gpu], GpuRules] = lambda _: GpuRules(),
        nvidia: bool = False,
    ) -> None:
        self.places = places
        self.store = RecordStore(places.records)
        self.pods = ClaimPods()
        self._rules = rules
        self._nvidia = nvidia
        self._owners = owners
        self.fetch = fetch
        self.fetch_pod = fetch_pod
        self._coming: dict[str, model.ClaimRecord] = {}  # by uid, until they are in the store
        self.observe = observe
        self.files = files
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def lock(self, uid: str) -> asyncio.Lock:
        """The lock of the claim, held during each change of it; by a GPU's UUID that of its shares,
        held from the release of one until its record is gone; by "" that of all, held from the
        admission of one until its record is there: some have several GPUs.
        """
        return self._locks.setdefault(uid, asyncio.Lock())

    # --- what the kubelet asks for ----------------------------------------------------------------

    async def prepare(self, namespace: str, name: str, uid: str) -> tuple[model.ClaimedDevice, ...]:
        """Make the claim's devices, or verify them, and publish its CDI file.

        Raises NodeagentError, and goes on from where it was when it is called again.
        """
        async with self.lock(uid):
            found = await self.fetch(namespace, name)
            if found is None:
                raise model.ClaimHeldUp.of("gone", claim=model.ClaimReference(namespace, name))
            record = self.store.get(uid)
            state = await asyncio.to_thread(read_state, found, record) if record else None
            if record is None or state is not model.ClaimState.SAME:
                results = await asyncio.to_thread(
                    read_allocation,
                    found,
                    namespace=namespace,
                    name=name,
                    uid=uid,
                    nvidia=self._nvidia,
                )
                self.store.refuse_unreadable(uid)
                # First: what is on a GPU of it that is lost, and may come back, needs its record.
                new = await self._intended(model.ClaimReference(namespace, name), uid, results)
                if record is not None:
                    await self.remove(record, anew=True)
                return await self._make_first(new, found)
            return await self.make(record)

    async def release(self, uid: str) -> None:
        """Remove what the claim has; nothing where there is no record of it.

        Raises NodeagentError while it is used, or when a step fails; it is repeated then.
        """
        async with self.lock(uid):
            if record := self.store.get(uid):
                await self.remove(record)
            else:
                self.store.refuse_unreadable(uid)

    # --- with the claim's lock held ---------------------------------------------------------------

    async def make(self, record: model.ClaimRecord) -> tuple[model.ClaimedDevice, ...]:
        """Have its parts settled, GPU after GPU, and publish its CDI file. The record has at each
        moment what may have been made. A daemon's primary, which has the lowest UUID, comes last.
        """
        uuids = sorted(record.gpus, reverse=True)
        for uuid in uuids:

            async def goal(gpu: Gpu, asked: model.ClaimRecord = record) -> DesiredGpu:
                return await self._goal(asked, gpu)

            makes = any(device.is_made and device.gpu == uuid for device in record.devices)
            part = Part(uuid, goal, Expected.CREATION if makes else Expected.ANYTHING)
            outcome = await self._owners.settle(part)
            require_done(outcome, record)
            record = parts.with_instances(self.store.get(record.uid) or record, outcome.after)
            try:
                require_ready(outcome, record)
                if uuid == uuids[-1]:
                    observed = await self.observe()
                    await uncancelled(asyncio.to_thread(self.files.publish, record, observed))
                    record = replace(record, phase=model.RecordPhase.READY)
            finally:  # once, since each write waits for the disk
                await self.store.keep(record)
        return record.devices

    async def _intended(
        self, claim: model.ClaimReference, uid: str, results: tuple[model.Result, ...]
    ) -> model.ClaimRecord:
        """The record of what is going to be made; written once a GPU's lock is held."""
        observed, places = await self.observe(), self.places
        return await asyncio.to_thread(
            intended,
            claim,
            uid,
            results,
            observed,
            self.files.daemons,
            rules=self._rules,
            node=places.node,
            boot_id=places.boot_id,
        )

    async def _make_first(
        self, record: model.ClaimRecord, claim: ClaimObject
    ) -> tuple[model.ClaimedDevice, ...]:
        """Make it unless its pods cannot use it beside their other claims, which may be made at the
        same time: the later of two sees the other.
        """
        self._coming[record.uid] = record
        try:
            record = await self._for_containers(record, claim)
            return await self.make(await self._admitted(record))
        finally:
            del self._coming[record.uid]

    async def _for_containers(
        self, record: model.ClaimRecord, claim: ClaimObject
    ) -> model.ClaimRecord:
        """The record with one MPS daemon for what reaches one container; what no container can use
        together is refused. Pods are read only where MPS is about.
        """
        known = {one.uid: one for one in (*self._coming.values(), *self.store.records)}
        others = [
            one
            for one in known.values()
            if one.namespace == record.namespace and one.name != record.name
            if one.phase is not model.RecordPhase.RELEASING
        ]
        if any(device.mps for one in (record, *others) for device in one.devices):
            reads = [self.fetch_pod(record.namespace, name) for name, _ in claim.pods[:MAX_PODS]]
            pods = [pod for pod in await asyncio.gather(*reads) if pod]
            record = on_one_daemon(record, pods)
            refuse_conflicts(record, others, pods)
        return record

    async def _admitted(self, record: model.ClaimRecord) -> model.ClaimRecord:
        """One that wants a daemon for several GPUs is admitted to all of them, or has nothing."""
        others = self.store.others(record)
        record = joined(
            record, [one for one in others if one.phase is not model.RecordPhase.RELEASING]
        )
        if any(len(device.daemon) > 1 for device in record.devices):
            observed = await self.observe()
            async with self.lock(""):
                others = self.store.others(record)
                for gpu in filter(None, map(observed.gpu, sorted(record.gpus))):
                    require_admission(record, gpu, others, self.store.unreadable)
                await self.store.keep(record)
        return record

    async def _goal(self, asked: model.ClaimRecord, gpu: Gpu) -> DesiredGpu:
        """Refuse what another claim has, and write ahead; the GPU's lock is held."""
        async with self.lock(""):
            record = self.store.get(asked.uid) or asked
            others = self.store.others(record)
            require_admission(record, gpu, others, self.store.unreadable)
            record = parts.with_intent(record, gpu, self.places.boot_id, others)
            await self.store.keep(record)
        return parts.to_prepare(record, gpu, others)

    async def remove(self, record: model.ClaimRecord, *, anew: bool = False) -> None:
        """The instances that are proven to be the claim's, its CDI file, its record. That stays,
        RELEASING, with what is on lost GPUs, until they answer or the machine was started again;
        not where the claim is to be made `anew`. No pod has to wait for that in Terminating.
        """
        record = replace(record, phase=model.RecordPhase.RELEASING)
        await self.store.keep(record)
        # An administrator only looks at what it has: nothing of that goes.
        own = [device for device in record.devices if not device.result.admin_access]
        observed = await self.observe()
        lost = frozenset(filter(observed.has_lost, record.gpus))
        if lost:  # where the driver names no client
            await self.files.daemons.poll()

        def gpus() -> list[str]:
            """Where others keep its daemon, that is changed by its primary alone."""
            theirs = (one for other in self.store.others(record) for one in other.devices)
            kept = {uuid for one in theirs for uuid in one.daemon[1:]}
            own_gpus = {device.gpu for device in own}
            return sorted((own_gpus | {u for device in own for u in device.daemon} - kept) - lost)

        # All GPUs are asked first, so that a refusal leaves the claim untouched: a pod may have it.
        for uuid in gpus() if len(record.gpus) > 1 else ():
            await self._release_on_gpu(record, uuid, only_plan=True)
        async with AsyncExitStack() as held:
            # Of two that are released at once each would keep the daemon for the other's share.
            for uuid in sorted({u for d in own if d.shared for u in (d.gpu, *d.daemon)}):
                await held.enter_async_context(self.lock(uuid))
            try:
                for uuid in gpus():
                    await self._release_on_gpu(record, uuid)
                    # Whatever comes in its place now is not its, and has its ids as a rule.
                    record = parts.clear_ids(record, uuid)
                outlives = not anew and record.boot_id == self.places.boot_id
                left = parts.left_on(record, lost) if outlives else None
                await uncancelled(self._forget(record.uid, left))
            except NodeagentError:
                await self.store.keep(record)
                raise

    async def _forget(self, uid: str, left: model.ClaimRecord | None) -> None:
        await asyncio.to_thread(self.files.withdraw, [file_name(uid)])
        await (self.store.keep(left) if left else self.store.remove(uid))

    async def _release_on_gpu(
        self, record: model.ClaimRecord, uuid: str, *, only_plan: bool = False
    ) -> None:
        """Have what the claim has on one GPU removed; with `only_plan`, raise what forbids that."""
        if record.boot_id != self.places.boot_id:  # what is there was not made for it
            record = parts.clear_ids(record)

        here = [device for device in record.devices if device.gpu == uuid]
        served = record.daemon_on(uuid) is not None

        async def goal(gpu: Gpu) -> DesiredGpu:
            others = self.store.others(record)
            other_pods = self.pods.names(*others) - self.pods.names(record)
            require_lasting_unused(record, gpu, other_pods)
            unread = any(one.concerns(uuid) for one in self.store.unreadable)
            if unread and (served or any(device.shared for device in here)):
                return parts.unchanged(gpu, record.title)  # its daemon may be another claim's, too
            return parts.to_release(record, gpu, others)

        is_shared = served or any(device.mps for device in here)
        removes = all(device.is_made for device in here) and not is_shared
        part = Part(uuid, goal, Expected.REMOVAL if removes else Expected.ANYTHING)
        try:
            require_done(await self._owners.settle(part, only_plan=only_plan), record)
        except StillInUse:
            if not is_shared:
                raise
            # Clients that have just ended are known until they answer.
            await self.files.daemons.poll()
            require_done(await self._owners.settle(part, only_plan=only_plan), record)

    # --- what no record is of ---------------------------------------------------------------------

    async def end_left(self, observed: ObservedNode) -> None:
        """End the daemons for shares of GPUs that no claim has, unless they are used: a record that
        could not be read was removed, say.
        """

        async def goal(gpu: Gpu) -> DesiredGpu:
            over = "claims that are over"
            # It may have ended on another GPU, and here only the compute mode is to come back.
            ended = gpu.mps is None and not any(gpu.uuid in one.gpus for one in self.store.records)
            left = ended or self._is_left(gpu)
            return DesiredGpu(None, over, ends=True) if left else parts.unchanged(gpu, over)

        for gpu in filter(self._is_left, observed.gpus):
            await self._owners.settle(Part(gpu.uuid, goal))

    def _is_left(self, gpu: Gpu) -> bool:
        """Whether the GPU has a daemon that claims had, and no record may be of."""
        unread = any(one.concerns(gpu.uuid) for one in self.store.unreadable)
        is_theirs = gpu.mps is not None and gpu.mps.runs.sharing.of_claims
        return is_theirs and not unread and not parts.daemon_of(gpu.uuid, self.store.records)

    async def sweep(self) -> None:
        """Delete the CDI files that no record stands for. Raises PathRefused."""
        names = await asyncio.to_thread(self.files.names)
        for name in stale(names, self._known()):
            async with self.lock(claim_of(name) or ""):  # it may be being written
                again = stale([name], self._known())
                await asyncio.to_thread(self.files.withdraw, again)

    def _known(self) -> tuple[model.ClaimRecord | UnreadableRecord, ...]:
        return (*self.store.records, *self.store.unreadable)
