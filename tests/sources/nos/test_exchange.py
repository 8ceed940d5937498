"""A MIG node and an MPS node in conversation with nos, step by step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nodeagent.documents.reading import read_document
from nodeagent.planning.desired import DesiredNode
from nodeagent.planning.observed import MigMode, ObservedNode
from nodeagent.planning.planner import plan
from nodeagent.planning.resolve import resolve
from nodeagent.reports.mps_state import DaemonState
from nodeagent.reports.node_state import Phase
from nodeagent.sources.nos.offering import offer
from nodeagent.sources.nos.status import status_annotations
from nodeagent.sources.plan_offer import NoPlan, PlanOffer, PlanText
from tests.sources.nos.nodes import client, divided, gpu, shared, state

_FILE = Path(__file__).parents[2] / "data/nos/exchanges.json"
EXCHANGES: dict[str, Any] = json.loads(_FILE.read_text())


def _patched(there: Mapping[str, str], patch: Mapping[str, str | None]) -> dict[str, str]:
    merged = {**there, **patch}
    return {key: value for key, value in merged.items() if value is not None}


def _desired(offered: PlanText, observed: ObservedNode) -> DesiredNode:
    desired = resolve(read_document(offered.text), observed)
    assert isinstance(desired, DesiredNode)
    return desired


def _seen(
    gpus: list[Any], offered: PlanOffer, bare: ObservedNode
) -> tuple[ObservedNode, tuple[DaemonState, ...]]:
    """The GPUs of a step: MIG as listed, shares with the daemon that the plan asks for."""
    seen, daemons = [], []
    for empty, found in zip(bare.gpus, gpus, strict=True):
        if isinstance(found, list):
            seen.append(divided(empty, *map(tuple, found)))
        elif not found:
            seen.append(empty)
        else:
            assert isinstance(offered, PlanText)
            runs = _desired(offered, bare).gpus[empty.uuid].mps
            assert runs is not None
            assert {share.name for share in runs.sharing.shares} == set(found)
            slots = [(share, slot) for share, slots in found.items() for slot in slots]
            clients = [
                client(100 + number, share, slot.removeprefix(f"{share}-"), pod=slot)
                for number, (share, slot) in enumerate(slots)
            ]
            one, daemon = shared(empty, runs, *clients)
            seen.append(one)
            daemons.append(daemon)
    return ObservedNode(tuple(seen)), tuple(daemons)


@pytest.mark.parametrize("mode", ["mig", "mps"])
def test_exchange(mode: str) -> None:
    """Each step asks for the plan that is recorded, is judged so, and is answered so."""
    exchange = EXCHANGES[mode]
    labels: dict[str, str] = exchange["labels"]
    annotations: dict[str, str] = {"example.com/other": "stays"}
    is_on = MigMode(current=mode == "mig", pending=mode == "mig")
    bare = ObservedNode((gpu(0, mig=is_on), gpu(1, mig=is_on)))
    configuration: str | None = None
    asked: dict[str, Any] | None = None
    for step in exchange["steps"]:
        annotations = _patched(annotations, step["partitioner"])
        labels = {**labels, **step.get("labels", {})}
        configuration = step.get("configuration", configuration)
        asked = step.get("plan", asked)
        offered = offer(annotations, labels, bare, plugin_configuration=configuration)
        observed, daemons = _seen(step["node"]["gpus"], offered, bare)
        # The offer must not depend on what the GPUs hold.
        again = offer(annotations, labels, observed, plugin_configuration=configuration)
        assert again == offered, step["what"]
        if asked is None:
            assert isinstance(offered, NoPlan), step["what"]
        else:
            assert isinstance(offered, PlanText), step["what"]
            assert json.loads(offered.text) == asked, step["what"]
            verdict = plan(_desired(offered, observed), observed).verdict
            assert verdict == step["verdict"], step["what"]
        answer = status_annotations(
            state(observed, offered, Phase(step["node"]["phase"]), mps=daemons),
            offered,
            annotations=annotations,
            labels=labels,
        )
        patch = {key: value for key, value in answer.items() if annotations.get(key) != value}
        assert patch == step["agent"], step["what"]
        annotations = _patched(annotations, patch)
    assert annotations["example.com/other"] == "stays"
