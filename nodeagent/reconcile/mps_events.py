"""What the life of an MPS daemon tells, as events for people. Pure."""

from __future__ import annotations

from typing import assert_never

from nodeagent.mps.lifecycle.values import Report, Subject
from nodeagent.reconcile.event_log import EventType

# What a person should look at; the rest is good to know.
BAD = frozenset(
    {EventType.MPS_ENDED, EventType.MPS_FAULT, EventType.MPS_FAILED, EventType.MPS_CLIENT}
)

LAST_SAID = "; the last it said: "  # then a line of a daemon's log, with its time and pid


def event_of(report: Report) -> tuple[EventType, str]:
    """The event that a report makes, and its message, the last line of the log included."""
    said = f"{LAST_SAID}{report.lines[-1]}" if report.lines else ""
    return _type_of(report.subject), report.message + said


def _type_of(subject: Subject) -> EventType:
    match subject:
        case Subject.STARTED:
            return EventType.MPS_STARTED
        case Subject.READY:
            return EventType.MPS_READY
        case Subject.EXITED | Subject.START_FAILED:
            return EventType.MPS_ENDED
        case (
            Subject.SILENT
            | Subject.REPLACED
            | Subject.LIMITS_DIFFER
            | Subject.SERVER_FAULT
            | Subject.SERVER_SLOW
            | Subject.SERVER_EXITED
            | Subject.WRONG_SERVER_USER
            | Subject.CANNOT_BE_ENDED
            | Subject.RECORD_UNUSABLE
        ):
            return EventType.MPS_FAULT
        case Subject.FOREIGN_USER_WAITING:
            return EventType.MPS_CLIENT
        case Subject.DRAINED:
            return EventType.MPS_DRAINED
        case Subject.STILL_IN_USE:
            return EventType.MPS_IN_USE
        case Subject.FAILED:
            return EventType.MPS_FAILED
        case _ as never:
            assert_never(never)
