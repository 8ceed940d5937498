"""What is news about claims: each change once, and nothing of what an agent finds at its start."""

from __future__ import annotations

from nodeagent.claims.model import ClaimRecord, RecordPhase
from nodeagent.claims.reporting.claim_news import ClaimHistory
from nodeagent.claims.reporting.device_reports import DeviceHealth
from nodeagent.claims.serving.attempts import Attempt, Operation
from nodeagent.plan.problems import Problem
from tests.claims.samples import GPU, MIG_DEVICE, POOL, UID, mig_device, record

READY = record(mig_device(uuid="MIG-1"))
SICK = DeviceHealth(POOL, MIG_DEVICE, "unhealthy", 1.0, "GPU 0 fell off the bus. Reboot.")
WELL = DeviceHealth(POOL, MIG_DEVICE, "healthy", 1.0)


def failed(at: float, operation: Operation = Operation.PREPARE, code: str = "InUse") -> Attempt:
    """An attempt at the claim that ended then."""
    why = Problem(code=code, message="pid 7 uses it", remedy="wait")
    return Attempt("team", "trainer", operation, 0.0, at, running=False, refusal=why)


def said(
    history: ClaimHistory,
    records: tuple[ClaimRecord, ...],
    attempts: dict[str, Attempt],
    health: tuple[DeviceHealth, ...],
) -> list[tuple[str, str, bool]]:
    """Reasons, messages, and whether it is a warning."""
    news = history.news(records, attempts, health)
    assert {(one.namespace, one.name, one.uid) for one in news} <= {("team", "trainer", UID)}
    return [(one.reason, one.message, one.is_warning) for one in news]


def test_a_claim_comes_and_goes() -> None:
    """Ready and released, each once, with its devices; being made or released is none of it."""
    history = ClaimHistory()
    assert said(history, (), {}, ()) == []
    making, releasing = (
        record(phase=phase) for phase in (RecordPhase.INTENT, RecordPhase.RELEASING)
    )
    what = f"{MIG_DEVICE} of {GPU} (MIG-1)"
    assert said(history, (making,), {}, ()) == []
    assert said(history, (READY,), {}, (WELL,)) == [("ClaimPrepared", f"ready: {what}", False)]
    assert said(history, (READY,), {}, (WELL,)) == []
    assert said(history, (releasing,), {}, (WELL,)) == []
    (released,) = said(history, (), {}, ())
    assert released[0] == "ClaimReleased"


def test_what_is_there_at_the_start_is_no_news() -> None:
    """Nor that it is sick already, or was refused."""
    assert said(ClaimHistory(), (READY,), {UID: failed(1.0)}, (SICK,)) == []


def test_each_failed_attempt_is_news() -> None:
    """Refused, or only waiting; a release that does not succeed has a word of its own."""
    history = ClaimHistory()
    said(history, (), {}, ())
    why = "pid 7 uses it; wait"
    refused = {UID: failed(2.0, code="ClaimRefused")}
    assert said(history, (), {UID: failed(1.0)}, ()) == [("ClaimWaiting", why, True)]
    assert said(history, (), refused, ()) == [("ClaimRefused", why, True)]
    assert said(history, (), refused, ()) == []
    release = {UID: failed(3.0, Operation.RELEASE)}
    assert said(history, (), release, ()) == [("ClaimNotReleased", why, True)]


def test_health_is_news_when_it_changes() -> None:
    """With the cause, and when it is over."""
    history = ClaimHistory()
    said(history, (READY,), {}, (WELL,))
    message = f"{MIG_DEVICE}: {SICK.message}"
    assert said(history, (READY,), {}, (SICK,)) == [("ClaimUnhealthy", message, True)]
    assert said(history, (READY,), {}, (SICK,)) == []
    over = f"{MIG_DEVICE} is not unhealthy any more"
    assert said(history, (READY,), {}, (WELL,)) == [("ClaimHealthy", over, False)]
