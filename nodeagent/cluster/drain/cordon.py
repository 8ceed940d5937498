"""Taking the node out of scheduling for a while, without ending a cordon that is somebody else's.

An annotation of ours, set and taken away together with the cordon, says that it was the agent's.
A cordon without it is left alone, before and afterwards. Who cordons a node that the agent has
cordoned already cannot be told apart from it; uncordoning ends both.
"""

from __future__ import annotations

from typing import Final

from nodeagent.cluster.drain.node_facts import NodeFacts
from nodeagent.cluster.drain.steps import PatchNode

CORDONED: Final = "nodeagent.io/cordoned"


def cordoning(node: NodeFacts) -> PatchNode | None:
    """None when the node is cordoned already, by whomever."""
    if node.unschedulable:
        return None
    return PatchNode(
        "nothing new is to come here while the GPUs change",
        annotations={CORDONED: "true"},
        unschedulable=True,
    )


def uncordoning(node: NodeFacts) -> PatchNode | None:
    """None when the agent did not cordon it. Somebody's uncordon in between is kept, and only the
    annotation goes then.
    """
    if CORDONED not in node.annotations:
        return None
    return PatchNode(
        "the GPUs are changed" if node.unschedulable else "somebody has uncordoned it already",
        annotations={CORDONED: None},
        unschedulable=False if node.unschedulable else None,
    )
