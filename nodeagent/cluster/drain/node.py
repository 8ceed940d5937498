"""The agent's Node, the pods on it and other managers of its GPUs: read, and the Node written, when
a change of the GPUs needs it. While another manager is here, the agent refuses to act.

A patch is bound to the version that it was computed for, so it never undoes what another program
wrote in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Final

import structlog

from nodeagent.cluster.client import faults, requests
from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.node_view import CHANGING, NodeView, read_node, taints_with
from nodeagent.cluster.drain.changes import NodeChange
from nodeagent.cluster.drain.other_managers import OtherManager, other_managers, owned_by_others
from nodeagent.cluster.drain.pods import Pod, PodSelector, read_pod
from nodeagent.pacing import Backoff
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.event_log import EventType
from nodeagent.structs import Struct

if TYPE_CHECKING:
    from nodeagent.settings import KubernetesSettings

log = structlog.get_logger(__name__)

# Who else answers a plan source of ours, by the same keys of the Node.
_ANSWERING: Final = {"nos": OtherManager.NOS, "mig-config": OtherManager.MIG_MANAGER}


class DrainIntervals(Struct, frozen=True):
    """Times in seconds; pairs are the shortest and the longest wait of a backoff.

    `round_answer`: how long a round of the loop waits for the list of pods, and `list_age`: how
    old that may be; `answer`: how long the API server may take elsewhere. `notify`: how long a
    change of the Node is tried before work. `prepare`: between two attempts at a change that could
    not be prepared; `restore`: at what could not be put back; `evict`: at evictions that were
    refused, or did not help. `leaving_pods`: between two looks at paused clients that are to go,
    `first_look`: the first at evicted pods, then a tenth of the time that they take.
    """

    round_answer: float = 3.0
    list_age: float = 5.0
    answer: float = 10.0
    notify: float = 10.0
    prepare: tuple[float, float] = (10.0, 600.0)
    restore: tuple[float, float] = (1.0, 60.0)
    evict: tuple[float, float] = (5.0, 60.0)
    leaving_pods: tuple[float, float] = (0.5, 5.0)
    first_look: float = 0.5


@dataclass(slots=True, eq=False)
class DrainedNode:
    """The Node `name`, as it was followed and listed last, with what all that drain it need.

    `source` is the agent's plan source. `wake` requests another round of the loop, with the reason;
    `report` adds to the event log. `view` is None before the Node was seen, and while there is
    none; `pods` is None before they were listed, and `pods_fault` is why the last list failed.

    The pods are listed at first, while work is due, and while another manager objects. Without an
    answer the last list counts, else the node's labels.
    """

    access: ClusterAccess
    name: str
    settings: KubernetesSettings
    source: str
    intervals: DrainIntervals
    wake: Callable[[str], None]
    report: Callable[[EventType, str], object]
    view: NodeView | None = None
    pods: tuple[Pod, ...] | None = None
    pods_fault: faults.ClusterFault | None = None
    refusing: bool = False  # another manager was found when there was work
    _listed_at: float = -inf
    _reported: tuple[Problem, ...] = ()
    _unchecked: bool = False  # it was reported that the pods are not known

    @property
    def known(self) -> NodeView:
        """The view, an empty one where there is none."""
        return self.view or NodeView()

    @property
    def plugin_pods(self) -> tuple[PodSelector, ...]:
        """The device plugin's."""
        return tuple(map(PodSelector.of, self.settings.plugin_pods))

    # --- the Node ---------------------------------------------------------------------------------

    async def read(self) -> NodeView:
        """The Node as it is now; raises `ClusterFault`."""
        view = (await self.access.listed(requests.list_node(self.name), read_node)).first
        if view is None:
            raise faults.ObjectMissing(f"the cluster has no Node {self.name}")
        return view

    async def patch(self, view: NodeView, change: NodeChange) -> NodeView:
        """Send one patch; raises `WriteConflict` if the Node is another than `view` by now."""
        keys = {"labels": dict(change.labels), "annotations": dict(change.annotations)}
        metadata = {"resourceVersion": view.resource_version, **keys}
        spec: dict[str, Any] = {}
        if change.unschedulable is not None:
            spec["unschedulable"] = change.unschedulable or None
        if change.changing is not None:
            spec["taints"] = taints_with(view.taints, {CHANGING: change.changing}) or None
        request = requests.patch_node(self.name, {"metadata": metadata, "spec": spec})
        patched = await self.access.ask(request, read_node)
        what = "; ".join(change.words())
        self.report(EventType.NODE_CHANGED, f"the Node is changed: {what} ({change.reason})")
        return patched

    async def patch_all(
        self, changes_of: Callable[[NodeView], Iterable[NodeChange]], *, within: float
    ) -> NodeView:
        """Send the patches for the Node as it is; returns it as it is then.

        Raises `ClusterFault`; what may pass by itself is tried again for `within` seconds.
        """
        loop = asyncio.get_running_loop()
        until, backoff = loop.time() + within, Backoff(0.1, 2.0)
        while True:
            try:
                view = await self.read()
                for change in changes_of(view):
                    view = await self.patch(view, change)
                return view
            except (faults.ClusterUnreachable, faults.ServerBusy, faults.WriteConflict) as fault:
                pause = backoff.next()
                if loop.time() + pause > until:
                    raise
                log.debug("the Node cannot be changed yet", error=fault.message)
            await asyncio.sleep(pause)

    # --- its pods ---------------------------------------------------------------------------------

    async def list_pods(self, *, within: float) -> tuple[Pod, ...]:
        """All pods on the node now; raises `ClusterFault`."""
        self._listed_at = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(within):
                pods = (await self.access.listed(requests.list_pods(self.name), read_pod)).items
            self.pods, self.pods_fault = pods, None
        except TimeoutError as error:
            self.pods_fault = faults.ClusterUnreachable(
                f"the API server has not answered the pods on {self.name} within {within:g} s"
            )
            raise self.pods_fault from error
        except faults.ClusterFault as fault:
            self.pods_fault = fault
            raise
        return self.pods

    async def _refresh_pods(self) -> bool:
        """List the pods in a round of the loop, unless that was tried just now; whether it was.

        Without an answer the last list stays, and `pods_fault` is why.
        """
        if asyncio.get_running_loop().time() - self._listed_at < self.intervals.list_age:
            return False
        try:
            await self.list_pods(within=self.intervals.round_answer)
        except faults.ClusterFault as fault:
            log.debug("the pods of the node cannot be listed", error=fault.message)
        return True

    # --- other managers of its GPUs ---------------------------------------------------------------

    async def find_others(self, *, working: bool, unfinished: bool) -> None:
        """Ask for what has to be known now.

        `working`: GPUs are about to be changed; `unfinished`: some are not as planned.
        """
        needed = self.pods is None or working or self.refusing
        if needed and await self._refresh_pods() and self.view is None:
            await self._read_at_first()
        found = self.objections()
        self.refusing = unfinished and bool(found)
        self._report_others(found, working=working)

    def objections(self) -> tuple[Problem, ...]:
        """Managers of this node's GPUs that are not tolerated, by what is known of the node."""
        tolerated = self.settings.tolerate
        return owned_by_others(self.known, self.pods, source=self.source, tolerated=tolerated)

    @property
    def leaves_answer(self) -> bool:
        """Whether nothing is done, and the plan source is answered by a manager that is here.

        Any other leaves the source without an answer, and nos' partitioner then plans nothing for
        the whole cluster: so what is refused because of it is answered like any refusal.
        """
        return self.refusing and _ANSWERING.get(self.source) in self._here()

    def may_have_paused(self) -> bool:
        """Whether a manager is here, tolerated or not, that pauses the same labels for its work."""
        return OtherManager.MIG_MANAGER in self._here()

    def _here(self) -> Collection[OtherManager]:
        """Tolerated ones, too."""
        return other_managers(self.known, self.pods, source=self.source).keys()

    async def _read_at_first(self) -> None:
        """Before the Node has been seen for the first time."""
        try:
            async with asyncio.timeout(self.intervals.round_answer):
                view = await self.read()
            self.view = self.view or view  # it may have been seen meanwhile
        except (faults.ClusterFault, TimeoutError) as error:
            log.debug("the Node cannot be read", error=str(error))

    def _report_others(self, found: tuple[Problem, ...], *, working: bool) -> None:
        if found and found != self._reported and not self.refusing:
            for problem in found:
                self.report(EventType.OTHER_OWNER, f"{problem.message} ({problem.remedy})")
        self._reported = found
        fault = self.pods_fault
        if fault is None:
            self._unchecked = False
        elif working and not self._unchecked:
            self._unchecked = True
            by = "by the last list" if self.pods is not None else "by its labels alone"
            message = f"whether another manager splits the GPUs is judged {by}: {fault.message}"
            self.report(EventType.UNCHECKED, message)


def api_problem(what: str, fault: faults.ClusterFault) -> Problem:
    """The problem of something that could not be done because of the API server."""
    remedy = fault.remedy or "the agent retries"
    return Problem.of(Code.CLUSTER, "undone", what=what, why=fault.message, remedy=remedy)
