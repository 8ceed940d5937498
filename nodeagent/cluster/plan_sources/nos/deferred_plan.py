"""What nos asks of a node as a value: only what matters of it, so that nothing else is a change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

from nodeagent.cluster.plan_sources.nos.grammar import MODE_LABEL, SPEC, SPEC_PLAN, Mode, mode_of
from nodeagent.cluster.plan_sources.nos.plugin_configuration import CONFIGURATION_LABEL
from nodeagent.cluster.plan_sources.nos.shares import MEMORY_LABEL
from nodeagent.cluster.plan_sources.nos.to_plan import offer, remarks
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.problems import Problem
from nodeagent.reconcile.plan_update import PlanOffer

_SOME_ID = "0"  # which one it is does not matter to the plan

_Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class NosDemand:
    """Spec annotations and labels in the order of their keys, without the id of nos' plan.

    `plugin_configuration` is the text that the label's key leads to, None where there is none.
    """

    annotations: _Pairs
    labels: _Pairs
    plugin_configuration: str | None

    def on(self, observed: ObservedNode) -> PlanOffer:
        """What it means for this node's cards."""
        return offer(
            dict(self.annotations),
            dict(self.labels),
            observed,
            plugin_configuration=self.plugin_configuration,
        )

    def remarks(self, observed: ObservedNode) -> tuple[Problem, ...]:
        """What nos passes over in silence, or does without being asked in so many words."""
        return remarks(
            dict(self.annotations),
            dict(self.labels),
            observed,
            plugin_configuration=self.plugin_configuration,
        )


def demand(
    annotations: Mapping[str, str],
    labels: Mapping[str, str],
    plugin_configuration: str | None = None,
) -> NosDemand:
    """What a Node with these annotations and labels is asked for."""
    mode = mode_of(labels)
    match mode:
        case None:
            return NosDemand((), _some(labels, MODE_LABEL), None)
        case Mode.MIG:
            return NosDemand(_spec(annotations), _some(labels, MODE_LABEL), None)
        case Mode.MPS | Mode.HYBRID:
            keys = [MODE_LABEL, MEMORY_LABEL]
            if plugin_configuration is None:
                keys.append(CONFIGURATION_LABEL)  # then it is only told of
            # On an MPS node with a configuration the annotations are left over from another time.
            spec = mode is Mode.HYBRID or plugin_configuration is None
            return NosDemand(
                _spec(annotations) if spec else (), _some(labels, *keys), plugin_configuration
            )
        case _:
            assert_never(mode)


def _spec(annotations: Mapping[str, str]) -> _Pairs:
    found = sorted((key, text) for key, text in annotations.items() if key.startswith(SPEC))
    if annotations.get(SPEC_PLAN):
        found.append((SPEC_PLAN, _SOME_ID))
    return tuple(found)


def _some(labels: Mapping[str, str], *keys: str) -> _Pairs:
    return tuple((key, labels[key]) for key in sorted(keys) if key in labels)
