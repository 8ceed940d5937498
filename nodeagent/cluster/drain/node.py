"""The agent's Node and the pods on it, read and written when a change of the GPUs needs it.

A patch is bound to the version that it was computed for, so it never undoes what another program
wrote in between.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Final

import structlog

from nodeagent.backoff import Backoff
from nodeagent.cluster.client import faults, requests
from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.node_view import (
    CHANGING,
    NodeView,
    object_in,
    objects_in,
    parts_of,
    taints_with,
    text_in,
    view_of,
)
from nodeagent.cluster.drain.changes import DrainRules, NodeChange
from nodeagent.cluster.drain.pods import Pod
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.event_log import EventType

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DrainIntervals:
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

    `rules` are the settings. `wake` requests another round of the loop, with the reason; `report`
    adds to the event log. `view` is None before the Node was seen, and while there is none; `pods`
    is None before they were listed, and `pods_fault` is why the last list failed.
    """

    access: ClusterAccess
    name: str
    rules: DrainRules
    intervals: DrainIntervals
    wake: Callable[[str], None]
    report: Callable[[EventType, str], object]
    view: NodeView | None = None
    pods: tuple[Pod, ...] | None = None
    pods_fault: faults.ClusterFault | None = None
    _listed_at: float = -inf

    @property
    def known(self) -> NodeView:
        """The view, an empty one where there is none."""
        return self.view or NodeView()

    # --- the Node ---------------------------------------------------------------------------------

    async def read(self) -> NodeView:
        """The Node as it is now; raises `ClusterFault`."""
        listed = await self.access.listed(requests.list_node(self.name))
        if not listed.items:
            raise faults.ObjectMissing(f"the cluster has no Node {self.name}")
        return view_of(listed.first)

    async def patch(self, view: NodeView, change: NodeChange) -> NodeView:
        """Send one patch; raises `WriteConflict` if the Node is another than `view` by now."""
        metadata: dict[str, Any] = {"resourceVersion": view.resource_version}
        if change.labels:
            metadata["labels"] = dict(change.labels)
        if change.annotations:
            metadata["annotations"] = dict(change.annotations)
        body: dict[str, Any] = {"metadata": metadata}
        spec: dict[str, Any] = {}
        if change.unschedulable is not None:
            spec["unschedulable"] = change.unschedulable or None
        if change.changing is not None:
            spec["taints"] = taints_with(view.taints, {CHANGING: change.changing}) or None
        if spec:
            body["spec"] = spec
        request = requests.patch_node(self.name, body)
        patched = view_of(await self.access.send(request))
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
                pods = await self.access.each(requests.list_pods(self.name), pod_of)
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

    async def refresh_pods(self) -> bool:
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


def undone(what: str, fault: faults.ClusterFault) -> Problem:
    """That something could not be done, because of the API server."""
    return Problem(Code.CLUSTER, f"{what}: {fault.message}", fault.remedy or "the agent retries")


# --- a pod in JSON --------------------------------------------------------------------------------

_MIRROR: Final = "kubernetes.io/config.mirror"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_KINDS: Final = ("initContainer", "container", "ephemeralContainer")
_DYNAMIC_MIG: Final = re.compile(r"(?:^|,)\s*DynamicMIG=true\s*(?:,|$)", re.IGNORECASE)


def pod_of(pod: object) -> Pod:
    """The pod that this JSON describes; raises `ClusterUnreachable` for what is not a pod."""
    try:
        metadata, spec, status = parts_of(pod)
        owners = objects_in(metadata.get("ownerReferences"))
        return Pod(
            namespace=text_in(metadata["namespace"]),
            name=text_in(metadata["name"]),
            uid=text_in(metadata["uid"]),
            labels={k: text_in(v) for k, v in object_in(metadata.get("labels")).items()},
            phase=text_in(status.get("phase", "")),
            ended=_has_ended(status),
            leaving=metadata.get("deletionTimestamp") is not None,
            controller=next(
                (text_in(o["kind"]) for o in owners if o.get("controller") is True), ""
            ),
            mirror=_MIRROR in object_in(metadata.get("annotations")),
            selects=frozenset(_selected(spec)),
            dynamic_mig=any(map(_DYNAMIC_MIG.search, _feature_gates(spec))),
        )
    except (KeyError, TypeError) as error:
        raise faults.strange_answer("a question about pods", "it is not a pod") from error


def _has_ended(status: Mapping[str, Any]) -> bool:
    running = any(
        "running" in object_in(container.get("state"))
        for kind in _KINDS
        for container in objects_in(status.get(f"{kind}Statuses"))
    )
    return status.get("phase") in ("Succeeded", "Failed") and not running


def _selected(spec: Mapping[str, Any]) -> Iterator[str]:
    """The labels that a node must have, or have in some way, for the pod to be on it."""
    yield from object_in(spec.get("nodeSelector"))
    affinity = object_in(object_in(spec.get("affinity")).get("nodeAffinity"))
    for term in objects_in(object_in(affinity.get(_REQUIRED)).get("nodeSelectorTerms")):
        for expression in objects_in(term.get("matchExpressions")):
            yield text_in(expression["key"])


def _feature_gates(spec: Mapping[str, Any]) -> Iterator[str]:
    for kind in _KINDS:
        for container in objects_in(spec.get(f"{kind}s")):
            for variable in objects_in(container.get("env")):
                value = variable.get("value")
                if variable.get("name") == "FEATURE_GATES" and isinstance(value, str):
                    yield value
