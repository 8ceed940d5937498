"""A plan source that lives on the Node: what all of them share, and the agent's own annotations.

These hold a plan, the name of a configuration in the plan file, or both. A text is passed on as it
is; the document reader checks it.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, assert_never

from nodeagent.cluster.client.node_view import NodeView, Wanted
from nodeagent.reconcile import plan_update
from nodeagent.reconcile.plan_file import PlanFile
from nodeagent.structs import replace
from nodeagent.text import quote
from nodeagent.views.node_state import NodeState

NO_NODE = plan_update.NoPlan("the cluster has no Node of this name")

Requested = plan_update.PlanUpdate | plan_update.DeferredPlan
Offer = Callable[[Requested], None]
"""Takes what a source offers."""
FollowFile = Callable[[Callable[[plan_update.PlanUpdate], None]], PlanFile]
"""Makes the plan file that offers what it holds to this function."""


class NodeSource:
    """Offers what the Node asks for, each thing once, and answers on the Node.

    A source implements `requested`, and `answer` if it writes to the Node; neither may take long.
    `rounds` is how many rounds the loop has finished by now. The plan file that `follow` makes is
    followed while `run` runs.
    """

    def __init__(
        self, offer: Offer, *, rounds: Callable[[], int], follow: FollowFile | None = None
    ) -> None:
        self._offer = offer
        self._rounds = rounds
        self._file = follow(self._take_file) if follow else None
        self._view: NodeView | None = None
        self._is_observed = False  # the Node, or that there is none
        self._rounds_before = 0  # when the last offer was made
        self.file: plan_update.PlanUpdate | None = None  # None: not read yet
        self.last_offer: Requested | None = None

    async def run(self) -> None:
        """Follow what the source needs beside the Node, if anything, until cancelled."""
        await (self._file.run() if self._file else asyncio.Event().wait())

    def observe(self, view: NodeView | None) -> None:
        """The Node is like this now; None: there is no such Node."""
        self._view, self._is_observed = view, True
        self.update()

    def use_last_good(self, why: str) -> None:
        """Keep the last good plan in force while there is no view of the Node yet."""
        self._offer(plan_update.NoPlan(why))

    def requested(self, view: NodeView) -> Requested | None:
        """What the Node asks for; None while that is not known."""
        raise NotImplementedError

    def answer(
        self, view: NodeView, state: NodeState, offered: plan_update.PlanUpdate | None
    ) -> Wanted:
        """What is to be written on the Node; `offered` is what `state` was made from."""
        return Wanted()

    def update(self) -> None:
        """Offer what is asked for now, if it is another thing."""
        if not self._is_observed:
            return
        found = NO_NODE if self._view is None else self.requested(self._view)
        if found is not None and found != self.last_offer:
            self.last_offer = found
            self._rounds_before = self._rounds()
            self._offer(found)

    def is_judged_in(self, state: NodeState) -> bool:
        """Whether this state was made from the last offer.

        A round that is under way when something new is asked for is not counted by the loop, so
        only a state with more rounds was.
        """
        return self.last_offer is not None and state.rounds > self._rounds_before

    def _take_file(self, file: plan_update.PlanUpdate) -> None:
        self.file = file
        self.update()


# --- the agent's own annotations ------------------------------------------------------------------

PLAN: Final = "nodeagent.io/plan"
PLAN_NAME: Final = "nodeagent.io/plan-name"


def offer(annotations: Mapping[str, str], file: plan_update.PlanUpdate) -> plan_update.PlanUpdate:
    """What the annotations ask for; `file` is what the plan file offers, for a name alone.

    A plan counts before a name alone, and takes the name along: it may be a mig-parted file. An
    empty name is as if it were not there.
    """
    plan, name = annotations.get(PLAN), annotations.get(PLAN_NAME) or None
    if plan is not None:
        # A lone surrogate is refused where texts are read, with its place.
        return plan_update.PlanText(plan.encode("utf-8", "surrogatepass"), name)
    if name is None:
        return plan_update.NoPlan(f"the Node has no annotation {PLAN}, and no {PLAN_NAME}")
    match file:
        case plan_update.PlanText():
            return replace(file, configuration=name)
        case plan_update.NoPlan(reason, problem):
            why = f"the annotation {PLAN_NAME} is {quote(name)}, but {reason}"
            return plan_update.NoPlan(why, replace(problem, message=why) if problem else None)
        case plan_update.UnreadablePlan():
            return file
        case _:
            assert_never(file)


class AnnotationSource(NodeSource):
    """Offers what `nodeagent.io/plan` and `plan-name` say; a name alone is one of the plan file.

    Before the file is read, a name alone means nothing yet. The status annotation is the answer.
    """

    def requested(self, view: NodeView) -> plan_update.PlanUpdate | None:
        if self.file is None and PLAN not in view.annotations:
            return None
        return offer(view.annotations, self.file or NO_NODE)
