"""What happened as events and log lines."""

from __future__ import annotations

import structlog

from nodeagent.mps.lifecycle.model import Report, ReportSubject
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.active_plan import PlanEvaluation
from nodeagent.reconcile.event_log import EventLog, EventType
from nodeagent.reconcile.event_reporter import EventReporter, event_of


def test_every_subject_has_an_event() -> None:
    """Every report of a daemon's life becomes an event of MPS with its message."""
    for subject in ReportSubject:
        kind, message = event_of(Report(subject, "what happened"))
        assert kind.value.startswith("Mps"), subject
        assert message == "what happened"


def test_the_log_explains_an_end() -> None:
    """Its last line is often the only reason there is."""
    report = Report(ReportSubject.EXITED, "it ended: status 1", ("first", "no device"))
    assert event_of(report) == (
        EventType.MPS_ENDED,
        "it ended: status 1; its last message: no device",
    )


def test_what_is_bad() -> None:
    """All but a start, being ready and a drain that is over are for a person to look at."""
    kinds = {event_of(Report(subject, ""))[0] for subject in ReportSubject}
    well = {EventType.MPS_STARTED, EventType.MPS_READY, EventType.MPS_DRAINED}
    assert {kind for kind in kinds if not kind.is_warning} == well


def test_what_blocks_the_plan_is_a_warning_in_the_log() -> None:
    """Somebody waits for it; it is logged once, with its remedy."""
    blocked = Problem(
        code=Code.OWNED, message="another program splits the GPUs", remedy="switch it off"
    )
    reporter = EventReporter(EventLog())
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            reporter.obstacles(PlanEvaluation(), (blocked,))
    assert logs == [
        {
            "event": "another program splits the GPUs",
            "log_level": "warning",
            "event_type": "Blocked",
            "remedy": "switch it off",
        }
    ]
