"""What is known of this node's claims, for people and metrics: attempts, pods, what is amiss."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import NoReturn

from nodeagent.claims.reporting.attempts import Attempts
from nodeagent.claims.reporting.device_health import DeviceHealth
from nodeagent.claims.reporting.overview import ClaimFacts, served_claims
from nodeagent.claims.serving.node_claims import NodeClaims
from nodeagent.claims.upkeep.decisions import Allocated
from nodeagent.errors import NodeagentError
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.problems import Problem
from nodeagent.views.claims import Claim

_LISTED_WITHIN = 1.0  # seconds after its call's end, in which the kubelet lists a pod's devices

Allocations = Callable[[], Awaitable[tuple[Allocated, ...]]]


class ClaimView:
    """`observe` and `health` give the node and its claimed devices as they are now; `pods_changed`
    is called when the kubelet lists other pods.
    """

    def __init__(
        self,
        claims: NodeClaims,
        *,
        observe: Callable[[], ObservedNode],
        health: Callable[[], tuple[DeviceHealth, ...]],
        pods_changed: Callable[[], None],
    ) -> None:
        self._claims = claims
        self._observe = observe
        self._health = health
        self._pods_changed = pods_changed
        self._called = asyncio.Event()
        self.pods = claims.pods
        self.attempts = Attempts(clock=asyncio.get_running_loop().time, wall=time.time)
        self.attempts.on_end.append(lambda *_: self._called.set())
        self.amiss: Mapping[str, Problem] = {}  # by the claim's uid, as upkeep left it
        self._served: tuple[object, tuple[Claim, ...]] = (None, ())  # of what, and which

    @property
    def served(self) -> tuple[Claim, ...]:
        """The claims of this node, as they are now: the same tuple while nothing has changed."""
        records = self._claims.records
        facts = ClaimFacts(
            self._observe(),
            self._claims.places.boot_id,
            self.pods,
            records,
            self._claims.unreadable,
            dict(self.attempts.newest({record.uid for record in records})),  # it changes
            self.amiss,
            {(one.pool, one.device): one for one in self._health()},
        )
        # Two records may differ in their times alone, which do not count when they are compared.
        of = facts, self.pods.version, [record.since for record in records]
        before, claims = self._served
        self._served = of, claims if of == before else served_claims(facts)
        return self._served[1]

    def noting(self, allocations: Allocations) -> Allocations:

        async def noted() -> tuple[Allocated, ...]:
            found = await allocations()
            records = {(one.namespace, one.name) for one in self._claims.records}
            if self.pods.observe(found, records | self.attempts.keys):
                self._pods_changed()
            return found

        return noted

    async def follow_pods(self, allocations: Allocations) -> NoReturn:
        """Ask soon after each call of the kubelet: by then it names the containers of pods."""
        while True:
            await self._called.wait()
            self._called.clear()
            await asyncio.sleep(_LISTED_WITHIN)
            with suppress(NodeagentError):  # the next round of upkeep reports it
                await allocations()
