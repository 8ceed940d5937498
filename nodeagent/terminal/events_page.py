"""What the agent decided and why, from the JSON of its `/v1/events`: the newest below."""

from collections.abc import Sequence

from nodeagent.terminal.page import Json, Line, Span, Tone, dim, in_one_row, line
from nodeagent.text import quantity

_MAX_EVENTS = 6  # events below the other rows of a page
_ALL = "nodeagent events shows all of them"


def events_page(status: Json, events: Sequence[Json]) -> tuple[Line, ...]:
    """A page of all events in full."""
    title = f"node {status.get('node', '?')}: {quantity(len(events), 'event')} in the last hour"
    return (line(Span(title, Tone.TITLE)), *event_lines(status, events))


def event_lines(status: Json, events: Sequence[Json]) -> tuple[Line, ...]:
    """A line for each: when (UTC), what, which GPU, why, and how often."""
    names = {gpu.get("uuid"): f"GPU {gpu['index']}" for gpu in status.get("gpus", ())}
    return tuple(_line(event, names.get(event.get("gpu", ""), "")) for event in events)


def last_event_lines(
    status: Json, events: Sequence[Json], room: int, width: int
) -> tuple[Line, ...]:
    """The last that are not routine, each in one row, in at most `room` rows."""
    notable = [event for event in events if not event.get("routine")]
    shown = notable[-min(room - 1, _MAX_EVENTS) :] if room > 1 else []
    if not shown:
        return ()
    title = line(dim(f"last hour: {quantity(len(events), 'event')}; {_ALL}"))
    return tuple(in_one_row(spans, width) for spans in (title, *event_lines(status, shown)))


def _line(event: Json, gpu: str) -> Line:
    message = str(event.get("message", ""))
    place = f"{gpu}: " if gpu and gpu not in message else ""
    why = f" (why: {event['reason']})" if event.get("reason") else ""
    times = event.get("count", 1)
    again = f" ({times} times since {_clock(event.get('since'))})" if times > 1 else ""
    tone = Tone.WARNING if event.get("severity") == "warning" else Tone.PLAIN
    kind = Span(str(event.get("type", "?")), tone)
    return line(dim(f"{_clock(event.get('time'))}  "), kind, f"  {place}{message}{why}", again)


def _clock(time: object) -> str:
    """`03:04:05Z` of `2026-01-02T03:04:05.678Z`."""
    return f"{str(time)[11:19]}Z"
