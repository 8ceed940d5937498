"""The agent's own annotations as a plan source: a plan, the name of a configuration in the plan
file, or both. A text is passed on as it is; the document reader checks it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, assert_never

from nodeagent.cluster.client.node_view import NodeView
from nodeagent.cluster.plan_sources.node_source import NO_NODE, NodeSource
from nodeagent.reconcile.plan_update import NoPlan, PlanText, PlanUpdate, UnreadablePlan
from nodeagent.structs import replace
from nodeagent.text import quote

PLAN: Final = "nodeagent.io/plan"
PLAN_NAME: Final = "nodeagent.io/plan-name"


def offer(annotations: Mapping[str, str], file: PlanUpdate) -> PlanUpdate:
    """What the annotations ask for; `file` is what the plan file offers, for a name alone.

    A plan counts before a name alone, and takes the name along: it may be a mig-parted file. An
    empty name is as if it were not there.
    """
    plan, name = annotations.get(PLAN), annotations.get(PLAN_NAME) or None
    if plan is not None:
        # A lone surrogate is refused where texts are read, with its place.
        return PlanText(plan.encode("utf-8", "surrogatepass"), name)
    if name is None:
        return NoPlan(f"the Node has no annotation {PLAN}, and no {PLAN_NAME}")
    match file:
        case PlanText():
            return replace(file, configuration=name)
        case NoPlan(reason, problem):
            why = f"the annotation {PLAN_NAME} is {quote(name)}, but {reason}"
            return NoPlan(why, replace(problem, message=why) if problem else None)
        case UnreadablePlan():
            return file
        case _:
            assert_never(file)


class AnnotationSource(NodeSource):
    """Offers what `nodeagent.io/plan` and `plan-name` say; a name alone is one of the plan file.

    Before the file is read, a name alone means nothing yet. The status annotation is the answer.
    """

    def requested(self, view: NodeView) -> PlanUpdate | None:
        if self.file is None and PLAN not in view.annotations:
            return None
        return offer(view.annotations, self.file or NO_NODE)
