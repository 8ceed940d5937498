"""Keeps this node's ResourceSlices as the offers are, and restores what is wiped.

The kubelet deletes its node's slices whenever it starts, and those of a driver that it has not
reached for 30 s. So they are watched, and a look at all of them follows each change that is not an
echo of an own write. Other drivers' slices show who else hands out devices of the node.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NoReturn

import structlog

from nodeagent.backoff import Backoff
from nodeagent.claims.names import DRIVER
from nodeagent.claims.offering.api_limits import SliceRefused
from nodeagent.claims.offering.offer import Offer
from nodeagent.claims.offering.publication import CreateSlice, DeleteSlice, SliceWrite, slice_writes
from nodeagent.claims.offering.resource_slices import Dropped, NodeReference, compare, read_offer
from nodeagent.cluster.client import faults, requests
from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.node_follower import FollowIntervals, events
from nodeagent.cluster.client.node_view import is_newer
from nodeagent.cluster.client.requests import JsonObject
from nodeagent.errors import NodeagentError
from nodeagent.plan.problems import Code, Problem
from nodeagent.rate_limit import Allowance
from nodeagent.structs import replace

log = structlog.get_logger(__name__)

_COUNTERS = ("sharedCounters", "consumesCounters")  # as the ends of a field's path
_TAINTS = ".taints"
_SILENCE = 70.0  # seconds; bookmarks come every minute. The follower of the Node notices sooner.
_ROUND = 1.0  # seconds between two rounds of writes in the long run: a second agent undoes each
_BURST = 10  # rounds at once after a quiet time


class SlicePublisher:
    """Publishes while `run` runs; `publish` sets what.

    `problem` says why less is published than wanted, None while all is; `others` are the drivers
    that have slices of the node, too; `keeps_taints`: the API server knows taints of devices, as
    far as it was tried. `on_change` is called when one becomes another.
    """

    def __init__(
        self,
        access: ClusterAccess,
        node: NodeReference,
        *,
        on_change: Callable[[], None] = lambda: None,
        intervals: FollowIntervals = FollowIntervals(silence=_SILENCE),  # noqa: B008 - a frozen value
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._access = access
        self._node = node
        self._on_change = on_change
        self._intervals = intervals
        self._jitter = jitter
        first, longest = intervals.retry
        self._backoff = Backoff(first, longest, spread=1.0, jitter=jitter)
        # What only another API server mends, in ten minutes at most.
        self._until_upgrade = Backoff(first, 20 * longest, spread=1.0, jitter=jitter)
        self._rounds = Allowance(interval=_ROUND, burst=_BURST)
        self._offers: tuple[Offer, ...] | None = None
        self._changed = asyncio.Event()
        self._known: dict[str, str] = {}  # the versions of what is there, by name
        self.problem: Problem | None = None
        self.others: frozenset[str] = frozenset()
        self.keeps_taints = True

    def publish(self, offers: Sequence[Offer]) -> None:
        """Make the node's slices be these offers. Before the first, what is there stays."""
        wanted = tuple(offers)
        if wanted != self._offers:
            self._offers = wanted
            self._changed.set()

    def owned_by(self, uid: str) -> None:
        """The slices belong to the Node with this uid. One that was deleted and made anew has
        another; the cluster deletes what belongs to the former one. "": there is no Node now, and
        nothing is written.
        """
        if uid != self._node.uid:
            self._node = replace(self._node, uid=uid)
            self._changed.set()

    async def published(self) -> tuple[Offer, ...]:
        """What an earlier agent left, once the API server answers; what is in no form that this
        agent writes is left out.
        """
        while True:
            try:
                _, found = await self._listed()
            except (faults.ClusterFault, _ServerLacks) as fault:
                await self._back_off(fault)
            else:
                self._report(None)
                self._backoff.reset()
                return tuple(_readable(found))

    async def run(self) -> NoReturn:
        while True:
            try:
                await self._until_due()
                version, lost = await self._write_all()
                self._report(lost)
                self._backoff.reset()
                await self._follow(version)
            except (faults.WriteConflict, faults.ObjectMissing):
                await asyncio.sleep(self._backoff.next())  # another writer: look again
            except (faults.ClusterFault, _ServerLacks) as fault:
                await self._back_off(fault)
            except NodeagentError as fault:  # an offer that the server would refuse
                self._report(_problem(fault))
                await self._changed.wait()

    async def _back_off(self, fault: faults.ClusterFault | _ServerLacks) -> None:
        self._report(_problem(fault))
        if isinstance(fault, _ServerLacks):
            await asyncio.sleep(self._until_upgrade.next())
        else:
            await asyncio.sleep(self._backoff.next(fault.retry_after or 0.0))

    async def _until_due(self) -> None:
        """Until there are offers and a Node, and there is a round left to write them in."""
        while self._offers is None or not self._node.uid:
            self._changed.clear()
            await self._changed.wait()
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(max(0.0, self._rounds.next_at() - clock()))
        self._rounds.take(clock())

    # --- writing ----------------------------------------------------------------------------------

    async def _write_all(self) -> tuple[str, Problem | None]:
        """Bring the slices to the offers; the version to watch from, and what the server lost."""
        self._changed.clear()
        version, found = await self._listed()
        self._known = {_name(one): _version(one) for one in found}
        lost: list[Dropped] = []
        # A thread of its own: those of eight GPUs take a tenth of a second to compare.
        writes = await asyncio.to_thread(slice_writes, self._offers or (), found, self._node)
        for write in writes:
            lost += await self._write(write)
            if any(one.path.endswith(_COUNTERS) for one in lost):
                await self._withdraw_all(lost)
        if self.keeps_taints and any(one.path.endswith(_TAINTS) for one in lost):
            self.keeps_taints = False
            log.warning("devices with taints are not offered", why=str(lost[0]))
            self._on_change()
        return version, _lost_problem(lost)

    async def _listed(self) -> tuple[str, list[JsonObject]]:
        """The version of the list, and the slices of this driver."""
        try:
            listed = await self._access.listed(requests.list_slices(self._node.name))
        except faults.ObjectMissing as fault:  # a list of nothing is no such answer
            raise _ServerLacks(
                "nothing is offered to claims: the API server does not serve resource.k8s.io/v1",
                remedy="use Kubernetes 1.34 or newer for dra.mode static, 1.36 for dynamic; on an "
                "older one switch dra.mode off",
            ) from fault
        found = [slice_of(one) for one in listed.items]
        others = frozenset(map(_driver, found)) - {DRIVER}
        if others != self.others:
            self.others = others
            self._on_change()
        return listed.version, [one for one in found if _driver(one) == DRIVER]

    async def _write(self, write: SliceWrite) -> Sequence[Dropped]:
        if isinstance(write, DeleteSlice):
            await self._delete(write.name)
            return ()
        body: JsonObject = dict(write.body)
        name = _name(body)
        if isinstance(write, CreateSlice):
            answer = slice_of(await self._access.send(requests.create_slice(body)))
        else:
            answer = slice_of(await self._access.send(requests.replace_slice(name, body)))
        self._known[name] = _version(answer)
        kept = {**body, "metadata": {**body["metadata"], "resourceVersion": _version(answer)}}
        return compare(kept, answer)

    async def _delete(self, name: str) -> None:
        with suppress(faults.ObjectMissing):
            await self._access.send(requests.delete_slice(name))
        self._known.pop(name, None)

    async def _withdraw_all(self, lost: Sequence[Dropped]) -> NoReturn:
        """Devices without their counters could all be allocated at once: better none."""
        for name in tuple(self._known):
            await self._delete(name)
        remedy = "use Kubernetes 1.36 or newer with its usual feature gates, or dra.mode static"
        raise _ServerLacks(f"nothing is offered to claims: {lost[0]}", remedy=remedy)

    # --- following --------------------------------------------------------------------------------

    async def _follow(self, version: str) -> None:
        """Return when the offers or the slices are others."""
        changed = asyncio.create_task(self._changed.wait())
        watching = asyncio.create_task(self._watch(version))
        try:
            await asyncio.wait((changed, watching), return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
        finally:
            for task in (changed, watching):
                task.cancel()
            await asyncio.gather(changed, watching, return_exceptions=True)

    async def _watch(self, version: str) -> None:
        """Return when the slices are others, or have to be listed again, for events may be lost. A
        silent watch goes on where it was.
        """
        clock = asyncio.get_running_loop().time
        until = clock() + self._intervals.watch_seconds(self._jitter())
        while (seconds := until - clock()) > 0:
            request = requests.watch_slices(self._node.name, version=version, seconds=seconds)
            begun = last = clock()
            async with self._access.watch(request) as response:
                server, silence = self._access.server, self._intervals.silence
                async for event in events(response, server=server, silence=silence):
                    last, version = clock(), event.version
                    if event.removed or (event.node and not self._is_known(slice_of(event.node))):
                        return
            if clock() - last < silence and self._intervals.is_early(clock() - begun, seconds):
                await asyncio.sleep(self._backoff.next())
            else:
                self._backoff.reset()

    def _is_known(self, one: JsonObject) -> bool:
        """Whether it is as this agent wrote it, or of another driver that is known."""
        if _driver(one) != DRIVER:
            return _driver(one) in self.others
        known = self._known.get(_name(one))
        return known is not None and not is_newer(_version(one), known)

    def _report(self, problem: Problem | None) -> None:
        if problem != self.problem:
            self.problem = problem
            self._on_change()


class _ServerLacks(NodeagentError):
    """The API server does not know ResourceSlices, or did not keep what was sent of them."""


def _problem(error: NodeagentError) -> Problem:
    return Problem.from_error(Code.CLUSTER, error)


def slice_of(one: JsonObject) -> JsonObject:
    """The ResourceSlice; raises `ClusterUnreachable` for what is none."""
    match one:
        case {
            "metadata": {"name": str(), "resourceVersion": str()},
            "spec": {"driver": str(), "pool": {"name": str(), "generation": int()}},
        }:
            return one
    raise faults.strange_answer("a question about slices", "it is no ResourceSlice")


def _name(one: JsonObject) -> str:
    return str(one["metadata"]["name"])


def _driver(one: JsonObject) -> str:
    return str(one["spec"]["driver"])


def _readable(slices: Iterable[JsonObject]) -> Iterator[Offer]:
    """The offers of the pools."""
    pools: dict[str, list[JsonObject]] = {}
    for one in slices:
        pools.setdefault(str(one["spec"]["pool"]["name"]), []).append(one)
    for pool, found in pools.items():
        try:
            offer = read_offer(found)
        except SliceRefused as error:
            log.warning("published slices are not gone on from", pool=pool, why=error.message)
            continue
        if offer:
            yield offer


def _version(one: JsonObject) -> str:
    return str(one["metadata"]["resourceVersion"])


def _lost_problem(lost: Sequence[Dropped]) -> Problem | None:
    if not lost:
        return None
    return Problem.of(Code.CLUSTER, "dropped", lost=lost[0])
