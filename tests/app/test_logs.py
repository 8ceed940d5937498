import asyncio
import contextlib
import io
import json
import logging
import os
import pty
import re
import threading
import warnings

import pytest
import structlog

from nodeagent.app.logs import configure_logging


def test_json_lines_elsewhere() -> None:
    out = io.StringIO()
    configure_logging(stream=out)
    structlog.get_logger().info("step done", step="create 1g.10gb at 0", seconds=0.1)
    line = json.loads(out.getvalue())
    assert list(line)[:3] == ["timestamp", "level", "message"]  # what is read first
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "message": "step done",
        "level": "info",
        "step": "create 1g.10gb at 0",
        "seconds": 0.1,
    }


def test_an_exception_stays_on_its_line() -> None:
    out = io.StringIO()
    configure_logging(stream=out)
    try:
        int("wrong")
    except ValueError:
        structlog.get_logger().exception("failed")
    assert "ValueError: invalid literal" in json.loads(out.getvalue())["exception"]


def test_libraries_log_as_we_do_and_not_without_end() -> None:
    out = io.StringIO()
    configure_logging(stream=out)
    logger = logging.getLogger("some.library")
    logger.info("chatter")
    for n in range(1000):
        try:
            int(f"wrong {n}")
        except ValueError:
            logger.exception("request %d failed", n)
    loop = asyncio.new_event_loop()
    loop.call_exception_handler({"message": "a callback failed"})
    loop.close()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("an old name", DeprecationWarning, stacklevel=1)
    with contextlib.suppress(SystemExit):
        thread = threading.Thread(target=int, args=("wrong",), name="worker")
        thread.start()
        thread.join()
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(line.get("logger"), line["level"], line["message"][:16]) for line in lines] == [
        ("some.library", "error", "request 0 failed"),
        ("asyncio", "error", "a callback faile"),
        ("py.warnings", "warning", lines[2]["message"][:16]),
        (None, "error", "a thread failed"),
    ]
    assert "an old name" in lines[2]["message"]
    assert all("ValueError" in lines[n]["exception"] for n in (0, 3))


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_on_a_real_terminal(no_color: str, coloured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", no_color)
    ours, theirs = pty.openpty()
    applied = f"GPU 3 is as sha256:{'7' * 64} says"
    on_gpu = {"event_type": "StepDone", "gpu": "GPU-1", "index": 3}
    with os.fdopen(ours, "rb", buffering=0) as read, os.fdopen(theirs, "w") as out:
        configure_logging(stream=out)
        log = structlog.get_logger()
        log.info("made", **on_gpu, reason="why", seconds=1)
        log.info(applied, **on_gpu)
        log.warning("the plan is blocked", gpu="GPU-1", remedy="end it")
        shown = "".join(read.readline().decode() for _ in range(3))
    assert ("\x1b[" in shown) is coloured
    plain = re.sub(r"\x1b\[[\d;]*m", "", shown)
    assert re.search(
        r"^\d\d:\d\d:\d\dZ \[info\] GPU 3: made\r\n"
        r".{9} \[info\] GPU 3 is as sha256:7{12} says\r\n"
        r".{9} \[warning\] the plan is blocked gpu=GPU-1 remedy='?end it'?\r\n$",
        plain,
    )


def test_what_is_less_severe_is_left_out() -> None:
    out = io.StringIO()
    configure_logging(level="warning", stream=out)
    log = structlog.get_logger()
    log.info("quiet")
    log.warning("loud")
    assert out.getvalue().count("\n") == 1


def test_who_does_not_read_the_log_stops_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as out:
        configure_logging(stream=out)
        log = structlog.get_logger()
        log.info("no reader")
        log.info("nor this")
        out.flush()  # nothing is left that would fail later
    log.info("nor this")
