"""The agent's own care for claims: what a crash, a reboot or a lost call left is put right.

At start and every minute everything that is known of claims is brought together, and what
`reconciliation` decides is carried out. Each decision is made again with its claim's lock held. The
API server is asked only about claims of which the kubelet lists no pod, so that a node whose claims
are all in use asks it nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

from nodeagent.claims.model import Allocated, ClaimRecord, ClaimState, RecordPhase
from nodeagent.claims.serving.allocation import read_state
from nodeagent.claims.serving.node_claims import NodeClaims
from nodeagent.claims.upkeep import reconciliation
from nodeagent.errors import NodeagentError, StillInUse
from nodeagent.plan.observed import ObservedNode, Placement
from nodeagent.plan.problems import Code, Problem

INTERVAL: Final = 60.0  # seconds from one round to the next

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
        self.problems: Mapping[str, Problem] = {}  # by the claim's uid, as the last round left it

    async def round(self) -> tuple[Problem, ...]:
        """The problems that remain after one round, beside the records that cannot be used."""
        await self._claims.store.reread()
        claims, allocations, problems = await self._observe_claims(self._claims.store.records)
        try:  # after the calls, so that hardware and records are of one moment
            observed = await self._claims.observe()
        except NodeagentError as error:
            return (*problems, _problem(error))
        snapshot = await self._snapshot(observed, claims, allocations)
        decisions = await asyncio.to_thread(reconciliation.reconcile, snapshot)
        async with asyncio.TaskGroup() as group:  # a cancellation waits until each has ended
            settling = {
                uid: group.create_task(self._settle(uid, decision))
                for uid, decision in decisions.items()
            }
        found = {uid: task.result() for uid, task in settling.items()}
        self.problems = {uid: problem for uid, problem in found.items() if problem}
        foreign = await asyncio.to_thread(lambda: tuple(reconciliation.foreign_instances(snapshot)))
        try:
            await self._claims.sweep()
            await self._claims.end_left(observed)
        except NodeagentError as error:
            problems = (*problems, _problem(error))
        return (*problems, *self.problems.values(), *foreign)

    async def _settle(self, uid: str, decision: reconciliation.Decision) -> Problem | None:
        """Carry one decision out; a failure is a problem of that claim alone."""
        if decision.action is reconciliation.ClaimAction.LEAVE and (
            decision.problem is None or decision.problem.code == Code.GPU_UNKNOWN
        ):
            return decision.problem
        try:
            async with self._claims.lock(uid):
                record = self._claims.store.get(uid)
                if record is None:  # released meanwhile
                    return None
                # Whoever waits for the lock is not to wait for the API server, too: a claim that is
                # gone by now is released in the next round.
                ask = decision.action is not reconciliation.ClaimAction.REPAIR
                decision = await self._decide(record, ask=ask)
                match decision.action:
                    case reconciliation.ClaimAction.REPAIR:
                        await self._claims.make(record)
                    case reconciliation.ClaimAction.RELEASE:
                        await self._claims.remove(record)
                    case reconciliation.ClaimAction.LEAVE:
                        pass
        except NodeagentError as error:
            return _problem(error)
        return decision.problem

    async def _decide(self, record: ClaimRecord, *, ask: bool) -> reconciliation.Decision:
        """Decide again by what is there now; `ask` the API server about the claim, too."""
        claims, allocations, _ = await self._observe_claims([record] if ask else [])
        observed = await self._claims.observe()
        return reconciliation.decision_of(
            record, await self._snapshot(observed, claims, allocations, [record])
        )

    # --- what is known ----------------------------------------------------------------------------

    async def _snapshot(
        self,
        observed: ObservedNode,
        claims: Claims,
        allocations: Allocations,
        concerned: Collection[ClaimRecord] | None = None,
    ) -> reconciliation.Snapshot:
        """`concerned` are the records whose CDI files are read, all where it is None."""
        records = self._claims.store.records
        files = await asyncio.to_thread(
            self._claims.files.states, records if concerned is None else concerned, observed
        )
        return reconciliation.Snapshot(
            self._claims.places.boot_id,
            observed,
            records,
            self._claims.store.unreadable,
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
            if record.phase is not RecordPhase.RELEASING
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


def _problem(error: NodeagentError) -> Problem:
    code = Code.IN_USE if isinstance(error, StillInUse) else Code.STEP_FAILED
    return Problem.from_error(code, error)
