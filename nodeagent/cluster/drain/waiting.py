"""Whether what is waited for has come, and the words when it has not in time."""

from __future__ import annotations

from nodeagent.cluster.drain.node_facts import NodeFacts, PodFact
from nodeagent.cluster.drain.steps import PodSelector
from nodeagent.plan.problems import Code, Problem


def pods_left(selector: PodSelector, node: NodeFacts) -> tuple[PodFact, ...] | None:
    """The unfinished pods that still match; None when nobody could say which pods are here."""
    if node.pods is None:
        return None
    return tuple(pod for pod in node.pods if not pod.finished and selector.matches(pod))


def still_there(selector: PodSelector, left: tuple[PodFact, ...] | None, seconds: float) -> Problem:
    """The wait is over and they are not gone; nothing was changed, and the labels are put back."""
    if left is None:
        who = f"whether the pods {selector} have gone is not known"
    else:
        who = f"the pods {', '.join(map(str, left))} ({selector}) have not gone"
    return Problem(
        Code.IN_USE,
        f"{who} within {seconds:g} s, so the GPUs were not changed",
        "see why with kubectl describe pod; it is tried again",
    )
