"""What a source on the Node asked for last, and whether a state already speaks of that."""

from __future__ import annotations

from collections.abc import Callable

from nodeagent.cluster.plan_sources.node_source import Offer
from nodeagent.reconcile.plan_update import Demand, PlanOffer
from nodeagent.views.node_state import NodeState


class Asked:
    """Hands on what a source asks for, each thing once.

    `rounds` says how many rounds the loop has finished by now. One that is under way when
    something new is asked for is not counted by the loop, so only a state with more rounds was
    made from what was asked.
    """

    def __init__(self, offer: Offer, rounds: Callable[[], int]) -> None:
        self._offer = offer
        self._rounds = rounds
        self._since = 0
        self.last: PlanOffer | Demand | None = None

    def ask(self, what: PlanOffer | Demand) -> None:
        """Ask for this from now on."""
        if what != self.last:
            self.last = what
            self._since = self._rounds()
            self._offer(what)

    def is_judged_in(self, state: NodeState) -> bool:
        """Whether this state was made from what was asked for last."""
        return self.last is not None and state.rounds > self._since
