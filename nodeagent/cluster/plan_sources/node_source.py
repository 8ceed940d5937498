"""The ways in which a Node says what is wanted of it and hears what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

from nodeagent.cluster.client.node_view import NodeView
from nodeagent.reconcile.plan_update import Demand, NoPlan, PlanOffer
from nodeagent.views.node_state import NodeState

NO_NODE = NoPlan("the cluster has no Node of this name")

Offer = Callable[[PlanOffer | Demand], None]
"""Takes what a source has to say; the same twice is nothing new."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of the Node to write; None takes a key away, and those not named stay as they are."""

    annotations: Mapping[str, str | None] = field(default_factory=dict)
    labels: Mapping[str, str | None] = field(default_factory=dict)


class NodeSource(Protocol):
    """A plan source that lives on the Node. `saw` and `answer` must not take long."""

    async def run(self) -> NoReturn:
        """Follow what it needs beside the Node (files, ConfigMaps) until cancelled."""
        ...

    def saw(self, view: NodeView | None) -> None:
        """The Node is like this now; None: there is no such Node. Offers what it asks for."""
        ...

    def answer(self, view: NodeView, state: NodeState, offered: PlanOffer | None) -> Keys:
        """What is to be written on the Node; `offered` is what `state` was made from."""
        ...

    def withdrawal(self, view: NodeView) -> Keys:
        """What is to be taken away when another source takes this one's place."""
        ...
