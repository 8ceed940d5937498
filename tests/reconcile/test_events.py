"""The event log and what is reported to it: what is kept, who hears of it, who is dropped."""

from datetime import UTC, datetime, timedelta

import structlog

from nodeagent.mps.lifecycle.model import Report, ReportSubject
from nodeagent.plan.observed import NOT_LISTED, Access, Gpu, ObservedNode
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.active_plan import PlanEvaluation
from nodeagent.reconcile.event_log import EventLog, EventType
from nodeagent.reconcile.event_reporter import EventReporter, event_of
from nodeagent.views.shapes import as_json

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def make_log(**sizes: int) -> EventLog:
    return EventLog(now=lambda: NOON, **sizes)


def test_health_reports_lost_gpus_that_are_listed_with_their_uuid() -> None:
    log = make_log()
    reporter = EventReporter(log)
    named = Gpu(0, "GPU-0", access=Access.LOST, access_reason="it is lost")
    unnamed = Gpu(
        1, "", access=Access.LOST, access_reason="it is lost", access_remedy="reset -i GPU"
    )
    gone = Gpu(2, "GPU-2", access=Access.LOST, access_reason=NOT_LISTED, access_remedy="look")
    for gpus in ((named, unnamed), (named, unnamed), (named, gone), (named, unnamed, gone)):
        reporter.observed(ObservedNode(gpus))
    assert [(event.gpu, event.message, event.count) for event in log.events] == [
        ("GPU-2", f"GPU 2 does not answer: {NOT_LISTED} (look)", 1),
        ("", "GPU 1 does not answer: it is lost (reset -i 1)", 2),
    ]


def test_keeps_the_last_events_with_growing_ids() -> None:
    log = make_log(size=2)
    for message in ("one", "two", "three"):
        log.add(EventType.APPLIED, message, gpu="GPU-1")

    assert [as_json(event) for event in log.events] == [
        {"id": number, "time": "2030-01-01T12:00:00.000Z", "type": "Applied", "severity": "info"}
        | {"message": message, "gpu": "GPU-1"}
        for number, message in ((2, "two"), (3, "three"))
    ]


def test_what_happens_again_is_one_event() -> None:
    """The newest, with how often and since when; the pid and the log line are no news."""
    moments = iter(NOON + timedelta(minutes=n) for n in range(3))
    log = EventLog(now=lambda: next(moments))
    ended = "pid {} ended by itself; its last message: [{}] no device"
    log.add(EventType.MPS_ENDED, ended.format(7, "12:00"), device="GPU-1", facts={"try": 1})
    log.add(EventType.MPS_ENDED, ended.format(8, "12:01"), device="GPU-2")
    again = log.add(EventType.MPS_ENDED, ended.format(9, "12:02"), device="GPU-1")

    assert [event.device for event in log.events] == ["GPU-2", "GPU-1"]
    assert log.events[1] == again
    assert (again.id, again.time, again.count) == (3, "2030-01-01T12:02:00.000Z", 2)
    assert (again.since, again.first, again.facts) == ("2030-01-01T12:00:00.000Z", 1, None)
    assert "pid 9" in again.message


def test_what_was_otherwise_meanwhile_is_not_the_same_again() -> None:
    log = make_log()
    for plan in ("a", "b", "a"):
        log.add(EventType.PLAN_ACCEPTED, f"plan {plan} is in force")
    assert [(event.id, event.count) for event in log.events] == [(1, 1), (2, 1), (3, 1)]


def test_what_is_routine_makes_room_first() -> None:
    log = make_log(size=2)
    log.add(EventType.BLOCKED, "one")
    for number in range(3):
        log.add(EventType.STEP_DONE, str(number))
    log.add(EventType.APPLIED, "two")
    assert [event.message for event in log.events] == ["one", "two"]
    log.add(EventType.DRIFT, "three")
    assert [event.message for event in log.events] == ["two", "three"]


async def test_a_follower_goes_on_where_it_left_off() -> None:
    log = make_log()
    log.add(EventType.STARTED, "known")
    missed = log.add(EventType.APPLIED, "missed")
    with log.following(after=1) as follower:
        assert await follower.next() == missed


async def test_an_id_from_an_earlier_life_brings_everything() -> None:
    """A reader whose last id was never given out by this agent gets all that is kept."""
    log = make_log()
    first = log.add(EventType.STARTED, "the only one")
    with log.following(after=99) as follower:
        assert await follower.next() == first


async def test_a_slow_follower_is_dropped() -> None:
    log = make_log(follower_capacity=2)
    with log.following() as slow, log.following() as quick:
        heard = []
        for number in range(4):
            log.add(EventType.APPLIED, str(number))
            event = await quick.next()
            assert event
            heard.append(event.message)
        assert slow.dropped
        assert [event.message async for event in slow] == ["0", "1"]
    assert heard == ["0", "1", "2", "3"]


async def test_closing_ends_all_followers() -> None:
    log = make_log()
    with log.following() as follower:
        log.close()
        assert await follower.next() is None


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
