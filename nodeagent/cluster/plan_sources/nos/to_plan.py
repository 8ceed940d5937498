"""What nos requests of a node, as a plan in the agent's own language.

The text depends only on what is requested and on the cards, never on the order of keys or the id
of nos' plan: a new id that requests the same is the same plan, with the same digest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from nodeagent.cluster.plan_sources.nos.grammar import (
    BY_MIG,
    MODE_LABEL,
    SPEC,
    SPEC_PLAN,
    is_divided,
    read_spec,
)
from nodeagent.cluster.plan_sources.nos.requested_devices import emptied, requested_devices
from nodeagent.documents.findings import MAX_PROBLEMS
from nodeagent.documents.reading import MAX_PLAN
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.plan_update import NoPlan, PlanText, PlanUpdate, UnreadablePlan
from nodeagent.structs import replace
from nodeagent.text import did_you_mean, listed, quote

_SOME_ID = "0"  # which one it is does not matter to the plan
_MAX_NAMED = 3  # further places in a sentence about the first


@dataclass(frozen=True, slots=True)
class DeferredNosPlan:
    """What nos requests by these annotations and labels."""

    annotations: Mapping[str, str]
    labels: Mapping[str, str]

    def on(self, observed: ObservedNode) -> PlanUpdate:
        """The plan for this node's cards. A GPU in MIG mode for which nos requests nothing is
        emptied.
        """
        if not is_divided(self.labels):
            return NoPlan(_not_divided(self.labels))
        if not self.annotations.get(SPEC_PLAN):
            return NoPlan(f"nos has no plan for this node yet: it has no annotation {SPEC_PLAN}")
        reading = read_spec(self.annotations)
        requests, wrong = requested_devices(reading.devices, observed)
        faults = (*reading.wrong, *wrong)
        if faults:
            return UnreadablePlan(_as_one(faults))
        whole = [*requests.values(), *emptied(requests, observed)]
        gpus = [
            {"devices": [gpu.index], "mig": dict(sorted(gpu.instances.items()))}
            for gpu in sorted(whole, key=lambda gpu: gpu.index)
        ]
        document = {"version": "v1", "gpus": gpus}
        text = json.dumps(document, separators=(",", ":")).encode()
        return UnreadablePlan(_too_large(text)) if len(text) > MAX_PLAN else PlanText(text)

    @property
    def ignored(self) -> tuple[Problem, ...]:
        """What nos ignores in silence, at most 20; it keeps no plan from being executed."""
        # Without an id the annotations are not to be acted upon.
        counts = is_divided(self.labels) and self.annotations.get(SPEC_PLAN)
        return read_spec(self.annotations).ignored[:MAX_PROBLEMS] if counts else ()


def deferred_plan(annotations: Mapping[str, str], labels: Mapping[str, str]) -> DeferredNosPlan:
    """What nos requests of this Node, reduced to what matters, so that nothing else is a change."""
    found = {MODE_LABEL: labels[MODE_LABEL]} if MODE_LABEL in labels else {}
    if not is_divided(labels):
        return DeferredNosPlan({}, found)
    spec = {key: text for key, text in annotations.items() if key.startswith(SPEC)}
    if annotations.get(SPEC_PLAN):
        spec[SPEC_PLAN] = _SOME_ID
    return DeferredNosPlan(spec, found)


def _not_divided(labels: Mapping[str, str]) -> str:
    value = labels.get(MODE_LABEL)
    if value is None:
        return f"nos does not divide this node: it has no label {MODE_LABEL}"
    if value == "mps":
        return (
            f"nos does not divide this node by MIG: its label {MODE_LABEL} is mps, which needs a "
            "plan of your own with mps, by another plan.source"
        )
    return (
        f"nos does not divide this node: its label {MODE_LABEL} is {quote(value)}, not {BY_MIG} "
        f"{did_you_mean(value.strip(), (BY_MIG,))}"
    ).rstrip()


# --- the text -------------------------------------------------------------------------------------


def _too_large(text: bytes) -> Problem:
    size, most = f"{len(text):,}", f"{MAX_PLAN:,}"
    return Problem.of(Code.DOES_NOT_FIT, "tooLarge", size=size, most=most)


def _as_one(faults: tuple[Problem, ...]) -> Problem:
    """The first fault, with where the others are."""
    first, others = faults[0], [fault.path for fault in faults[1:] if fault.path]
    if not others:
        return first
    also = listed(dict.fromkeys(others), _MAX_NAMED)
    return replace(first, message=f"{first.message} (wrong too: {also})")
