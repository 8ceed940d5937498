"""The agent's own care for claims: what a crash, a reboot or a lost call left is put right.

At start and every minute everything that is known of claims is brought together, and what
`reconciliation` decides is carried out. Each decision is made again in its claim's turn. The API
server is asked only about claims of which the kubelet lists no pod, so that a node whose claims
are all in use asks it nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

from nodeagent.claims.model import ClaimRecord, Phase
from nodeagent.claims.serving.node_claims import NodeClaims
from nodeagent.claims.upkeep.claim_state import read_state
from nodeagent.claims.upkeep.decisions import (
    Adopt,
    Allocated,
    ClaimState,
    Decision,
    HoldBack,
    Keep,
    Repair,
    ReportForeign,
    Snapshot,
)
from nodeagent.claims.upkeep.reconciliation import reconcile, reconcile_claim
from nodeagent.errors import NodeagentError, StillInUse
from nodeagent.plan.observed import ObservedNode, Placement
from nodeagent.plan.problems import Code, Problem

EVERY: Final = 60.0  # seconds from one round to the next

Claims = Mapping[str, ClaimState]  # by uid
Allocations = tuple[Allocated, ...] | None  # None: not known


class Upkeep:
    """`allocations` asks the kubelet and raises NodeagentError when it does not answer. `planned`
    are GPU and placement of the instances that belong to a plan.
    """

    def __init__(
        self,
        claims: NodeClaims,
        *,
        allocations: Callable[[], Awaitable[tuple[Allocated, ...]]],
        planned: Callable[[], frozenset[tuple[str, Placement]]],
    ) -> None:
        self._claims = claims
        self._allocations = allocations
        self._planned = planned
        self.amiss: Mapping[str, Problem] = {}  # by the claim's uid, as the last round left it

    async def round(self) -> tuple[Problem, ...]:
        """What is still amiss after one round, beside the records that cannot be used."""
        await self._claims.reread()
        claims, allocations, problems = await self._observe_claims(self._claims.records)
        try:  # after the calls, so that hardware and records are of one moment
            observed = await self._claims.observe()
        except NodeagentError as error:
            return (*problems, _problem(error))
        snapshot = await self._snapshot(observed, claims, allocations)
        decisions = await asyncio.to_thread(reconcile, snapshot)
        async with asyncio.TaskGroup() as group:  # a cancellation waits until each has ended
            settling = [group.create_task(self._settle(one, observed)) for one in decisions]
        found = [one.result() for one in settling]
        self.amiss = {
            one.uid: problem
            for one, problem in zip(decisions, found, strict=True)
            if problem and not isinstance(one, ReportForeign)
        }
        try:
            await self._claims.sweep()
        except NodeagentError as error:
            problems = (*problems, _problem(error))
        return (*problems, *(problem for problem in found if problem))

    async def _settle(self, first: Decision, observed: ObservedNode) -> Problem | None:
        """Carry one decision out; a failure is a problem of that claim alone."""
        match first:
            case Keep(_, "") | HoldBack():
                return self._reported(first)
            case ReportForeign():
                return _foreign(first, observed)
            case _:
                pass

        async def decide(record: ClaimRecord) -> Decision:
            # What is there for a claim that goes on, is made again even while neither answers.
            goes_on = isinstance(first, Repair | Adopt)
            claims, allocations, _ = await self._observe_claims([] if goes_on else [record])
            node = await self._claims.observe()
            snapshot = await self._snapshot(node, claims, allocations, [record])
            return reconcile_claim(record, snapshot)

        try:
            return self._reported(await self._claims.mend(first.uid, decide))
        except NodeagentError as error:
            return _problem(error)

    def _reported(self, decision: Decision) -> Problem | None:
        """Why a claim was left as it is; of a record that cannot be read, `NodeClaims` says it."""
        titles = {record.uid: record.title for record in self._claims.records}
        match decision:
            case Keep(uid, why) if why and uid in titles:
                return Problem.of(Code.IN_USE, "claimKept", claim=titles[uid], why=why)
            case HoldBack(uid, why) if uid in titles:
                return Problem.of(Code.GPU_UNKNOWN, "claimKept", claim=titles[uid], why=why)
            case _:
                return None

    # --- what is known ----------------------------------------------------------------------------

    async def _snapshot(
        self,
        observed: ObservedNode,
        claims: Claims,
        allocations: Allocations,
        concerned: Collection[ClaimRecord] | None = None,
    ) -> Snapshot:
        """`concerned` are the records whose CDI files are read, all where it is None."""
        records = self._claims.records
        files = await asyncio.to_thread(
            self._claims.files.states, records if concerned is None else concerned, observed
        )
        return Snapshot(
            self._claims.places.boot_id,
            observed,
            records,
            self._claims.unreadable,
            claims,
            files,
            allocations,
            self._planned(),
        )

    async def _observe_claims(
        self, records: Collection[ClaimRecord]
    ) -> tuple[Claims, Allocations, tuple[Problem, ...]]:
        """The kubelet, and the API server about claims that no pod has: only those can be over."""
        try:
            allocations = await self._allocations()
        except NodeagentError as error:
            why = f"no claim is released by the agent itself: {error.message}"
            return {}, None, (Problem(code=Code.READER, message=why, remedy=error.remedy),)
        listed = {(one.namespace, one.claim, one.key) for one in allocations}
        unlisted = [
            record
            for record in records
            if record.phase is not Phase.RELEASING
            and not any((record.namespace, record.name, r.key) in listed for r in record.results)
        ]
        states = await asyncio.gather(*map(self._state, unlisted))
        claims = {record.uid: state for record, state in zip(unlisted, states, strict=True)}
        return claims, allocations, ()

    async def _state(self, record: ClaimRecord) -> ClaimState:
        try:
            found = await self._claims.fetch(record.namespace, record.name)
        except NodeagentError:
            return ClaimState.UNKNOWN
        return await asyncio.to_thread(read_state, found, record)


def _foreign(found: ReportForeign, observed: ObservedNode) -> Problem:
    gpu, one = observed.gpu(found.gpu), found.instance
    title = gpu.title if gpu else found.gpu
    which = f"-i {gpu.index if gpu else found.gpu} -gi {one.id}"
    instance = f"{one.id} ({one.profile} at {one.placement})"
    return Problem.of(
        Code.OWNED, "unknownInstance", gpu=found.gpu, title=title, instance=instance, which=which
    )


def _problem(error: NodeagentError) -> Problem:
    code = Code.IN_USE if isinstance(error, StillInUse) else Code.STEP_FAILED
    return Problem.from_error(code, error)
