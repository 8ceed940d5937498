import json
from typing import Any

import pytest

from nodeagent.cluster.plan_sources.nos.grammar import MODE_LABEL, SPEC_PLAN, STATUS_PLAN
from nodeagent.cluster.plan_sources.nos.to_plan import deferred_plan
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.plan_update import NoPlan, PlanText, PlanUpdate, UnreadablePlan
from tests.cluster.plan_sources.nos.rig import MIG, OFF, TWO, gpu, ignored, node, offer, spec


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
        ("2-1g.5gb", "1", Code.NOT_MIG_CAPABLE, "has no MIG", "remove it"),
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


# --- neither -----------------------------------------------------------------------------------


def test_no_mode() -> None:
    """Without one of nos' words on the label the node is not nos', whatever else is there."""
    cases: list[str | None] = [None, "", "hybrid", "mps", "MIG", "mig ", "\x1b[31m"]
    for value in cases:
        labels = {} if value is None else {MODE_LABEL: value}
        text = reason(offer(spec(**{"0-7g.40gb": "1"}), labels, TWO))
        assert MODE_LABEL in text
        assert text.isprintable()
        assert ("did you mean mig?" in text) is (value in ("MIG", "mig "))
        assert ignored(spec(**{"0-x-y": "1"}), labels) == ()


# --- what is ignored --------------------------------------------------------------------------


def test_what_is_ignored() -> None:
    asked = spec(**{"0-7g.40gb": "1", "0-1g.5gb": "0", "1-1g.10gb-me": "1"})
    assert len(ignored(asked, MIG)) == 2
    assert ignored(spec(**{"0-7g.40gb": "1", "1-7g.40gb": "1"}), MIG) == ()
    assert len(ignored(spec(**{f"{n}-x-y": "1" for n in range(1000)}), MIG)) == 20


# --- what is another request ----------------------------------------------------------------------

ASKED = spec(**{"0-7g.40gb": "1"})

NOTHING_NEW = [
    {"nos.nebuly.com/status-gpu-0-7g.40gb-free": "1"},
    {STATUS_PLAN: "1"},
    {"nodeagent.io/status": "{}"},
    {SPEC_PLAN: "1714009999"},
]


@pytest.mark.parametrize("more", NOTHING_NEW)
def test_what_does_not_matter(more: dict[str, str]) -> None:
    other = {**MIG, "nvidia.com/gpu.product": "x"}
    assert deferred_plan({**ASKED, **more}, other) == deferred_plan(ASKED, MIG)


@pytest.mark.parametrize("labels", [MIG, {}, {MODE_LABEL: "mps"}, {MODE_LABEL: "x"}])
def test_nothing_is_lost(labels: dict[str, str]) -> None:
    """The reduced value means, and ignores, what all that is on the Node would."""
    for asked in (ASKED, spec(None, **{"0-1g.5gb": "1"}), {}, spec()):
        found = deferred_plan(asked, labels)
        assert found.on(TWO) == offer(asked, labels, TWO)
        assert found.ignored == ignored(asked, labels)
