"""The offers of all of a node's GPUs, each made of the GPU, its plan, its claims and the last one.

What an earlier agent published goes on from where it was: a device that is not wanted any more is
tainted first and withdrawn ten minutes later, also across a restart, and also of a GPU that the
driver does not list any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from nodeagent.claims.model import ClaimRecord
from nodeagent.claims.names import pool_name
from nodeagent.claims.offering.devices import GpuFacts
from nodeagent.claims.offering.gpu_rules import GpuRules, Mode
from nodeagent.claims.offering.planned import planned
from nodeagent.claims.offering.pool_offer import OfferContext, PoolOffer, pool_offer
from nodeagent.plan.desired import DesiredGpu, SharedBy
from nodeagent.plan.observed import Access, Gpu
from nodeagent.plan.plan import NodePlan
from nodeagent.plan.problems import Code, Problem
from nodeagent.structs import replace

if TYPE_CHECKING:
    from nodeagent.claims.records import UnreadableRecord

Goals = Mapping[str, DesiredGpu]
"""What the plan makes of the GPUs that it names, by UUID."""

_GONE = "the driver does not list it"
_NO_FACTS: Mapping[str, GpuFacts] = {}


def goals_of(plan: NodePlan | None) -> Goals:
    """Those of the plan in force."""
    return {gpu.before.uuid: gpu.goal for gpu in (plan.gpus if plan else ()) if gpu.goal}


class NodeOffers:
    """`share`, `share_mig`: how claims share GPUs, and MIG devices, where the plan does not say it.
    `closed` says why claims get nothing new on any GPU, "": they do. `keeps_taints`: the API server
    knows taints of devices.
    """

    def __init__(
        self, node: str, mode: Mode, *, share: SharedBy = "off", share_mig: SharedBy = "off"
    ) -> None:
        self._node = node
        self._mode = mode
        self._share = share
        self._share_mig = share_mig
        self._previous: Mapping[str, PoolOffer] = {}  # by pool
        self._made: tuple[object, tuple[PoolOffer, ...]] = (None, ())  # of what, and which
        self.closed = ""
        self.keeps_taints = True

    def continue_from(self, published: Iterable[PoolOffer]) -> None:
        """Take what is published now for what this agent offered last."""
        self._previous = {offer.pool: offer for offer in published}
        self._made = (None, ())

    def rules(self, gpu: Gpu, goals: Goals, records: Iterable[ClaimRecord]) -> GpuRules:
        """What of the GPU claims may have now."""
        goal = goals.get(gpu.uuid)
        by_plan = planned(goal, gpu, records) if goal else None
        return GpuRules(self._mode, by_plan, self.closed, self._share, self._share_mig)

    def make(
        self,
        gpus: Sequence[Gpu],
        goals: Goals,
        records: Sequence[ClaimRecord],
        *,
        now: int,
        facts: Mapping[str, GpuFacts] = _NO_FACTS,
        unreadable: Sequence[UnreadableRecord] = (),
    ) -> tuple[PoolOffer, ...]:
        """What is offered `now`, in seconds since 1970; `facts` by UUID. Records that cannot be
        read hold back their GPUs.
        """
        of = (gpus, goals, records, facts, unreadable, self.closed, self.keeps_taints)
        before, made = self._made
        # A withdrawal ends by time alone, and a pool without devices is offered once.
        if of == before and all(offer.devices and offer.due is None for offer in made):
            return made
        nothing = OfferContext(self._node, GpuRules(Mode.OFF), now, keeps_taints=self.keeps_taints)
        offers: dict[str, PoolOffer] = {}
        for gpu in gpus:
            if gpu.uuid:
                own = replace(
                    nothing,
                    rules=self.rules(gpu, goals, records),
                    facts=facts.get(gpu.uuid, GpuFacts()),
                    held_back=_held_back(gpu, unreadable),
                )
                offers[pool_name(self._node, gpu.uuid)] = self._offer(gpu, own, records)
        for pool in self._previous.keys() - offers.keys():
            gone = Gpu(-1, pool.rpartition("/")[2], access=Access.LOST, access_reason=_GONE)
            offers[pool] = self._offer(gone, nothing, records)
        self._previous = {pool: offer for pool, offer in offers.items() if offer.devices}
        self._made = of, tuple(offers.values())
        return self._made[1]

    def _offer(self, gpu: Gpu, context: OfferContext, records: Iterable[ClaimRecord]) -> PoolOffer:
        pool = pool_name(self._node, gpu.uuid)
        here = [d for record in records for d in record.devices if d.result.pool == pool]
        held = {device.result.device for device in here if not device.result.admin_access}
        own = replace(
            context,
            held=frozenset(held),
            seen=frozenset({device.result.device for device in here} - held),
            shared=frozenset({device.result.device for device in here if device.shared}),
            previous=self._previous.get(pool),
        )
        return pool_offer(gpu, own)


def _held_back(gpu: Gpu, unreadable: Iterable[UnreadableRecord]) -> Problem | None:
    """What keeps anything new from the GPU."""
    for record in unreadable:
        if record.concerns(gpu.uuid):
            return Problem.from_error(Code.STATE_FILE, record.error, gpu=gpu.uuid)
    return None
