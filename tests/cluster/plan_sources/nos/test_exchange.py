"""A MIG node and an MPS node in conversation with nos, step by step."""

from __future__ import annotations

import json
from typing import Any

from nodeagent.cluster.plan_sources.nos.status import status_annotations
from nodeagent.plan.planner import plan
from nodeagent.reconcile.plan_update import NoPlan, PlanText
from nodeagent.views.node_state import Phase
from tests.cluster.plan_sources.nos.exchange import EXCHANGES, bare_node, desired, patched, seen
from tests.cluster.plan_sources.nos.nodes import offer, state


def test_exchange() -> None:
    """Each step asks for the plan that is recorded, is judged so, and is answered so."""
    cases: list[str] = ["mig", "mps"]
    for mode in cases:
        exchange = EXCHANGES[mode]
        labels: dict[str, str] = exchange["labels"]
        annotations: dict[str, str] = {"example.com/other": "stays"}
        bare = bare_node(mode)
        configuration: str | None = None
        asked: dict[str, Any] | None = None
        for step in exchange["steps"]:
            annotations = patched(annotations, step["partitioner"])
            labels = {**labels, **step.get("labels", {})}
            configuration = step.get("configuration", configuration)
            asked = step.get("plan", asked)
            offered = offer(annotations, labels, bare, plugin_configuration=configuration)
            observed, daemons = seen(step["node"]["gpus"], offered, bare)
            # The offer must not depend on what the GPUs hold.
            again = offer(annotations, labels, observed, plugin_configuration=configuration)
            assert again == offered, step["what"]
            if asked is None:
                assert isinstance(offered, NoPlan), step["what"]
            else:
                assert isinstance(offered, PlanText), step["what"]
                assert json.loads(offered.text) == asked, step["what"]
                verdict = plan(desired(offered, observed), observed).verdict
                assert verdict == step["verdict"], step["what"]
            answer = status_annotations(
                state(observed, offered, Phase(step["node"]["phase"]), mps=daemons),
                offered,
                annotations=annotations,
                labels=labels,
            )
            patch = {key: value for key, value in answer.items() if annotations.get(key) != value}
            assert patch == step["agent"], step["what"]
            annotations = patched(annotations, patch)
        assert annotations["example.com/other"] == "stays"
