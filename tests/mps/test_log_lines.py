"""What of a daemon's log counts, and what must not."""

from __future__ import annotations

import pytest

from nodeagent.mps.files.log import (
    ClientConnected,
    Fact,
    Faulted,
    Recovered,
    ServerExited,
    ServerReady,
    Stirred,
    facts,
    worth_showing,
)

CONTROL = "[2026-09-01 12:00:00.000 Control  4711] "
OTHER = "[2026-09-01 12:00:00.000 Other 4712] "


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        (
            f"{CONTROL}NEW CLIENT 99 from user 1001: Server already exists",
            ClientConnected(99, 1001, False),
        ),
        (
            f"{CONTROL}NEW CLIENT 99 from user 1001: Server is not ready, push client to pending l",
            ClientConnected(99, 1001, True),
        ),
        (f"{CONTROL}NEW SERVER 50: Ready", ServerReady(50)),
        (f"{CONTROL}Server 50 exited with status 1", ServerExited(50, 1)),
        (f"{OTHER}Client process 99 encountered a fatal GPU error.", Faulted(99)),
        (f"{OTHER}Server is handling a fatal GPU error.", Faulted(None)),
        (f"{OTHER}Destroy server context on device 0", Recovered()),
        (f"{OTHER}Received new client request", Stirred()),
        (f"{OTHER}Received new client request for {{PID: 99, Context ID: 0}}", Stirred()),
        (f"{OTHER}Creating worker thread for client {{PID: 99, Context ID: 0}}", Stirred()),
        (f"{OTHER}Client {{99, 0}} exit", Stirred()),
        (f"{OTHER}Volta MPS Server: Received new client request", Stirred()),
        ("[2021-09-01 12:00:00.000 Other 4712] Volta MPS: Server has started", Stirred()),
        (f"{OTHER}Client disconnected. Number of active client contexts is 0", Stirred()),
    ],
)
def test_what_counts(line: str, fact: Fact) -> None:
    """In the wordings of several versions."""
    assert list(facts([line])) == [fact]


@pytest.mark.parametrize(
    "text",
    [
        "Accepting connection...",
        "NEW UI",
        "UI closed",
        "User did not send valid credentials",
        "Cmd:NEW CLIENT 99 from user 1001: pending",
        "Cmd:get_server_list",
        "ACTIVE",
        "4711",
        "100.0",
        'Unknown command "__1"',
        "Server 50 is <busy>",
        "99         0         50   GPU-1   4026531836   NEW CLIENT 1 from user 0",
        "Exit with status 0",
        "",
    ],
)
def test_what_our_own_questions_leave(text: str) -> None:
    """Nothing of it counts, whatever others put into it."""
    assert list(facts([f"{CONTROL}{text}"])) == []


def test_only_lines_of_the_log_count() -> None:
    """A program's own words, without the log's prefix, mean nothing."""
    assert list(facts(["NEW CLIENT 99 from user 1001: pending", "x] NEW SERVER 50: Ready"])) == []


def test_lines_of_interest_to_a_person() -> None:
    """Our questions and their answers are left out; a server's words between them are not."""
    lines = [
        f"{CONTROL}Starting control daemon using socket /x/control",
        f"{CONTROL}Accepting connection...",
        f"{CONTROL}NEW UI",
        f"{CONTROL}Cmd:get_server_list",
        f"{CONTROL}50",
        f"{OTHER}Failed to start : no CUDA-capable device is detected",
        f"{CONTROL}Server 50 exited with status 1",
        f"{CONTROL}Cmd:__1",
        f'{CONTROL}Unknown command "__1"',
        f"{CONTROL}UI closed",
        "An instance of this daemon is already running",
    ]
    assert list(worth_showing(lines)) == [lines[0], lines[5], lines[6], lines[10]]
