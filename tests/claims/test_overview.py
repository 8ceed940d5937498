"""What people see of claims follows from records, attempts, upkeep and hardware."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nodeagent.claims.model import RecordPhase
from nodeagent.claims.records import UnreadableRecord
from nodeagent.claims.reporting.device_reports import DeviceHealth, Status
from nodeagent.claims.reporting.overview import ClaimFacts, served_claims
from nodeagent.claims.serving.attempts import Attempt, Operation
from nodeagent.claims.serving.claim_object import ReservedFor
from nodeagent.claims.serving.claim_pods import ClaimPods
from nodeagent.plan.observed import Gpu, ObservedNode
from nodeagent.plan.problems import Code, Problem
from nodeagent.views.claims import Claim
from nodeagent.views.shapes import as_json
from tests.claims.samples import GPU, POOL, UID, mig_device, record

REFUSAL = Problem(code="InUse", message="pid 4711 uses it", remedy="end it")
MADE = mig_device(instance=7, compute=0, uuid="MIG-1")


def facts(*gpus: Gpu, **known: Any) -> ClaimFacts:
    """Of one start of the machine."""
    given = {"node": ObservedNode(gpus or (Gpu(3, GPU),)), "boot_id": "boot-1", "pods": ClaimPods()}
    return ClaimFacts(**{**given, **known})


def only(**known: Any) -> Claim:
    """The only claim there is then."""
    (claim,) = served_claims(facts(**known))
    return claim


def attempt(operation: Operation = Operation.PREPARE, **known: Any) -> Attempt:
    """The newest one at team/trainer."""
    return Attempt("team", "trainer", operation, **known)


def test_a_claim_that_is_ready() -> None:
    """Each key of the JSON."""
    pods = ClaimPods()
    pods.reserve(("team", "trainer"), ReservedFor("uid", (("pod-1", "uid-1"),)))
    ready = record(MADE, since=1893553445.5)
    assert as_json(only(records=(ready,), pods=pods)) == {
        "namespace": "team",
        "name": "trainer",
        "uid": UID,
        "phase": "Ready",
        "since": "2030-01-02T03:04:05.500Z",
        "pods": [{"namespace": "team", "name": "pod-1", "container": ""}],
        "devices": [
            {
                "request": "gpu",
                "pool": POOL,
                "device": "mig-1g-10gb-4",
                "gpu": GPU,
                "index": 3,
                "profile": "1g.10gb",
                "start": 4,
                "size": 1,
                "gi": 7,
                "ci": 0,
                "uuid": "MIG-1",
            }
        ],
        "problems": [],
    }


PREPARING: dict[str, Any] = {"since": 5.0, "last": 9.0, "running": True}
REFUSED: dict[str, Any] = {"since": 5.0, "last": 9.0, "running": False, "refusal": REFUSAL}


@pytest.mark.parametrize(
    ("recorded", "last", "phase", "second"),
    [
        (None, attempt(**PREPARING), "Preparing", "05"),
        (None, attempt(**REFUSED), "Waiting", "05"),
        (None, attempt(**{**REFUSED, "running": True}), "Waiting", "05"),
        (None, attempt(Operation.RELEASE, **REFUSED), "Releasing", "05"),
        (RecordPhase.INTENT, None, "Waiting", "03"),
        (RecordPhase.INTENT, attempt(**PREPARING), "Preparing", "05"),
        (RecordPhase.MADE, attempt(**REFUSED), "Waiting", "05"),
        (RecordPhase.READY, None, "Ready", "03"),
        (RecordPhase.READY, attempt(**REFUSED), "Ready", "03"),
        (RecordPhase.RELEASING, None, "Releasing", "03"),
        (RecordPhase.RELEASING, attempt(Operation.RELEASE, **REFUSED), "Releasing", "03"),
        (RecordPhase.RELEASING, attempt(**PREPARING), "Releasing", "03"),
    ],
)
def test_how_far_it_is(
    recorded: RecordPhase | None, last: Attempt | None, phase: str, second: str
) -> None:
    """A record counts more than an attempt, but for what waits: since its first attempt."""
    records = (record(phase=recorded, since=3.0),) if recorded else ()
    claim = only(records=records, attempts={UID: last} if last else {})
    assert (claim.phase, claim.since) == (phase, f"1970-01-01T00:00:{second}.000Z")
    assert claim.refusal == (last.refusal if last else None)


def test_ids_of_an_earlier_start_are_not_shown() -> None:
    """They are used again, for others."""
    (device,) = only(records=(record(MADE, boot_id="boot-0"),)).devices
    assert (device.gi, device.ci, device.uuid) == (None, None, "")


def test_what_is_wrong_with_it() -> None:
    """What upkeep found, and how well its devices are, where they are not well."""
    found = {
        UID: Problem(
            code=Code.IN_USE, message="claim team/trainer: the claim is gone, but it is used"
        )
    }
    states: tuple[tuple[Status, list[str]], ...] = (
        ("healthy", ["InUse"]),
        ("unhealthy", ["InUse", "GpuUnhealthy"]),
        ("unknown", ["InUse", "GpuUnknown"]),
    )
    for state, codes in states:
        one = DeviceHealth(POOL, "mig-1g-10gb-4", state, 1.0, "it has errors.")
        claim = only(
            records=(record(MADE),), upkeep_problems=found, health={(POOL, "mig-1g-10gb-4"): one}
        )
        assert [problem.code for problem in claim.problems] == codes
        for problem in claim.problems[1:]:
            assert (problem.message, problem.gpu) == ("mig-1g-10gb-4: it has errors.", GPU)


def test_a_record_that_cannot_be_read_is_a_claim_too() -> None:
    """Its name is known where the kubelet asks for it."""
    broken = UnreadableRecord(Path("/claims/x.json"), UID, "it is damaged")
    unread = only(unreadable=(broken,))
    assert (unread.name, unread.uid, unread.phase) == ("", UID, "Unreadable")
    assert "x.json" in unread.problems[0].message
    assert only(unreadable=(broken,), attempts={UID: attempt(**REFUSED)}).name == "trainer"


def test_they_are_in_the_order_of_their_names() -> None:
    """So that the same state is the same text."""
    attempts = {
        uid: Attempt("team", name, Operation.PREPARE, 1.0, 1.0)
        for uid, name in (("3", "b"), ("2", "c"), ("1", "a"))
    }
    assert [claim.name for claim in served_claims(facts(attempts=attempts))] == ["a", "b", "c"]
