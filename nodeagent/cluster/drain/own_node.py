"""The agent's Node, read and patched at once, where what is done next hangs on it.

A patch is bound to the version that it was thought out for, so that it never undoes what somebody
else has written in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import structlog

from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.faults import (
    ClusterUnreachable,
    ObjectMissing,
    ServerBusy,
    WriteConflict,
)
from nodeagent.cluster.client.node_view import Interest, NodeView, view_of
from nodeagent.cluster.drain.node_facts import NodeFacts, PodFact
from nodeagent.cluster.drain.owners import HAMI_REGISTER, NOS_LABEL
from nodeagent.cluster.drain.steps import PatchNode, Step

log = structlog.get_logger(__name__)

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
        until, pause = loop.time() + within, 0.1
        while True:
            try:
                view = await self.read()
                for step in steps_of(facts_of(view)):
                    if isinstance(step, PatchNode):
                        view = await self.patch(view, step)
                return facts_of(view)
            except (ClusterUnreachable, ServerBusy, WriteConflict) as fault:
                if loop.time() + pause > until:
                    raise
                log.debug("the Node cannot be changed yet", error=fault.message)
            await asyncio.sleep(pause)
            pause = min(2 * pause, 2.0)
