"""Publishes what the node's GPUs offer to claims, as often as something may have changed it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from nodeagent.app.shared import Shared
from nodeagent.catalogue import Words
from nodeagent.claims.model import ClaimRecord
from nodeagent.claims.offering.gpu_facts import SYSFS, FactsReader, pcie_root
from nodeagent.claims.offering.gpu_rules import GpuRules, Mode
from nodeagent.claims.offering.node_offers import NodeOffers, goals_of
from nodeagent.claims.offering.planned import PlannedPlaces
from nodeagent.claims.offering.pool_offer import PoolOffer
from nodeagent.claims.offering.resource_slices import NodeReference
from nodeagent.claims.records import RecordStore
from nodeagent.claims.reporting.overview import free_shares
from nodeagent.errors import NodeagentError
from nodeagent.gpu.pool import GpuPool
from nodeagent.plan.observed import Gpu
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.event_log import EventType
from nodeagent.reconcile.loop_control import SETTLE_INTERVAL
from nodeagent.views.claims import FreeShare
from nodeagent.waiting import ends_within

if TYPE_CHECKING:
    from nodeagent.app.cluster_service import ClusterService
    from nodeagent.cluster.kubelet.pod_resources import PodResourcesClient
    from nodeagent.cluster.slice_publisher import SlicePublisher

_CHANGE_TIMEOUT = 60.0  # seconds, for taints that end and claims that were missed
_SILENT = frozenset({Code.GPU_LOST, Code.GPU_UNKNOWN})


class ClaimOffers:
    """`less_offered` says why GPUs offer less than the mode promises; `free_shares` is by UUID."""

    def __init__(
        self, shared: Shared, cluster: ClusterService, pool: GpuPool, places: PlannedPlaces
    ) -> None:
        settings, simulation = shared.settings, shared.paths.simulation
        self.less_offered: tuple[Problem, ...] = ()
        self.free_shares: Mapping[str, FreeShare] = {}
        self._node_name = settings.node_name
        self._cluster = cluster
        self._states = shared.states
        self._events = shared.events
        self._observation = shared.observation
        self._report = shared.control.report
        self._places = places
        self._facts = FactsReader(
            pool,
            (lambda gpu: simulation.pcie_root(gpu.pci_bus_id))
            if simulation
            else partial(pcie_root, SYSFS),
        )
        self._offers = NodeOffers(
            settings.node_name,
            Mode(settings.dra.mode),
            share=settings.dra.share,
            share_mig=settings.dra.share_mig,
        )
        self._publisher: SlicePublisher | None = None
        self._other: Words | None = None  # who else hands out the GPUs, and what ends that
        self._checked_holders = False  # whether pods with devices of a plugin were asked for
        self._changed = asyncio.Event()
        cluster.publisher.offered_by_node.subscribe(lambda _: self.wake())

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What is wrong with the ResourceSlices, and who else hands out the GPUs."""
        own = [self._publisher.state.newest.problem if self._publisher else None]
        if other := self._other:
            own.append(Problem.of(Code.OWNED, "claims", why=other.message, mend=other.remedy))
        return tuple(filter(None, own))

    def rules(self, gpu: Gpu, records: Iterable[ClaimRecord]) -> GpuRules:
        """Return what of the GPU claims may have, by the newest plan."""
        return self._offers.rules(gpu, goals_of(self._states.newest.plan), records)

    def wake(self) -> None:
        """Publish anew: something may have changed what is offered."""
        self._changed.set()

    async def connect(self, driver: str) -> SlicePublisher:
        """Wait until the GPUs were looked at once and the Node was read: `run` publishes to it what
        the `driver` of that name offers.
        """
        from nodeagent.cluster.slice_publisher import SlicePublisher

        while not self._states.newest.rounds:
            await self._wait_for_change()
        while not (uid := self._cluster.publisher.node_uid or ""):
            await self._wait_for_change()
        node = NodeReference(self._node_name, uid, driver)
        self._publisher = SlicePublisher(self._cluster.access, node)
        self._publisher.state.subscribe(lambda _: self._slices_changed())
        return self._publisher

    async def run(
        self, publisher: SlicePublisher, store: RecordStore, kubelet: PodResourcesClient | None
    ) -> NoReturn:
        """Publish what the GPUs offer beside what `store` holds. `kubelet` is None where it is not
        asked.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(publisher.run(), name="slices")
            self._offers.continue_from(await publisher.earlier_offers())
            while True:
                self._offers.keeps_taints = publisher.state.newest.keeps_taints
                await self._close_beside_others(publisher, kubelet)
                state = self._states.newest
                # What was read back after a release is newer than the loop's last state.
                gpus = (self._observation.node or state.observed).gpus
                goals, records = goals_of(state.plan), store.records
                facts = await self._facts.read(gpus)
                await asyncio.to_thread(self._places.record, gpus, goals, records)
                offers = await asyncio.to_thread(
                    self._offers.make,
                    gpus,
                    goals,
                    records,
                    now=int(time.time()),
                    facts=facts,
                    unreadable=store.unreadable,
                )
                self._note_reasons(offers)
                self.free_shares = free_shares(offers, records)
                publisher.set_owner(self._cluster.publisher.node_uid or "")
                publisher.publish(offers)
                await self._wait_for_change()
                # Many claims share one update, as the offers of eight GPUs take ten milliseconds.
                await asyncio.sleep(SETTLE_INTERVAL)
                self._changed.clear()

    def _note_reasons(self, offers: Iterable[PoolOffer]) -> None:
        found = tuple(offer.reason for offer in offers if offer.reason)
        for reason in found:
            # That a GPU does not answer is health's to report.
            if reason not in self.less_offered and reason.code not in _SILENT:
                message = f"less is offered to claims: {reason.message}"
                self._events.add(
                    EventType.LESS_OFFERED, message, gpu=reason.gpu, remedy=reason.remedy
                )
        self.less_offered = found

    def _slices_changed(self) -> None:
        self._report("ResourceSlices changed")
        self.wake()

    async def _close_beside_others(
        self, publisher: SlicePublisher, kubelet: PodResourcesClient | None
    ) -> None:
        """Close the offers while another program hands out GPUs of this node."""
        from nodeagent.cluster.drain.other_managers import other_allocator, other_holder

        before = self._other
        allocatable = self._cluster.publisher.allocatable
        other = other_allocator(publisher.state.newest.others, allocatable, self._node_name)
        # A device plugin that is restarted or removed offers nothing, but its pods keep their GPUs.
        if kubelet and not other and (before or not self._checked_holders):
            try:
                other = other_holder(await kubelet.allocations())
                self._checked_holders = True
            except NodeagentError:
                other = before
        if other != before:
            self._other, self._offers.closed = other, other.message if other else ""
            self._report("another program hands out GPUs, or does not any more")

    async def _wait_for_change(self) -> None:
        await ends_within(_CHANGE_TIMEOUT, self._changed.wait())
        self._changed.clear()
