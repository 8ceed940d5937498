"""nos' requests as a value: what is another one, and what is not."""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.cluster.plan_sources.nos.grammar import (
    CONFIGURATION_LABEL,
    MODE_LABEL,
    SPEC_PLAN,
    STATUS_PLAN,
)
from nodeagent.cluster.plan_sources.nos.requested_devices import MEMORY_LABEL
from nodeagent.cluster.plan_sources.nos.to_plan import deferred_plan
from tests.cluster.plan_sources.nos.nodes import HYBRID, MIG, MPS, TWO, offer, remarks, spec

TEN = "{sharing: {mps: {resources: [{rename: gpu-10gb, replicas: 2, devices: ['0']}]}}}"
ASKED = spec(**{"0-7g.40gb": "1"})
KEYED = {CONFIGURATION_LABEL: "node-a-1"}

NOTHING_NEW = [
    {"nos.nebuly.com/status-gpu-0-7g.40gb-free": "1"},
    {STATUS_PLAN: "1"},
    {"nodeagent.io/status": "{}"},
    {SPEC_PLAN: "1714009999"},
]


@pytest.mark.parametrize("more", NOTHING_NEW)
@pytest.mark.parametrize(
    ("labels", "text"), [(MIG, None), (HYBRID, None), (HYBRID, TEN), (MPS, TEN), (MPS, None)]
)
def test_what_does_not_matter(
    more: dict[str, str], labels: dict[str, str], text: str | None
) -> None:
    """Our own answers, a new id of nos' plan and strangers' keys make no new plan."""
    other = {**labels, "nvidia.com/gpu.product": "x"}
    assert deferred_plan({**ASKED, **more}, other, text) == deferred_plan(ASKED, labels, text)


def test_a_new_key_with_the_same_text() -> None:
    """The label's key only leads to the text; another one with the same is nothing new."""
    labels = {**MPS, **KEYED}
    assert deferred_plan({}, labels, TEN) == deferred_plan(
        {}, {**labels, CONFIGURATION_LABEL: "b"}, TEN
    )


def test_what_matters() -> None:
    """Another count, another key, no id any more, another mode or text is another plan."""
    cases: list[tuple[Any, Any, Any]] = [
        (spec(**{"0-7g.40gb": "2"}), MIG, None),
        (spec(None, **{"0-7g.40gb": "1"}), MIG, None),
        (spec("", **{"0-7g.40gb": "1"}), MIG, None),
        ({**ASKED, "nos.nebuly.com/spec-gpuX-0-1g.5gb": "1"}, MIG, None),
        (ASKED, {}, None),
        (ASKED, MPS, None),
        (ASKED, MPS, TEN),
        (ASKED, HYBRID, TEN),
    ]
    for other in cases:
        assert deferred_plan(*other) != deferred_plan(ASKED, MIG)


@pytest.mark.parametrize("text", [None, TEN])
@pytest.mark.parametrize("labels", [MIG, MPS, HYBRID, {}, {MODE_LABEL: "x"}, {**MPS, **KEYED}])
def test_nothing_is_lost(labels: dict[str, str], text: str | None) -> None:
    """The reduced value means, and remarks on, what all that is on the Node would."""
    labels = {**labels, MEMORY_LABEL: "40960"}
    for asked in (ASKED, spec(None, **{"0-10gb": "1"}), {}, spec()):
        found = deferred_plan(asked, labels, text)
        assert found.on(TWO) == offer(asked, labels, TWO, plugin_configuration=text)
        assert found.remarks(TWO) == remarks(asked, labels, TWO, plugin_configuration=text)
