"""What a plan source that lives on the Node has to do, and what they share."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, Protocol

from nodeagent.cluster.client.node_view import NodeView
from nodeagent.cluster.client.node_writer import Wanted
from nodeagent.reconcile.plan_update import DeferredPlan, NoPlan, PlanUpdate
from nodeagent.views.node_state import NodeState

NO_NODE = NoPlan("the cluster has no Node of this name")

Offer = Callable[[PlanUpdate | DeferredPlan], None]
"""Takes what a source has to say; the same twice is nothing new."""


class NodeSource(Protocol):
    """A plan source that lives on the Node. `saw` and `answer` must not take long."""

    async def run(self) -> NoReturn:
        """Follow what it needs beside the Node (files, ConfigMaps) until cancelled."""
        ...

    def saw(self, view: NodeView | None) -> None:
        """The Node is like this now; None: there is no such Node. Offers what it asks for."""
        ...

    def answer(self, view: NodeView, state: NodeState, offered: PlanUpdate | None) -> Wanted:
        """What is to be written on the Node; `offered` is what `state` was made from."""
        ...

    def withdrawal(self, view: NodeView) -> Wanted:
        """What is to be taken away when another source takes this one's place."""
        ...


class LastOffer:
    """Hands on what a source offers, each thing once.

    `rounds` says how many rounds the loop has finished by now. One that is under way when
    something new is asked for is not counted by the loop, so only a state with more rounds was
    made from what was asked.
    """

    def __init__(self, offer: Offer, rounds: Callable[[], int]) -> None:
        self._offer = offer
        self._rounds = rounds
        self._since = 0
        self.last: PlanUpdate | DeferredPlan | None = None

    def update(self, what: PlanUpdate | DeferredPlan) -> None:
        """Offer this from now on."""
        if what != self.last:
            self.last = what
            self._since = self._rounds()
            self._offer(what)

    def is_judged_in(self, state: NodeState) -> bool:
        """Whether this state was made from what was asked for last."""
        return self.last is not None and state.rounds > self._since
