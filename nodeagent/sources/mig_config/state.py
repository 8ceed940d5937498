"""What the state label has to say, and when: never before it was seen on the hardware.

`success` means that the node was looked at since the configuration was asked for, and is as it
says. `pending` means that time alone may lead there: it is not looked at yet, it is being done, or
somebody's work has to end first. `failed` means that a person is needed. Since the label follows
what is so, `failed` becomes `success` when what was wrong has gone, and `success` does not outlive
its truth. An old `success` that is found at the start proves nothing and counts for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

from nodeagent.documents.reading import digest_of
from nodeagent.planning.plan import Verdict
from nodeagent.planning.problems import Code
from nodeagent.reports.node_state import NodeState, Phase
from nodeagent.sources.mig_config.labels import SOURCE, STATE, MigState, wanted_name
from nodeagent.sources.plan_offer import NoPlan, PlanOffer, PlanText, UnreadablePlan

# Waiting for somebody's work to end; a reset that is needed does not come by waiting.
_PASSES_BY_ITSELF = frozenset({Code.IN_USE, Code.MPS_CLIENT})


@dataclass(frozen=True, slots=True)
class Asked:
    """What was offered last, and how many rounds the agent had finished by then.

    A state with no more rounds than that still speaks of what was asked for before.
    """

    offer: PlanOffer
    rounds: int

    def then(self, offer: PlanOffer, rounds: int) -> Asked:
        """The same while the offer is the same, since nothing is judged anew for it."""
        return self if offer == self.offer else Asked(offer, rounds)


def state_labels(
    labels: Mapping[str, str], asked: Asked, node: NodeState
) -> Mapping[str, str | None]:
    """The labels to be there; a state without a configuration is taken away."""
    state = state_of(labels, asked, node)
    return {STATE: None if state is None else state.value}


def state_of(labels: Mapping[str, str], asked: Asked, node: NodeState) -> MigState | None:
    """What is so of the configuration asked for; None when none is."""
    if not wanted_name(labels):
        return None
    match asked.offer:
        case UnreadablePlan():
            return MigState.FAILED
        case NoPlan():
            return MigState.PENDING
        case PlanText() as text:
            return _of_text(text, asked.rounds, node)
        case _:
            assert_never(asked.offer)


def _of_text(text: PlanText, rounds: int, node: NodeState) -> MigState:
    if node.source != SOURCE:
        return MigState.PENDING
    if node.driver_error:
        return MigState.FAILED
    if node.rounds <= rounds:
        return MigState.PENDING
    if node.refusal is not None:
        return MigState.FAILED
    if (node.digest, node.configuration) != (digest_of(text.text), text.configuration):
        return MigState.PENDING
    return _of_phase(node)


def _of_phase(node: NodeState) -> MigState:
    match node.phase:
        case Phase.IN_SYNC:
            seen = node.plan is not None and node.plan.verdict is Verdict.IN_SYNC
            return MigState.SUCCESS if seen else MigState.PENDING
        case Phase.WORKING:
            return MigState.PENDING
        case Phase.BLOCKED:
            left = {problem.code for problem in node.problems} - _PASSES_BY_ITSELF
            return MigState.FAILED if left else MigState.PENDING
        case Phase.REJECTED | Phase.FAILED:
            return MigState.FAILED
        case _:
            assert_never(node.phase)
