"""What the agent has to say on its Node of the state it is in, whoever asked for a plan and how."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime

from nodeagent.cluster.client.node_patch import Wanted
from nodeagent.cluster.client.node_view import NodeCondition, NodeView
from nodeagent.views.conditions import conditions
from nodeagent.views.layout_facts import LAYOUT, label_changes, layout, layout_labels
from nodeagent.views.node_state import NodeState
from nodeagent.views.status_annotation import STATUS, StatusAnnotation
from nodeagent.views.topology_facts import TOPOLOGY, topology


class NodeWords:
    """The words over time: what does not change is worded as before, the moment in it too.

    `labels`: whether facts for schedulers are labels as well; else those left of ours go away.
    """

    def __init__(
        self, *, labels: bool, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._labels = labels
        self._now = now
        self._status = StatusAnnotation()
        self._facts: tuple[NodeState, Mapping[str, str | None]] | None = None

    def of(self, state: NodeState | None, view: NodeView) -> Wanted:
        """What is to be there for this state on a Node like this; None: nothing is known yet."""
        if state is None:
            return Wanted()
        found = {kind: NodeCondition(**asdict(c)) for kind, c in conditions(state).items()}
        status = self._status.text(state, there=view.annotations.get(STATUS), now=self._now())
        annotations = dict(self._facts_of(state))
        if status is not None:
            annotations[STATUS] = status
        wanted = layout_labels(state.observed) if self._labels else {}
        return Wanted(annotations, label_changes(view.labels, wanted), found)

    def _facts_of(self, state: NodeState) -> Mapping[str, str | None]:
        """Of GPUs that were never looked at there are no facts, and what is there may be right."""
        if state.observed_at is None:
            return {}
        if self._facts is None or self._facts[0] is not state:
            observed = state.observed
            facts = {TOPOLOGY: topology(observed), LAYOUT: layout(observed, state.mps)}
            self._facts = (state, facts)
        return self._facts[1]
