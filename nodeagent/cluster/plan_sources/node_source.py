"""A plan source that lives on the Node: what all of them share."""

from __future__ import annotations

from collections.abc import Callable

from nodeagent.cluster.client.node_view import NodeView, Wanted
from nodeagent.reconcile.plan_file import PlanFile
from nodeagent.reconcile.plan_update import DeferredPlan, NoPlan, PlanUpdate
from nodeagent.views.node_state import NodeState

NO_NODE = NoPlan("the cluster has no Node of this name")

Requested = PlanUpdate | DeferredPlan
Offer = Callable[[Requested], None]
"""Takes what a source offers."""
FollowFile = Callable[[Callable[[PlanUpdate], None]], PlanFile]
"""Makes the plan file that offers what it holds to this function."""


class NodeSource:
    """Offers what the Node asks for, each thing once, and answers on the Node.

    A source implements `requested`, and `answer` and `withdrawal` if it writes to the Node; none of
    them may take long. `rounds` is how many rounds the loop has finished by now. The plan file that
    `follow` makes is followed while `run` runs.
    """

    def __init__(
        self,
        offer: Offer,
        *,
        rounds: Callable[[], int],
        follow: FollowFile | None = None,
    ) -> None:
        self._offer = offer
        self._rounds = rounds
        self._file = follow(self._take_file) if follow else None
        self._view: NodeView | None = None
        self._is_observed = False  # the Node, or that there is none
        self._rounds_before = 0  # when the last offer was made
        self.file: PlanUpdate | None = None  # None: not read yet
        self.last_offer: Requested | None = None

    async def run(self) -> None:
        """Follow what the source needs beside the Node, if anything, until cancelled."""
        if self._file is not None:
            await self._file.run()

    def observe(self, view: NodeView | None) -> None:
        """The Node is like this now; None: there is no such Node."""
        self._view, self._is_observed = view, True
        self.update()

    def use_last_good(self, why: str) -> None:
        """Without a view of the Node so far, keep the last good plan in force."""
        self._offer(NoPlan(why))

    def requested(self, view: NodeView) -> Requested | None:
        """What the Node asks for; None while that is not known."""
        raise NotImplementedError

    def answer(self, view: NodeView, state: NodeState, offered: PlanUpdate | None) -> Wanted:
        """What is to be written on the Node; `offered` is what `state` was made from."""
        return Wanted()

    def withdrawal(self, view: NodeView) -> Wanted:
        """What is to be taken away when another source takes this one's place."""
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

    def _take_file(self, file: PlanUpdate) -> None:
        self.file = file
        self.update()
