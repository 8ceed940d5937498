"""How the agent logs: JSON lines in production, plain text for people, always to standard error.

Lines of libraries are written in the same form, each kind once in ten seconds at most: their own
handler would write tracebacks as plain text, one for each malformed request.
"""

import logging
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, TextIO, cast

import structlog

from nodeagent.pacing import RateLimit

Format = Literal["auto", "json", "console"]

_LOG_INTERVAL = 10.0  # seconds, for lines of one kind of a library
_MAX_LENGTH = 2000  # characters of such a line


class _LossyStream:
    """Writes to a stream whose reader may be gone or whose disk may be full.

    Lines are lost then; the work that logs them goes on.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def write(self, text: str) -> int:
        with self._losing_lines():
            self._out.write(text)
        return len(text)

    def flush(self) -> None:
        with self._losing_lines():
            self._out.flush()

    @contextmanager
    def _losing_lines(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            # The reader does not come back. What is buffered would fail again when the process
            # ends, and change its exit code.
            nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(nowhere, self._out.fileno())
            os.close(nowhere)
        except (OSError, ValueError):  # a full disk, a closed stream
            return


def _in_reading_order(
    _: object, __: str, entry: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Time, level and message come before the facts, for people who read the JSON."""
    first = [key for key in ("timestamp", "level", "message") if key in entry]
    return {key: entry[key] for key in first} | dict(entry)


def _in_one_row(
    _: object, __: str, entry: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """What a person at a terminal needs: GPUs by their index, no more facts of what went well."""
    event = re.sub("(sha256:[0-9a-f]{12})[0-9a-f]{52}", r"\1", str(entry["event"]))
    if "index" in entry:
        event = event if "GPU " in event else f"GPU {entry['index']}: {event}"
    well = ("digest", "reason", "seconds") if entry["level"] == "info" else ()
    known = ("gpu", "index") if "index" in entry else ()
    shown = {k: v for k, v in entry.items() if k not in {"event_type", *well, *known}}
    return shown | {"event": event, "timestamp": f"{entry['timestamp'][11:19]}Z"}


class LibraryLines(logging.Handler):
    """Warnings and errors of libraries, as lines of our own."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._limit = RateLimit(_LOG_INTERVAL)

    def emit(self, record: logging.LogRecord) -> None:
        """Log a record; the key `count` says how many of its kind it stands for, if several."""
        kind = (record.name, record.levelno, str(record.msg)[:_MAX_LENGTH])
        count = self._limit.due(kind, time.monotonic())
        if count:
            structlog.get_logger(record.name).log(
                record.levelno,
                record.getMessage()[:_MAX_LENGTH],
                logger=record.name,
                **({"count": count} if count > 1 else {}),
                **({"exc_info": record.exc_info} if record.exc_info else {}),
            )


def _route_libraries() -> None:
    root = logging.getLogger()
    for handler in [h for h in root.handlers if isinstance(h, LibraryLines)]:
        root.removeHandler(handler)
    root.addHandler(LibraryLines())
    logging.captureWarnings(capture=True)
    threading.excepthook = _thread_failed
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC's C part writes to standard error itself


def _thread_failed(failed: threading.ExceptHookArgs) -> None:
    if failed.exc_type is not SystemExit and failed.exc_value is not None:
        name = failed.thread.name if failed.thread else ""
        structlog.get_logger().error("a thread failed", thread=name, exc_info=failed.exc_value)


def _shows_colours(out: TextIO) -> bool:
    # https://no-color.org: any non-empty value switches colours off.
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return wanted and out.isatty()


def configure_logging(
    *, form: Format = "auto", level: str = "info", stream: TextIO | None = None
) -> None:
    """Set up logging for the process; `auto` means text on a terminal and JSON elsewhere."""
    out = stream or sys.stderr
    as_text = form == "console" or (form == "auto" and out.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if as_text:
        # The plain formatter: the default one would print the values of all local variables.
        rest: list[structlog.typing.Processor] = [
            _in_one_row,
            structlog.dev.ConsoleRenderer(
                colors=_shows_colours(out),
                exception_formatter=structlog.dev.plain_traceback,
                pad_event_to=0,
                pad_level=False,
            ),
        ]
    else:
        rest = [
            structlog.processors.format_exc_info,
            structlog.processors.EventRenamer("message"),
            _in_reading_order,
            structlog.processors.JSONRenderer(),
        ]
    structlog.configure(
        processors=[*shared, *rest],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", _LossyStream(out))),
        cache_logger_on_first_use=True,
    )
    _route_libraries()
