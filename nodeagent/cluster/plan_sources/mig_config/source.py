"""NVIDIA mig-manager's node label as a plan source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, assert_never

from nodeagent.cluster.client.node_view import NodeView
from nodeagent.cluster.plan_sources.last_offer import Asked
from nodeagent.cluster.plan_sources.mig_config.labels import CONFIG, STATE, MigState, wanted_name
from nodeagent.cluster.plan_sources.mig_config.state import state_of
from nodeagent.cluster.plan_sources.mig_config.to_plan import MigConfigDemand
from nodeagent.cluster.plan_sources.node_source import NO_NODE, Keys, Offer
from nodeagent.reconcile.plan_file import PlanFile
from nodeagent.reconcile.plan_update import NoPlan, PlanOffer, PlanText, UnreadablePlan
from nodeagent.views.node_state import NodeState, Phase

_NO_LABEL = NoPlan(f"the Node has no label {CONFIG}")


class MigConfigSource:
    """Asks for the configuration that the label names, and tells by the other how it went.

    `plan_file` is the mounted mig-parted file, which may be missing; it is followed while `run`
    runs, and nothing is asked for before it was looked at, because it counts before what is
    generated. `rounds` says how many rounds the loop has finished. `look_every` (seconds) and
    `alive` are those of `PlanFile`.
    """

    def __init__(
        self,
        offer: Offer,
        plan_file: Path,
        *,
        rounds: Callable[[], int],
        look_every: float | None = None,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        self._asked = Asked(offer, rounds)
        self._watch = PlanFile(plan_file, self._took, look_every=look_every, alive=alive)
        self._file: PlanOffer | None = None
        self._view: NodeView | None = None
        self._seen = False
        self._said: MigState | None = None
        self._has_failed = False

    async def run(self) -> NoReturn:
        """Follow the mounted file until cancelled."""
        while True:
            await self._watch.run()

    def saw(self, view: NodeView | None) -> None:
        """Ask for what the label of this Node names."""
        self._view, self._seen = view, True
        self._ask()

    def answer(self, view: NodeView, state: NodeState, offered: PlanOffer | None) -> Keys:
        """The state label as it has to be."""
        judged = self._asked.is_judged_in(state)
        if not judged or state.phase is not Phase.WORKING or not self._has_failed:
            found = state_of(view.labels, state, offered, judged=judged)
            # While what failed is tried again it has still failed, and a person is still needed.
            self._has_failed = judged and found is MigState.FAILED
            self._said = found
        return Keys(labels={STATE: None if self._said is None else self._said.value})

    def withdrawal(self, view: NodeView) -> Keys:
        """The state, which nobody keeps true any more; the configuration is the asker's."""
        return Keys(labels={STATE: None})

    def _took(self, file: PlanOffer) -> None:
        self._file = file
        self._ask()

    def _ask(self) -> None:
        if self._seen:
            wanted = self._wanted()
            if wanted is not None:
                self._asked.ask(wanted)

    def _wanted(self) -> PlanOffer | MigConfigDemand | None:
        """What is asked for now; None while that is not known."""
        if self._view is None:
            return NO_NODE
        name = wanted_name(self._view.labels)
        if not name:
            return _NO_LABEL
        match self._file:
            case None:
                return None
            case PlanText(text):
                return MigConfigDemand(name, text)
            case NoPlan():
                return MigConfigDemand(name, None)
            case UnreadablePlan():
                return self._file
            case _:
                assert_never(self._file)
