"""The agent's own annotations as a plan source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from nodeagent.cluster.client.node_view import NodeView
from nodeagent.cluster.plan_sources.annotation import to_plan as annotation
from nodeagent.cluster.plan_sources.node_source import NO_NODE, Keys, Offer
from nodeagent.reconcile.plan_file import PlanFile
from nodeagent.reconcile.plan_update import PlanOffer
from nodeagent.views.node_state import NodeState


class AnnotationSource:
    """Offers what `nodeagent.io/plan` and `plan-name` say; a name alone is one of `plan_file`.

    The file is followed while `run` runs; before it was looked at, a name alone says nothing yet.
    `look_every` (seconds) and `alive` are those of `PlanFile`.
    """

    def __init__(
        self,
        offer: Offer,
        plan_file: Path,
        *,
        look_every: float | None = None,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        self._offer = offer
        self._watch = PlanFile(plan_file, self._took, look_every=look_every, alive=alive)
        self._file: PlanOffer | None = None
        self._view: NodeView | None = None
        self._seen = False

    async def run(self) -> NoReturn:
        """Follow the plan file until cancelled."""
        while True:
            await self._watch.run()

    def saw(self, view: NodeView | None) -> None:
        """Offer what this Node asks for."""
        self._view, self._seen = view, True
        self._ask()

    def answer(self, view: NodeView, state: NodeState, offered: PlanOffer | None) -> Keys:
        """Nothing of its own: the status annotation tells what came of it."""
        return Keys()

    def withdrawal(self, view: NodeView) -> Keys:
        """Nothing: what was asked for is the asker's."""
        return Keys()

    def _took(self, file: PlanOffer) -> None:
        self._file = file
        self._ask()

    def _ask(self) -> None:
        if not self._seen:
            return
        if self._view is None:
            self._offer(NO_NODE)
        elif self._file is not None:
            self._offer(annotation.offer(self._view.annotations, self._file))
        elif annotation.PLAN in self._view.annotations:
            # A plan is written there, so what the file says does not matter.
            self._offer(annotation.offer(self._view.annotations, NO_NODE))
