"""Reads and patches the agent's Node, and lists the pods on it, when a drain needs to know.

A patch is bound to the version that it was computed for, so it never undoes what another program
wrote in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import structlog

from nodeagent.backoff import Backoff
from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.faults import (
    ClusterFault,
    ClusterUnreachable,
    ObjectMissing,
    ServerBusy,
    WriteConflict,
    strange_answer,
)
from nodeagent.cluster.client.node_view import (
    Interest,
    NodeView,
    object_in,
    objects_in,
    parts_of,
    text_in,
    view_of,
)
from nodeagent.cluster.drain.owners import HAMI_REGISTER, NOS_LABEL
from nodeagent.cluster.drain.steps import NodeFacts, PatchNode, PodFact, Step
from nodeagent.cluster.kubelet.allocations import PodName

_MIRROR: Final = "kubernetes.io/config.mirror"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_CONTAINERS: Final = ("initContainers", "containers", "ephemeralContainers")


def pod_fact(pod: object) -> PodFact:
    """The facts of a pod in JSON; raises `ClusterUnreachable` for what is no pod."""
    try:
        metadata, spec, status = parts_of(pod)
        return PodFact(
            namespace=text_in(metadata["namespace"]),
            name=text_in(metadata["name"]),
            uid=text_in(metadata["uid"]),
            labels={k: text_in(v) for k, v in object_in(metadata.get("labels")).items()},
            phase=text_in(status.get("phase", "")),
            leaving=metadata.get("deletionTimestamp") is not None,
            controller=next(_controllers(metadata), ""),
            mirror=_MIRROR in object_in(metadata.get("annotations")),
            selects=frozenset(_selected(spec)),
            environment=dict(_environment(spec)),
        )
    except (KeyError, TypeError) as error:
        raise _no_pod() from error


def has_ended(pod: object) -> bool:
    """Whether it is over and none of its containers is reported as running."""
    try:
        status = object_in(object_in(pod).get("status"))
        running = any(
            "running" in object_in(container.get("state"))
            for kind in ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
            for container in objects_in(status.get(kind))
        )
    except TypeError as error:
        raise _no_pod() from error
    return status.get("phase") in ("Succeeded", "Failed") and not running


def _no_pod() -> ClusterUnreachable:
    return strange_answer("a question about pods", "it is no pod")


def _controllers(metadata: Mapping[str, Any]) -> Iterator[str]:
    for owner in objects_in(metadata.get("ownerReferences")):
        if owner.get("controller") is True:
            yield text_in(owner["kind"])


def _selected(spec: Mapping[str, Any]) -> Iterator[str]:
    """The labels that a node must have, or have in some way, for the pod to be on it."""
    yield from object_in(spec.get("nodeSelector"))
    affinity = object_in(object_in(spec.get("affinity")).get("nodeAffinity"))
    for term in objects_in(object_in(affinity.get(_REQUIRED)).get("nodeSelectorTerms")):
        for expression in objects_in(term.get("matchExpressions")):
            yield text_in(expression["key"])


def _environment(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for kind in _CONTAINERS:
        for container in objects_in(spec.get(kind)):
            for variable in objects_in(container.get("env")):
                if isinstance(variable.get("value"), str):
                    yield text_in(variable["name"]), variable["value"]


log = structlog.get_logger(__name__)

_AT_ONCE = 8  # questions about single pods


class NodePods:
    """The pods on this node, as of the last list. Times in seconds."""

    def __init__(self, access: ClusterAccess, node: str) -> None:
        self._access = access
        self._node = node
        self._asked_at = float("-inf")
        self.known: tuple[PodFact, ...] | None = None  # None: never listed
        self.fault: ClusterFault | None = None  # why the last list failed

    async def list_now(self, *, within: float) -> tuple[PodFact, ...]:
        """Ask for all of them; raises `ClusterFault`."""
        self._asked_at = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(within):
                listed = await self._access.list_pods(self._node)
            self.known, self.fault = tuple(map(pod_fact, listed)), None
        except TimeoutError as error:
            self.fault = _silent(f"the pods on {self._node}", within)
            raise self.fault from error
        except ClusterFault as fault:
            self.fault = fault
            raise
        return self.known

    async def refresh(self, *, within: float, unless_asked: float) -> bool:
        """Ask unless that was done in the last `unless_asked` seconds; whether it was asked.

        Where there is no answer, what was known stays so, and `fault` is why.
        """
        if asyncio.get_running_loop().time() - self._asked_at < unless_asked:
            return False
        try:
            await self.list_now(within=within)
        except ClusterFault as fault:
            log.debug("the pods of the node cannot be listed", error=fault.message)
        return True

    async def ended(self, pods: Iterable[PodName], *, within: float) -> frozenset[PodName]:
        """Which of them have ended for sure; what cannot be found out in time has not.

        Each is asked for by itself, because only that is answered from the newest there is: a
        new pod may have the name of one that has ended.
        """
        asked = list(pods)
        at_once = asyncio.Semaphore(_AT_ONCE)
        over: set[PodName] = set()

        async def ask(pod: PodName) -> None:
            async with at_once:
                found = await self._access.pod(pod.namespace, pod.name)
            if found is not None and has_ended(found):
                over.add(pod)

        try:
            async with asyncio.timeout(within):
                answers = await asyncio.gather(*map(ask, asked), return_exceptions=True)
        except TimeoutError:
            log.debug("it is not known which pods have ended", error="no answer in time")
        else:
            for answer in answers:
                if isinstance(answer, ClusterFault):
                    log.debug("it is not known whether a pod has ended", error=answer.message)
                elif answer is not None:
                    raise answer
        return frozenset(over)


def _silent(asked: str, within: float) -> ClusterUnreachable:
    return ClusterUnreachable(f"the API server has not answered {asked} within {within:g} s")


CONCERN: Final = Interest(
    annotations=("nodeagent.io/", HAMI_REGISTER), labels=("nvidia.com/", NOS_LABEL)
)

StepsOf = Callable[[NodeFacts], Sequence[Step]]


def facts_of(view: NodeView | None, pods: tuple[PodFact, ...] | None = None) -> NodeFacts:
    """What is known of the Node; of none, nothing."""
    if view is None:
        return NodeFacts(pods=pods)
    return NodeFacts(view.labels, view.annotations, view.unschedulable, view.allocatable, pods)


class OwnNode:
    """The Node `name`. Every method raises `ClusterFault`."""

    def __init__(self, access: ClusterAccess, name: str) -> None:
        self._access = access
        self._name = name

    async def read(self) -> NodeView:
        """The Node as it is now."""
        listed = await self._access.list_node(self._name)
        if listed.node is None:
            raise ObjectMissing(f"the cluster has no Node {self._name}")
        return view_of(listed.node, CONCERN)

    async def patch(self, view: NodeView, step: PatchNode) -> NodeView:
        """Carry out one patch; raises `WriteConflict` if the Node is another than `view` by now."""
        metadata: dict[str, Any] = {"resourceVersion": view.resource_version}
        if step.labels:
            metadata["labels"] = dict(step.labels)
        if step.annotations:
            metadata["annotations"] = dict(step.annotations)
        body: dict[str, Any] = {"metadata": metadata}
        if step.unschedulable is not None:
            body["spec"] = {"unschedulable": step.unschedulable or None}
        patched = view_of(await self._access.patch_node(self._name, body), CONCERN)
        log.info(
            "the Node is changed",
            reason=step.reason,
            labels=dict(step.labels),
            annotations=dict(step.annotations),
            unschedulable=step.unschedulable,
        )
        return patched

    async def patch_all(self, steps_of: StepsOf, *, within: float) -> NodeFacts:
        """Carry out the patches among the steps for the Node as it is; as it is then.

        What may pass by itself is tried again for `within` seconds.
        """
        loop = asyncio.get_running_loop()
        until, backoff = loop.time() + within, Backoff(0.1, 2.0)
        while True:
            try:
                view = await self.read()
                for step in steps_of(facts_of(view)):
                    if isinstance(step, PatchNode):
                        view = await self.patch(view, step)
                return facts_of(view)
            except (ClusterUnreachable, ServerBusy, WriteConflict) as fault:
                pause = backoff.next()
                if loop.time() + pause > until:
                    raise
                log.debug("the Node cannot be changed yet", error=fault.message)
            await asyncio.sleep(pause)
