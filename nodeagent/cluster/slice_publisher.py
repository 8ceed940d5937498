"""Keeps this node's ResourceSlices as the offers are, and restores those that are deleted.

The kubelet deletes its node's slices whenever it starts, and those of a driver that it has not
reached for 30 s: so the slices are watched. A `Keeper` writes them, with a key for each pool, the
slices of one GPU. Other drivers' slices show who else hands out devices of the node.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, NoReturn

import structlog
from msgspec.json import Decoder

from nodeagent.claims.names import is_own
from nodeagent.claims.offering import resource_slices
from nodeagent.claims.offering.pool_offer import PoolOffer
from nodeagent.cluster.client import faults, requests
from nodeagent.cluster.client.access import ClusterAccess, read_object
from nodeagent.cluster.client.faults import ClusterFault
from nodeagent.cluster.client.requests import JsonObject
from nodeagent.cluster.keeper import Keeper, WriteIntervals
from nodeagent.cluster.reflector import Reflector, WatchIntervals
from nodeagent.plan.problems import Code, Problem
from nodeagent.signals import Signal
from nodeagent.structs import Struct, read_in_threads, replace
from nodeagent.text import alike

log = structlog.get_logger(__name__)

_COUNTERS = ("sharedCounters", "consumesCounters")  # as the ends of a field's path
_TAINTS = ".taints"
# Bookmarks come every minute; a dead server is noticed sooner by the watch of the Node. A server
# without ResourceSlices is asked at least every ten minutes whether it was upgraded.
WATCHES: Final = WatchIntervals(silence=70.0, unserved=600.0)
# Each pool has its own limit, as a second agent may overwrite all writes to one. A refusal that
# only a newer API server would end is tried again after ten minutes at most.
WRITES: Final = WriteIntervals(interval=1.0, burst=10, denied=(0.5, 600.0))


class _Metadata(Struct, rename="camel"):
    name: str
    resource_version: str


class _Pool(Struct):
    name: str
    generation: int


class _Spec(Struct):
    driver: str
    pool: _Pool


@read_in_threads
class _Slice(Struct):
    metadata: _Metadata
    spec: _Spec


_SLICE: Final = Decoder(_Slice)


class PublishedSlice(Struct, frozen=True):
    """A ResourceSlice as the API server has it."""

    name: str
    resource_version: str
    driver: str
    pool: str
    body: JsonObject

    @property
    def is_own(self) -> bool:
        """Return whether it is this agent's, or an earlier one's under its other name."""
        return is_own(self.driver, self.pool)


def read_slice(text: bytes) -> PublishedSlice:
    """Read a ResourceSlice; raises ValueError for anything else."""
    found = _SLICE.decode(text)
    metadata, spec = found.metadata, found.spec
    return PublishedSlice(
        metadata.name, metadata.resource_version, spec.driver, spec.pool.name, read_object(text)
    )


class Publication(Struct, frozen=True):
    """How publishing stands. `problem` says why less is published than wanted, None while all is;
    `others` are other drivers with slices of the node; `keeps_taints` is False once the API server
    has dropped the taint of a device.
    """

    problem: Problem | None = None
    others: frozenset[str] = frozenset()
    keeps_taints: bool = True


class SlicePublisher:
    """Publishes offers while `run` runs: `publish` sets them, `state` says how that goes."""

    def __init__(
        self,
        access: ClusterAccess,
        node: resource_slices.NodeReference,
        *,
        watches: WatchIntervals = WATCHES,
        writes: WriteIntervals = WRITES,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._access = access
        self._node = node
        self._keeps_taints = True
        self._offers: dict[str, PoolOffer] | None = None  # by pool; None before `publish`
        self._due: set[str] = set()  # pools that have to be compared with what is there
        self._lost: dict[str, resource_slices.Dropped] = {}  # what the server did not keep, by pool
        self._listed = asyncio.Event()
        self._reflector = Reflector(
            access,
            requests.list_slices(node.name),
            read_slice,
            on_change=self._slices_changed,
            on_fault=lambda _: self._report(),
            intervals=watches,
            jitter=jitter,
        )
        self._keeper = Keeper[str, PoolOffer](
            self, writes, on_fault=lambda _: self._report(), jitter=jitter
        )
        self.state = Signal(Publication())

    def publish(self, offers: Sequence[PoolOffer]) -> None:
        """Make the node's slices be these offers. Until the first call, existing slices stay."""
        before, self._offers = self._offers or {}, {offer.pool: offer for offer in offers}
        pools = before.keys() | self._offers.keys()
        self._due |= {pool for pool in pools if before.get(pool) != self._offers.get(pool)}
        self._want()

    def set_owner(self, uid: str) -> None:
        """Make the slices belong to the Node with this uid. A re-created Node has another uid, and
        the cluster deletes what belonged to the former one. "": there is no Node now, and nothing
        is written.
        """
        if uid != self._node.uid:
            self._node = replace(self._node, uid=uid)
            self._due |= (self._offers or {}).keys()
            self._keeper.changed(forget_sent=True)

    async def earlier_offers(self) -> tuple[PoolOffer, ...]:
        """Wait for the API server, and return the offers that an earlier agent published, as far as
        this agent can read their slices.
        """
        await self._listed.wait()
        return tuple(_readable_offers(self._own_slices()))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as parts:
            parts.create_task(self._reflector.run(), name="follow ResourceSlices")
            parts.create_task(self._keeper.run(), name="write ResourceSlices")

    def _own_slices(self) -> list[PublishedSlice]:
        return [one for one in self._reflector.objects.values() if one.is_own]

    def _want(self) -> None:
        """Have every offered pool kept, and every other pool of ours removed."""
        if self._offers is None:
            return
        there = {one.pool for one in self._own_slices()}
        for pool in there | self._offers.keys():
            self._keeper.want(pool, self._offers.get(pool) or PoolOffer(pool, {}, ()))
        for pool in self._keeper.keys - there - self._offers.keys():
            self._keeper.forget(pool)
            self._due.discard(pool)
            self._lost.pop(pool, None)
        self._report()

    def _slices_changed(self, before: Mapping[str, PublishedSlice | None]) -> None:
        """Compare the pools of slices that another program has changed."""
        self._listed.set()
        objects = self._reflector.objects
        changed = (*before.values(), *(objects.get(name) for name in before))
        self._due |= {one.pool for one in changed if one and one.is_own}
        self._want()
        self._keeper.changed(forget_sent=True)
        self._report()

    # --- what the keeper calls --------------------------------------------------------------------

    def difference(self, pool: str, offer: PoolOffer) -> PoolOffer | None:
        """Return the whole offer of a pool that is due; `send` compares, since that takes long."""
        is_known = self._reflector.is_listed and self._node.uid
        return offer if is_known and pool in self._due else None

    async def send(self, pool: str, offer: PoolOffer) -> None:
        self._due.discard(pool)
        try:
            lost = await self._write_all(offer)
        except ClusterFault:
            self._due.add(pool)
            raise
        self._lost.pop(pool, None)
        if lost:
            self._lost[pool] = lost[0]
        if self._keeps_taints and any(one.path.endswith(_TAINTS) for one in lost):
            self._keeps_taints = False
            log.warning("devices with taints are not offered", why=str(lost[0]))
        self._report()

    async def read_again(self) -> None:
        await self._reflector.list()

    async def _write_all(self, offer: PoolOffer) -> list[resource_slices.Dropped]:
        """Write the slices of a pool as offered; return what the server dropped of them."""
        found = [one.body for one in self._own_slices() if one.pool == offer.pool]
        # In a thread: those of a GPU take ten milliseconds to compare.
        diff = await asyncio.to_thread(resource_slices.slice_diff, offer, found, self._node)
        for name in diff.delete:
            await self._delete(name)
        lost: list[resource_slices.Dropped] = []
        for body in diff.write:
            lost += await self._write(dict(body))
            if counters := next((one for one in lost if one.path.endswith(_COUNTERS)), None):
                await self._withdraw(offer.pool, counters)
        return lost

    async def _write(self, body: JsonObject) -> Sequence[resource_slices.Dropped]:
        name = str(body["metadata"]["name"])
        before = self._reflector.objects.get(name)
        if "resourceVersion" not in body["metadata"]:
            answer = await self._access.ask(requests.create_slice(body), read_slice)
        else:
            try:
                answer = await self._access.ask(requests.replace_slice(name, body), read_slice)
            except faults.ObjectMissing as fault:  # deleted by another writer: list again
                raise faults.WriteConflict(fault.message) from fault
        self._reflector.learn(answer, before)
        version = {"resourceVersion": answer.resource_version}
        return resource_slices.compare(
            {**body, "metadata": {**body["metadata"], **version}}, answer.body
        )

    async def _delete(self, name: str) -> None:
        with suppress(faults.ObjectMissing):
            await self._access.send(requests.delete_slice(name))
        self._reflector.forget(name)

    async def _withdraw(self, pool: str, lost: resource_slices.Dropped) -> NoReturn:
        """Delete the pool's slices: devices without counters could all be allocated at once."""
        for one in self._own_slices():
            if one.pool == pool:
                await self._delete(one.name)
        remedy = f"{lost.remedy}, or set dra.mode: static"
        raise faults.NotAllowed(f"nothing is offered to claims: {lost}", remedy=remedy)

    # --- what is wrong ----------------------------------------------------------------------------

    def _report(self) -> None:
        slices = self._reflector.objects.values()
        others = frozenset(one.driver for one in slices if not one.is_own)
        state = Publication(self._problem(), others, self._keeps_taints)
        if state != self.state.newest:
            self.state.publish(state)

    def _problem(self) -> Problem | None:
        fault = self._reflector.fault or self._keeper.fault
        if fault is self._reflector.fault and isinstance(fault, faults.ObjectMissing):
            return Problem.of(Code.CLUSTER, "noClaims")
        if fault and not isinstance(fault, faults.WriteConflict):
            return Problem.from_error(Code.CLUSTER, fault)
        lost = next(iter(self._lost.values()), None)
        if lost is None:
            return None
        return Problem.of(Code.CLUSTER, "dropped", lost=lost, mend=lost.remedy)


def _readable_offers(slices: Iterable[PublishedSlice]) -> Iterator[PoolOffer]:
    """Yield the offers of the pools that can be read."""
    for pool, found in alike((one.pool, one.body) for one in slices).items():
        try:
            offer = resource_slices.read_offer(found)
        except resource_slices.UnreadableSlice as error:
            log.warning("published slices are not gone on from", pool=pool, why=error.message)
            continue
        if offer:
            yield offer
