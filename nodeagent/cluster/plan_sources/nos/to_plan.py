"""What nos asks of the node, as a plan in the agent's own language.

So everything behind a plan source works as for any other plan. The text depends only on what is
asked for and on the cards, never on the order of keys or the id of nos' plan: a new id that asks
for the same is the same plan, with the same digest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, assert_never

from nodeagent.cluster.plan_sources.nos.grammar import (
    MODE_LABEL,
    SPEC,
    SPEC_PLAN,
    Mode,
    Reading,
    mode_of,
    read_spec,
    share_size,
    spelled,
)
from nodeagent.cluster.plan_sources.nos.plugin_configuration import (
    CONFIGURATION_LABEL,
    read_configuration,
)
from nodeagent.cluster.plan_sources.nos.requested_devices import (
    MEMORY_LABEL,
    GpuRequest,
    card_memory,
    emptied,
    mps_entry,
    requested_devices,
)
from nodeagent.documents.findings import MOST_PROBLEMS
from nodeagent.documents.reading import LARGEST_PLAN
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.plan_update import NoPlan, PlanText, PlanUpdate, UnreadablePlan
from nodeagent.text import did_you_mean, listed, shown

_MOST_NAMED = 3  # further places in a sentence about the first


def offer(
    annotations: Mapping[str, str],
    labels: Mapping[str, str],
    observed: ObservedNode,
    *,
    plugin_configuration: str | None = None,
) -> PlanUpdate:
    """The plan that nos has for a node with these annotations and labels.

    `plugin_configuration` is the text that `configuration_key` leads to; where it is given, it
    says what the shares are. To be made anew whenever any of the arguments changes: a GPU in MIG
    mode that nos asks nothing of is emptied, so the GPUs there are belong to what is asked.
    """
    mode = mode_of(labels)
    if mode is None:
        return NoPlan(_not_divided(labels))
    reading = _read(mode, annotations, plugin_configuration)
    if reading is None:
        return NoPlan(_nothing_asked(mode, labels))
    requests, wrong = requested_devices(mode, reading.asked, observed)
    faults = (*reading.wrong, *wrong)
    if faults:
        return UnreadablePlan(_as_one(faults))
    text = _document([*requests.values(), *emptied(mode, requests, observed)], labels)
    return UnreadablePlan(_too_large(text)) if len(text) > LARGEST_PLAN else PlanText(text)


def remarks(
    annotations: Mapping[str, str],
    labels: Mapping[str, str],
    observed: ObservedNode,
    *,
    plugin_configuration: str | None = None,
) -> tuple[Problem, ...]:
    """What nos passes over in silence, or does without being asked in so many words.

    None of it keeps the plan from being carried out. At most 20, and one that says so.
    """
    mode = mode_of(labels)
    reading = _read(mode, annotations, plugin_configuration) if mode else None
    if mode is None or reading is None:
        return ()
    requests, _ = requested_devices(mode, reading.asked, observed)
    going = [request for request in emptied(mode, requests, observed) if request.has_devices]
    found = (*map(_told_of, going), *_unspeakable(mode, observed), *reading.ignored)
    if len(found) <= MOST_PROBLEMS:
        return found
    more = f"there are {len(found) - MOST_PROBLEMS} more remarks of this kind"
    return (*found[:MOST_PROBLEMS], Problem(Code.INVALID_VALUE, more, "mend these and look again"))


# --- what is there to read --------------------------------------------------------------------


def _read(
    mode: Mode, annotations: Mapping[str, str], plugin_configuration: str | None
) -> Reading | None:
    """All that is asked in this mode; None when nos has said nothing yet."""
    has_plan = bool(annotations.get(SPEC_PLAN))  # without an id it is not to be acted upon
    configuration = plugin_configuration if mode is not Mode.MIG else None
    match mode:
        case Mode.MIG:
            return read_spec(annotations) if has_plan else None
        case Mode.MPS:
            if configuration is None:
                return _if_asked(read_spec(annotations)) if has_plan else None
            # Spec annotations are then left from a time when the node had another label.
            return _if_asked(read_configuration(configuration))
        case Mode.HYBRID:
            spec = read_spec(annotations) if has_plan else Reading()
            if configuration is None:
                return _if_asked(spec)
            return _if_asked(_together(spec, read_configuration(configuration)))
        case _:
            assert_never(mode)


def _if_asked(reading: Reading) -> Reading | None:
    return reading if reading.asked or reading.wrong else None


def _together(spec: Reading, configuration: Reading) -> Reading:
    """MIG as the annotations say, shares as the configuration says."""
    instances = tuple(one for one in spec.asked if share_size(one.profile) is None)
    return Reading(
        (*instances, *configuration.asked),
        (*spec.wrong, *configuration.wrong),
        spec.ignored,
    )


def _not_divided(labels: Mapping[str, str]) -> str:
    value = labels.get(MODE_LABEL)
    modes = [mode.value for mode in Mode]
    if value is None:
        return f"nos does not divide this node: it has no label {MODE_LABEL}"
    return (
        f"nos does not divide this node: its label {MODE_LABEL} is {shown(value)}, not one of "
        f"{listed(modes)} {did_you_mean(value.strip(), modes)}"
    ).rstrip()


def _nothing_asked(mode: Mode, labels: Mapping[str, str]) -> str:
    if mode is Mode.MIG:
        return f"nos has no plan for this node yet: it has no annotation {SPEC_PLAN}"
    key = labels.get(CONFIGURATION_LABEL)
    where = f"under {shown(key)}" if key else f"no label {CONFIGURATION_LABEL} is there"
    return (
        "nos has no shares for this node yet: neither in the device plugin's configuration "
        f"({where}) nor in annotations with a {SPEC_PLAN}"
    )


def _told_of(request: GpuRequest) -> Problem:
    return Problem(
        Code.DOES_NOT_FIT,
        f"nos requests nothing of GPU {request.index}, which is in MIG mode: by its protocol every "
        "free MIG device there goes",
        "the device plugin may refuse to work with a GPU in MIG mode that has no device; give it "
        "a spec annotation",
        gpu=request.uuid,
    )


def _unspeakable(mode: Mode, observed: ObservedNode) -> Iterator[Problem]:
    """The MIG devices that nos is not told of, because none of its keys can hold their names."""
    if mode is Mode.MPS:
        return
    for gpu in observed.gpus:
        devices = {device.profile for i in gpu.instances for device in i.compute}
        for profile in sorted(devices):
            if spelled(profile) is None:
                yield Problem(
                    Code.UNSUPPORTED,
                    f"GPU {gpu.index} has a {profile}, which nos cannot be told of: its "
                    "annotations cannot hold the name. It takes the room for free",
                    "take a profile without - and , in its name",
                    gpu=gpu.uuid,
                )


# --- the text ---------------------------------------------------------------------------------


def _document(requests: Iterable[GpuRequest], labels: Mapping[str, str]) -> bytes:
    entries = [
        _entry(request, labels) for request in sorted(requests, key=lambda request: request.index)
    ]
    return json.dumps({"version": "v1", "gpus": entries}, separators=(",", ":")).encode()


def _entry(request: GpuRequest, labels: Mapping[str, str]) -> dict[str, Any]:
    if request.shares:  # of the whole GPU, so it must not be in MIG mode
        shared = mps_entry(request.shares, card_memory(request.gpu, labels))
        return {"devices": [request.index], "mig": "disabled", "mps": shared}
    return {"devices": [request.index], "mig": dict(sorted(request.instances.items()))}


def _too_large(text: bytes) -> Problem:
    return Problem(
        Code.DOES_NOT_FIT,
        f"nos asks for so much that the plan has {len(text):,} bytes; one has at most "
        f"{LARGEST_PLAN:,} (64 KiB)",
        "ask for fewer kinds of shares",
    )


def _as_one(faults: tuple[Problem, ...]) -> Problem:
    """The first fault, with where the others are."""
    first, others = faults[0], [fault.path for fault in faults[1:] if fault.path]
    if not others:
        return first
    also = listed(dict.fromkeys(others), _MOST_NAMED)
    return replace(first, message=f"{first.message} (wrong too: {also})")


_SOME_ID = "0"  # which one it is does not matter to the plan

_Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class DeferredNosPlan:
    """Spec annotations and labels in the order of their keys, without the id of nos' plan.

    `plugin_configuration` is the text that the label's key leads to, None where there is none.
    """

    annotations: _Pairs
    labels: _Pairs
    plugin_configuration: str | None

    def on(self, observed: ObservedNode) -> PlanUpdate:
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
) -> DeferredNosPlan:
    """What a Node with these annotations and labels is asked for."""
    mode = mode_of(labels)
    match mode:
        case None:
            return DeferredNosPlan((), _some(labels, MODE_LABEL), None)
        case Mode.MIG:
            return DeferredNosPlan(_spec(annotations), _some(labels, MODE_LABEL), None)
        case Mode.MPS | Mode.HYBRID:
            keys = [MODE_LABEL, MEMORY_LABEL]
            if plugin_configuration is None:
                keys.append(CONFIGURATION_LABEL)  # then it is only told of
            # On an MPS node with a configuration the annotations are left over from another time.
            spec = mode is Mode.HYBRID or plugin_configuration is None
            return DeferredNosPlan(
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
