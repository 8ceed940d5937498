"""What the state label has to say, and when: never before it was seen on the hardware.

`success` means that the node was looked at since the configuration was asked for, and is as it
says. `pending` means that time alone may lead there: it is not looked at yet, it is being done, or
somebody's work has to end first. `failed` means that a person is needed. Since the label follows
what is so, `failed` becomes `success` when what was wrong has gone, and `success` does not outlive
its truth. An old `success` that is found at the start proves nothing and counts for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from nodeagent.cluster.plan_sources.mig_config.labels import SOURCE, MigState, wanted_name
from nodeagent.documents.reading import digest_of
from nodeagent.plan.plan import Verdict
from nodeagent.plan.problems import Code
from nodeagent.reconcile.plan_update import NoPlan, PlanOffer, PlanText, UnreadablePlan
from nodeagent.views.node_state import NodeState, Phase

# Waiting for somebody's work to end, or for the API server; a reset that is needed does not come
# by waiting.
_PASSES_BY_ITSELF = frozenset({Code.IN_USE, Code.MPS_CLIENT, Code.CLUSTER})


def state_of(
    labels: Mapping[str, str], node: NodeState, offered: PlanOffer | None, *, judged: bool
) -> MigState | None:
    """What is so of the configuration that the labels ask for; None when they ask for none.

    `offered` is what the node's state was made from, and `judged` whether that is what these
    labels ask for: else the state still speaks of what was asked for before.
    """
    if not wanted_name(labels):
        return None
    if node.source != SOURCE:
        return MigState.PENDING
    if node.driver_error:
        return MigState.FAILED
    if not judged:
        return MigState.PENDING
    match offered:
        case UnreadablePlan():
            return MigState.FAILED
        case NoPlan() | None:
            return MigState.PENDING
        case PlanText():
            return _of_text(offered, node)
        case _:
            assert_never(offered)


def _of_text(text: PlanText, node: NodeState) -> MigState:
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
        case Phase.WORKING | Phase.NO_PLAN:
            return MigState.PENDING
        case Phase.BLOCKED:
            left = {problem.code for problem in node.problems} - _PASSES_BY_ITSELF
            return MigState.FAILED if left else MigState.PENDING
        case Phase.REJECTED | Phase.FAILED:
            return MigState.FAILED
        case _:
            assert_never(node.phase)
