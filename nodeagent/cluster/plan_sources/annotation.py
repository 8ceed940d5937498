"""The agent's own annotations as a plan source: a plan, the name of a configuration in the plan
file, or both. A text is passed on as it is; the document reader checks it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, NoReturn, assert_never

from nodeagent.cluster.client.node_view import NodeView
from nodeagent.cluster.client.node_writer import Wanted
from nodeagent.cluster.plan_sources.node_source import NO_NODE, Offer
from nodeagent.reconcile.plan_file import PlanFile
from nodeagent.reconcile.plan_update import NoPlan, PlanText, PlanUpdate, UnreadablePlan
from nodeagent.text import shown
from nodeagent.views.node_state import NodeState

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
            why = f"the annotation {PLAN_NAME} is {shown(name)}, but {reason}"
            return NoPlan(why, replace(problem, message=why) if problem else None)
        case UnreadablePlan():
            return file
        case _:
            assert_never(file)


class AnnotationSource:
    """Offers what `nodeagent.io/plan` and `plan-name` say; a name alone is one of `plan_file`.

    The file is followed while `run` runs; before it is read, a name alone means nothing yet.
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
        self._file: PlanUpdate | None = None
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

    def answer(self, view: NodeView, state: NodeState, offered: PlanUpdate | None) -> Wanted:
        """Nothing of its own: the status annotation reports the result."""
        return Wanted()

    def withdrawal(self, view: NodeView) -> Wanted:
        """Nothing: the annotations are the user's."""
        return Wanted()

    def _took(self, file: PlanUpdate) -> None:
        self._file = file
        self._ask()

    def _ask(self) -> None:
        if not self._seen:
            return
        if self._view is None:
            self._offer(NO_NODE)
        elif self._file is not None:
            self._offer(offer(self._view.annotations, self._file))
        elif PLAN in self._view.annotations:
            # A plan is written there, so the file does not matter.
            self._offer(offer(self._view.annotations, NO_NODE))
