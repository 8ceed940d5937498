import json
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
from nodeagent.plan.observed import Access, ObservedNode
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.plan_update import NoPlan, PlanText, PlanUpdate, UnreadablePlan
from nodeagent.structs import replace
from tests.cluster.plan_sources.nos.rig import (
    MIG,
    MPS,
    OFF,
    TWO,
    gpu,
    ignored,
    node,
    offer,
    spec,
)

TEN = """\
version: v1
sharing:
  mps:
    resources:
    - {name: nvidia.com/gpu, rename: gpu-10gb, memoryGB: 10, replicas: 2, devices: ["1"]}
"""


def gpus(offered: PlanUpdate) -> list[dict[str, Any]]:
    assert isinstance(offered, PlanText), offered
    document = json.loads(offered.text)
    assert set(document) == {"version", "gpus"}
    entries: list[dict[str, Any]] = document["gpus"]
    return entries


def problem(offered: PlanUpdate) -> Problem:
    assert isinstance(offered, UnreadablePlan), offered
    return offered.problem


def reason(offered: PlanUpdate) -> str:
    assert isinstance(offered, NoPlan), offered
    return offered.reason


# --- MIG --------------------------------------------------------------------------------------


def test_counts() -> None:
    """Counts by profile, GPUs in their order; the same device in two spellings is added up."""
    asked = spec(**{"1-7g.40gb": "1", "0-1g.5gb": "2", "00-1g.5gb": "1", "0-1g.5gb.me": "1"})
    assert gpus(offer(asked, MIG, TWO)) == [
        {"devices": [0], "mig": {"1g.5gb": 3, "1g.5gb+me": 1}},
        {"devices": [1], "mig": {"7g.40gb": 1}},
    ]


def test_no_plan_id() -> None:
    """Spec annotations without an id are not acted upon; nothing would be destroyed by mistake."""
    cases: list[str | None] = [None, ""]
    for plan in cases:
        assert SPEC_PLAN in reason(offer(spec(plan, **{"0-1g.5gb": "2"}), MIG, TWO))


def test_spec_is_total() -> None:
    """A GPU in MIG mode without a spec is emptied; one without MIG mode, or MIG, is left alone."""
    observed = node(gpu(0), gpu(1), gpu(2, mig=OFF), gpu(3, "t4"))
    asked = spec(**{"0-7g.40gb": "1"})
    assert gpus(offer(asked, MIG, observed)) == [
        {"devices": [0], "mig": {"7g.40gb": 1}},
        {"devices": [1], "mig": {}},
    ]


def test_mode_is_switched_on() -> None:
    """A GPU outside MIG mode that has a spec gets it, which nos' own agent could not do."""
    observed = node(gpu(0, mig=OFF))
    assert gpus(offer(spec(**{"0-7g.40gb": "1"}), MIG, observed))[0]["mig"] == {"7g.40gb": 1}


def test_refused() -> None:
    """What cannot be meant is refused whole; the problem names key, fault and what is right."""
    cases: list[tuple[str, str, Code, str, str]] = [
        ("0-7g.40gb", "-1", Code.INVALID_VALUE, "requests -1", "a number from 1 on"),
        ("0-7g40gb", "1", Code.UNKNOWN_PROFILE, '"7g40gb"', "a MIG profile such as 1g.10gb"),
        ("0-10gb", "1", Code.UNKNOWN_PROFILE, "is mig", "a MIG profile such as 1g.10gb"),
        ("0-", "1", Code.UNKNOWN_PROFILE, '""', "a MIG profile such as 1g.10gb"),
        ("0-3g.40gb", "1", Code.UNKNOWN_PROFILE, "3g.40gb", "it offers 1g.5gb"),
        ("0-1g.5gb", "17", Code.DOES_NOT_FIT, "17 MIG devices", "at most 16"),
        ("0-1g.5gb", str(2**63 - 1), Code.DOES_NOT_FIT, "MIG devices", "at most 16"),
        ("2-1g.5gb", "1", Code.NOT_MIG_CAPABLE, "has no MIG", "remove it, or set the label"),
        ("3-1g.5gb", "1", Code.UNKNOWN_DEVICE, "names GPU 3", "it has 0, 1, 2"),
    ]
    observed = node(gpu(0), gpu(1), gpu(2, "t4"))
    for key, count, code, found, right in cases:
        what = problem(offer(spec(**{"1-7g.40gb": "1", key: count}), MIG, observed))
        assert what.code is code
        assert f"spec-gpu-{key}" in what.path
        assert found in what.message
        assert right in what.remedy


def test_first_of_several() -> None:
    asked = spec(**{f"0-x{n}": "1" for n in range(1000)})
    what = problem(offer(asked, MIG, TWO))
    assert "spec-gpu-0-x0" in what.path
    assert "spec-gpu-0-x1" in what.message
    assert "and 17 more" in what.message


def test_before_the_first_look() -> None:
    nothing = ObservedNode()
    assert gpus(offer(spec(**{"5-9g.1gb": "1"}), MIG, nothing)) == [
        {"devices": [5], "mig": {"9g.1gb": 1}}
    ]
    assert problem(offer(spec(**{"1024-1g.5gb": "1"}), MIG, nothing)).code is Code.UNKNOWN_DEVICE


# --- MPS --------------------------------------------------------------------------------------


def test_share_annotations() -> None:
    entries = gpus(offer(spec(**{"0-20gb": "1", "0-5gb": "2"}), MPS, TWO))
    assert list(entries[0]["mps"]["shares"]) == ["5gb", "20gb"]
    assert [entry["devices"] for entry in entries] == [[0]]


def test_configuration_counts() -> None:
    left = spec(**{"0-7g.40gb": "1", "0-nonsense": "1"})
    assert offer(left, MPS, TWO, plugin_configuration=TEN) == offer(
        {}, MPS, TWO, plugin_configuration=TEN
    )


def test_no_shares() -> None:
    """Without a share there is no plan, so that a daemon that runs is not stopped."""
    cases: list[tuple[dict[str, str], str | None]] = [
        ({}, None),
        ({}, "version: v1"),
        (spec(), None),
        (spec(None, **{"0-10gb": "1"}), None),
    ]
    for asked, configuration in cases:
        offered = offer(asked, MPS, TWO, plugin_configuration=configuration)
        assert "nos has no shares for this node yet" in reason(offered)


def test_refused_shares() -> None:
    cases: list[tuple[str, str, str, str]] = [
        ("0-1g.5gb", "1", "is mps", "a share such as 10gb"),
        ("0-010gb", "1", "010gb", "a share such as 10gb"),
        ("0-0gb", "1", "0gb", "a share such as 10gb"),
        ("0-1gb", "129", "129 shares", "at most 128"),
        ("9-1gb", "1", "GPU 9", "it has 0, 1"),
    ]
    for key, count, found, right in cases:
        what = problem(offer(spec(**{key: count}), MPS, TWO))
        assert f"spec-gpu-{key}" in what.path
        assert found in what.message
        assert right in what.remedy


def test_memory_does_not_waver() -> None:
    labels = {**MPS, MEMORY_LABEL: "40960"}
    silent = node(gpu(0), replace(gpu(1), access=Access.UNKNOWN, memory=0))
    known = offer({}, labels, TWO, plugin_configuration=TEN)
    assert offer({}, labels, silent, plugin_configuration=TEN) == known


# --- neither -----------------------------------------------------------------------------------


def test_no_mode() -> None:
    """Without one of nos' words on the label the node is not nos', whatever else is there."""
    cases: list[str | None] = [None, "", "mixed", "MIG", "mig ", "\x1b[31m"]
    for value in cases:
        labels = {} if value is None else {MODE_LABEL: value}
        text = reason(offer(spec(**{"0-7g.40gb": "1"}), labels, TWO))
        assert MODE_LABEL in text
        assert text.isprintable()
        assert ("did you mean mig?" in text) is (value in ("MIG", "mig "))
        assert ignored(spec(**{"0-x-y": "1"}), labels) == ()


def test_too_large() -> None:
    """More kinds of shares than a plan can hold are refused as what they are."""
    observed = node(*(gpu(n) for n in range(40)))
    asked = spec(**{f"{n}-{size}gb": "1" for n in range(40) for size in range(10001, 10101)})
    assert "at most 65,536" in problem(offer(asked, MPS, observed)).message


# --- what is ignored --------------------------------------------------------------------------


def test_what_is_ignored() -> None:
    asked = spec(**{"0-7g.40gb": "1", "0-1g.5gb": "0", "1-1g.10gb-me": "1"})
    assert len(ignored(asked, MIG)) == 2
    assert ignored(spec(**{"0-7g.40gb": "1", "1-7g.40gb": "1"}), MIG) == ()
    assert len(ignored(spec(**{f"{n}-x-y": "1" for n in range(1000)}), MIG)) == 20


# --- what is another request ----------------------------------------------------------------------

TENS = "{sharing: {mps: {resources: [{rename: gpu-10gb, replicas: 2, devices: ['0']}]}}}"
ASKED = spec(**{"0-7g.40gb": "1"})
KEYED = {CONFIGURATION_LABEL: "node-a-1"}

NOTHING_NEW = [
    {"nos.nebuly.com/status-gpu-0-7g.40gb-free": "1"},
    {STATUS_PLAN: "1"},
    {"nodeagent.io/status": "{}"},
    {SPEC_PLAN: "1714009999"},
]


@pytest.mark.parametrize("more", NOTHING_NEW)
@pytest.mark.parametrize(("labels", "text"), [(MIG, None), (MPS, TENS), (MPS, None)])
def test_what_does_not_matter(
    more: dict[str, str], labels: dict[str, str], text: str | None
) -> None:
    other = {**labels, "nvidia.com/gpu.product": "x"}
    assert deferred_plan({**ASKED, **more}, other, text) == deferred_plan(ASKED, labels, text)


@pytest.mark.parametrize("text", [None, TENS])
@pytest.mark.parametrize("labels", [MIG, MPS, {}, {MODE_LABEL: "x"}, {**MPS, **KEYED}])
def test_nothing_is_lost(labels: dict[str, str], text: str | None) -> None:
    """The reduced value means, and ignores, what all that is on the Node would."""
    labels = {**labels, MEMORY_LABEL: "40960"}
    silent = node(*(replace(one, memory=0) for one in TWO.gpus))
    for asked in (ASKED, spec(None, **{"0-10gb": "1"}), {}, spec()):
        found = deferred_plan(asked, labels, text)
        for seen in (TWO, silent):
            assert found.on(seen) == offer(asked, labels, seen, plugin_configuration=text)
        assert found.ignored == ignored(asked, labels, plugin_configuration=text)
