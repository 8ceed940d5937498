"""What the tests of nos' protocol share: nodes as nos sees them, and a recorded conversation."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nodeagent.cluster.plan_sources.nos.grammar import MODE_LABEL, SPEC_PLAN
from nodeagent.cluster.plan_sources.nos.to_plan import DeferredNosPlan
from nodeagent.documents.reading import digest_of, read_document
from nodeagent.plan.desired import DesiredNode
from nodeagent.plan.observed import Gpu, MigMode, ObservedNode
from nodeagent.plan.problems import Problem
from nodeagent.plan.resolve import resolve
from nodeagent.reconcile.plan_update import PlanText, PlanUpdate
from nodeagent.structs import replace
from nodeagent.views.node_state import NodeState, Phase
from tests.plan.cards import card, with_instances

MIG = {MODE_LABEL: "mig"}
PLAN_ID = "1714000000"
OFF = MigMode(current=False, pending=False)
NOW = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


def gpu(index: int, board: str = "a100-40gb", **more: Any) -> Gpu:
    """An empty card at this index; in MIG mode where it has any."""
    return replace(card(board), index=index, uuid=f"GPU-{index}", **more)


def node(*gpus: Gpu) -> ObservedNode:
    return ObservedNode(gpus)


TWO = node(gpu(0), gpu(1))


def spec(plan: str | None = PLAN_ID, /, **profiles: str) -> dict[str, str]:
    """Spec annotations, with a plan id; the keywords are what follows `spec-gpu-`."""
    keys = {f"nos.nebuly.com/spec-gpu-{key}": value for key, value in profiles.items()}
    return keys if plan is None else {**keys, SPEC_PLAN: plan}


def divided(empty: Gpu, *parts: tuple[str, int, bool]) -> Gpu:
    """The GPU with instances given as (profile, memory slice, in use)."""
    places = [(profile, start) for profile, start, _ in parts]
    used = [number for number, part in enumerate(parts) if part[2]]
    return with_instances(empty, places, used)


def state(
    observed: ObservedNode,
    offered: PlanUpdate | None = None,
    phase: Phase = Phase.IN_SYNC,
    **more: Any,
) -> NodeState:
    """The agent's state after a round in which it took what was offered."""
    digest = digest_of(offered.text) if isinstance(offered, PlanText) else ""
    known = NodeState("node-a", "nos", phase, digest, observed=observed, observed_at=NOW, rounds=1)
    return replace(known, **more)


def offer(
    annotations: Mapping[str, str], labels: Mapping[str, str], observed: ObservedNode
) -> PlanUpdate:
    return DeferredNosPlan(annotations, labels).on(observed)


def ignored(annotations: Mapping[str, str], labels: Mapping[str, str]) -> tuple[Problem, ...]:
    return DeferredNosPlan(annotations, labels).ignored


# --- the recorded conversation ------------------------------------------------------------------

_FILE = Path(__file__).parents[3] / "data/nos/exchanges.json"
EXCHANGE: dict[str, Any] = json.loads(_FILE.read_text())["mig"]


def patched(there: Mapping[str, str], patch: Mapping[str, str | None]) -> dict[str, str]:
    merged = {**there, **patch}
    return {key: value for key, value in merged.items() if value is not None}


def desired(offered: PlanText, observed: ObservedNode) -> DesiredNode:
    resolved = resolve(read_document(offered.text), observed)
    assert isinstance(resolved, DesiredNode)
    return resolved


def seen(gpus: list[Any], bare: ObservedNode) -> ObservedNode:
    """The GPUs of a step, with MIG devices as listed."""
    pairs = zip(bare.gpus, gpus, strict=True)
    return node(*(divided(empty, *map(tuple, found)) for empty, found in pairs))
