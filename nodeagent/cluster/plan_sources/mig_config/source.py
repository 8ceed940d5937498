"""NVIDIA mig-manager's node labels as a plan source: one names a configuration, one its state.

`success`: the node was observed after the configuration was requested, and matches it. `pending`:
time alone may lead there (not observed yet, in progress, or waiting for a workload to end).
`failed`: a person is needed. The label follows the hardware, so `failed` becomes `success` once
the cause is gone, and an old `success` found at the start counts for nothing.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, assert_never

from nodeagent.cluster.client.node_view import NodeView, Wanted
from nodeagent.cluster.plan_sources.mig_config.to_plan import CONFIG, DeferredMigConfig
from nodeagent.cluster.plan_sources.node_source import NodeSource
from nodeagent.documents.reading import digest_of
from nodeagent.plan.plan import Verdict
from nodeagent.plan.problems import Code
from nodeagent.reconcile.plan_update import NoPlan, PlanText, PlanUpdate, UnreadablePlan
from nodeagent.views.node_state import NodeState, Phase

STATE: Final = "nvidia.com/mig.config.state"


class MigState(StrEnum):
    """Values of the state label.

    mig-manager knows `rebooting` too, which is never written here: this agent reboots no node.
    """

    PENDING = "pending"
    SUCCESS = "success"
    FAILED = "failed"


# Waiting for a workload to end, or for the API server; a reset that is needed does not come
# by waiting.
_PASSES_BY_ITSELF = frozenset({Code.IN_USE, Code.CLUSTER})


def state_of(
    labels: Mapping[str, str], node: NodeState, offered: PlanUpdate | None, *, judged: bool
) -> MigState | None:
    """How far the configuration is applied that the labels ask for; None when they ask for none.

    `offered` is what the node's state was made from, and `judged` whether that is what these
    labels ask for: else the state still speaks of what was asked for before.
    """
    if not labels.get(CONFIG):
        return None
    if node.driver_error:
        return MigState.FAILED
    if not judged:
        return MigState.PENDING
    match offered:
        case UnreadablePlan():
            return MigState.FAILED
        case NoPlan() | None:
            return MigState.PENDING
        case PlanText(text, configuration):
            if node.refusal is not None:
                return MigState.FAILED
            is_current = (node.digest, node.configuration) == (digest_of(text), configuration)
            return _of_phase(node) if is_current else MigState.PENDING
        case _:
            assert_never(offered)


def _of_phase(node: NodeState) -> MigState:
    match node.phase:
        case Phase.IN_SYNC:
            seen = node.plan is not None and node.plan.verdict is Verdict.IN_SYNC
            return MigState.SUCCESS if seen else MigState.PENDING
        case Phase.WORKING | Phase.NO_PLAN:
            return MigState.PENDING
        case Phase.BLOCKED:
            return MigState.PENDING if node.blocking <= _PASSES_BY_ITSELF else MigState.FAILED
        case Phase.REJECTED | Phase.FAILED:
            return MigState.FAILED
        case _:
            assert_never(node.phase)


_NO_LABEL = NoPlan(f"the Node has no label {CONFIG}")


class MigConfigSource(NodeSource):
    """Requests the configuration that one label names, and reports on it by the other.

    The plan file is the mounted mig-parted file, which may be missing; nothing is asked for before
    it was read, because it counts before what is generated.
    """

    _state: MigState | None = None  # as in the label
    _has_failed = False

    def requested(self, view: NodeView) -> PlanUpdate | DeferredMigConfig | None:
        name = view.labels.get(CONFIG)
        if not name:
            return _NO_LABEL
        match self.file:
            case None | UnreadablePlan():
                return self.file
            case PlanText(text):
                return DeferredMigConfig(name, text)
            case NoPlan():
                return DeferredMigConfig(name, None)
            case _:
                assert_never(self.file)

    def answer(self, view: NodeView, state: NodeState, offered: PlanUpdate | None) -> Wanted:
        """The state label as it has to be."""
        judged = self.is_judged_in(state)
        if not judged or state.phase is not Phase.WORKING or not self._has_failed:
            self._state = state_of(view.labels, state, offered, judged=judged)
            # While what failed is tried again it has still failed, and a person is still needed.
            self._has_failed = judged and self._state is MigState.FAILED
        return Wanted(labels={STATE: self._state and self._state.value})
