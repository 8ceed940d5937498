"""What nos requests of a node, as a plan in the agent's own language.

The text depends only on what is requested and on the cards, never on the order of keys or the id
of nos' plan: a new id that requests the same is the same plan, with the same digest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nodeagent.cluster.plan_sources.nos.grammar import (
    CONFIGURATION_LABEL,
    MODE_LABEL,
    SPEC,
    SPEC_PLAN,
    PartitioningKind,
    Requests,
    partitioning_of,
    read_spec,
)
from nodeagent.cluster.plan_sources.nos.requested_devices import (
    MEMORY_LABEL,
    GpuRequest,
    card_memory,
    emptied,
    mps_entry,
    read_configuration,
    requested_devices,
)
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
    """What nos requests by these annotations and labels; `plugin_configuration` is the text that
    `configuration_key` leads to, None without one: where it is given, it defines the shares.
    """

    annotations: Mapping[str, str]
    labels: Mapping[str, str]
    plugin_configuration: str | None = None

    def on(self, observed: ObservedNode) -> PlanUpdate:
        """The plan for this node's cards. A GPU in MIG mode for which nos requests nothing is
        emptied.
        """
        mode = partitioning_of(self.labels)
        if mode is None:
            return NoPlan(_not_divided(self.labels))
        reading = self._read(mode)
        if reading is None:
            return NoPlan(_nothing_asked(mode, self.labels))
        requests, wrong = requested_devices(mode, reading.devices, observed)
        faults = (*reading.wrong, *wrong)
        if faults:
            return UnreadablePlan(_as_one(faults))
        whole = [*requests.values(), *emptied(mode, requests, observed)]
        gpus = [_entry(gpu, self.labels) for gpu in sorted(whole, key=lambda gpu: gpu.index)]
        document = {"version": "v1", "gpus": gpus}
        text = json.dumps(document, separators=(",", ":")).encode()
        return UnreadablePlan(_too_large(text)) if len(text) > MAX_PLAN else PlanText(text)

    @property
    def ignored(self) -> tuple[Problem, ...]:
        """What nos ignores in silence, at most 20; it keeps no plan from being executed."""
        mode = partitioning_of(self.labels)
        reading = self._read(mode) if mode else None
        return reading.ignored[:MAX_PROBLEMS] if reading else ()

    def _read(self, mode: PartitioningKind) -> Requests | None:
        """All that is requested in this mode; None when nos has requested nothing yet."""
        # Without an id the annotations are not to be acted upon.
        spec = read_spec(self.annotations) if self.annotations.get(SPEC_PLAN) else None
        if mode is PartitioningKind.MIG:
            return spec
        if self.plugin_configuration is None:
            reading = spec or Requests()
        else:
            # With a configuration the annotations are left from another time.
            reading = read_configuration(self.plugin_configuration)
        return reading if reading.devices or reading.wrong else None


def deferred_plan(
    annotations: Mapping[str, str],
    labels: Mapping[str, str],
    plugin_configuration: str | None = None,
) -> DeferredNosPlan:
    """What nos requests of this Node, reduced to what matters, so that nothing else is a change."""
    mode = partitioning_of(labels)
    spec = {key: text for key, text in annotations.items() if key.startswith(SPEC)}
    if annotations.get(SPEC_PLAN):
        spec[SPEC_PLAN] = _SOME_ID
    keys = [MODE_LABEL]
    if mode is PartitioningKind.MPS:
        keys.append(MEMORY_LABEL)
        if plugin_configuration is None:
            keys.append(CONFIGURATION_LABEL)  # it is only named in a message then
    else:
        plugin_configuration = None
    if mode is None or plugin_configuration is not None:
        spec = {}
    found = {key: labels[key] for key in keys if key in labels}
    return DeferredNosPlan(spec, found, plugin_configuration)


def _not_divided(labels: Mapping[str, str]) -> str:
    value = labels.get(MODE_LABEL)
    modes = [mode.value for mode in PartitioningKind]
    if value is None:
        return f"nos does not divide this node: it has no label {MODE_LABEL}"
    return (
        f"nos does not divide this node: its label {MODE_LABEL} is {quote(value)}, not one of "
        f"{listed(modes)} {did_you_mean(value.strip(), modes)}"
    ).rstrip()


def _nothing_asked(mode: PartitioningKind, labels: Mapping[str, str]) -> str:
    if mode is PartitioningKind.MIG:
        return f"nos has no plan for this node yet: it has no annotation {SPEC_PLAN}"
    key = labels.get(CONFIGURATION_LABEL)
    where = f"under {quote(key)}" if key else f"no label {CONFIGURATION_LABEL} is there"
    return (
        "nos has no shares for this node yet: neither in the device plugin's configuration "
        f"({where}) nor in annotations with a {SPEC_PLAN}"
    )


# --- the text -------------------------------------------------------------------------------------


def _entry(request: GpuRequest, labels: Mapping[str, str]) -> dict[str, Any]:
    if request.shares:  # of the whole GPU, so it must not be in MIG mode
        shared = mps_entry(request.shares, card_memory(request.gpu, labels))
        return {"devices": [request.index], "mig": "disabled", "mps": shared}
    return {"devices": [request.index], "mig": dict(sorted(request.instances.items()))}


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
