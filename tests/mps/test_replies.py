"""What a daemon's replies mean; the texts are those of drivers 535 to 580."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.mps.control.commands import (
    Command,
    MemoryLimit,
    UnexpectedReply,
    UnknownCommand,
    UnknownServer,
    get_client_list,
    get_memory_limit,
    get_server_list,
    get_server_status,
    get_threads,
    quit_daemon,
    set_memory_limit,
    set_threads,
    terminate_client,
    threads_agree,
)
from nodeagent.mps.lifecycle.model import ServerStatus


@pytest.mark.parametrize(
    ("command", "reply", "value"),
    [
        (get_server_list(), "", ()),
        (get_server_list(), "815\n4711\n", (815, 4711)),
        (get_server_status(7), "INITIALIZING", ServerStatus.INITIALIZING),
        (get_server_status(7), "ACTIVE", ServerStatus.ACTIVE),
        (get_server_status(7), "FAULT", ServerStatus.FAULT),
        (get_server_status(7), "", None),
        (get_client_list(7), "12\n", (12,)),
        (get_client_list(7), "0\n0\n", (0, 0)),
        (set_threads(33.33), "33.3", 33.3),
        (get_threads(), "100.0", 100.0),
        (get_threads(7), "", None),
        (set_threads(5, 7), "5.0", 5.0),
        (set_memory_limit(1), "", None),
        (get_memory_limit(), "", None),
        (get_memory_limit(), "2G", MemoryLimit(2, "G")),
        (get_memory_limit(7), "512M", MemoryLimit(512, "M")),
        (terminate_client(7, 8), "0", 0),
        (quit_daemon(1), "", None),
    ],
)
def test_values(command: Command[Any], reply: str, value: object) -> None:
    """Each reply as the value it stands for."""
    assert command.read(reply.splitlines()) == value


@pytest.mark.parametrize(
    ("command", "reply", "kind"),
    [
        (get_server_status(7), 'Unknown command "get_server_status"', UnknownCommand),
        (get_server_status(7), "Server 7 not found", UnknownServer),
        (terminate_client(7, 8), "Server 7 not found\nServer 7 not found!\n1", UnknownServer),
        (get_threads(7), "Server 7 not found", UnknownServer),
        (get_server_list(), "Insufficient privileges for UID 1. Only ...", UnexpectedReply),
        (get_server_status(7), "DANCING", UnexpectedReply),
        (get_server_list(), "815 bottles", UnexpectedReply),
        (get_server_list(), "0", UnexpectedReply),
        (get_server_list(), "4194305", UnexpectedReply),
        (get_server_list(), "\n".join(map(str, range(1, 6))), UnexpectedReply),
        (get_client_list(7), "\n".join(["0"] * 1025), UnexpectedReply),
        (get_client_list(7), "4194305", UnexpectedReply),
        (get_threads(), "", UnexpectedReply),
        (get_threads(), "33.3\n33.3", UnexpectedReply),
        (get_memory_limit(), "much", UnexpectedReply),
        (set_memory_limit(1), "Invalid", UnexpectedReply),
        (terminate_client(7, 8), "", UnexpectedReply),
    ],
)
def test_refusals(command: Command[Any], reply: str, kind: type[UnexpectedReply]) -> None:
    """What is no answer is an error that shows the question and what was said."""
    with pytest.raises(UnexpectedReply) as caught:
        command.read(reply.splitlines())
    assert type(caught.value) is kind
    assert repr(command.line) in caught.value.message


@pytest.mark.parametrize(
    ("printed", "mebibytes", "agrees"),
    [
        ("1G", 1024, True),
        ("1G", 1500, True),
        ("1G", 2047, True),
        ("1G", 2048, False),
        ("1G", 1023, False),
        ("0G", 512, False),
        ("4G", 5000, True),
        ("1023M", 1023, True),
        ("1M", 1536, False),  # what became of "1.5G"
        ("5000M", 5000, True),
        ("512K", 1, False),
    ],
)
def test_the_floor_rule(printed: str, mebibytes: int, agrees: bool) -> None:
    """The daemon cuts down to whole G from 1G up; what was set is known exactly."""
    limit = get_memory_limit().read([printed])
    assert limit is not None
    assert str(limit) == printed
    assert limit.agrees_with(mebibytes) is agrees


@given(st.integers(1, 10_000))
def test_threads_as_printed(hundredths: int) -> None:
    """One decimal, rounded either way, agrees; the next decimal does not."""
    wanted = hundredths / 100
    printed = float(f"{wanted:.1f}")
    assert threads_agree(printed, wanted)
    assert not threads_agree(round(printed + 0.2, 1), wanted)


@given(st.text(max_size=60))
def test_no_reply_crashes_the_reading(text: str) -> None:
    """Whatever it says, it is a value or an UnexpectedReply."""
    for command in (
        get_client_list(7),
        get_server_list(),
        get_server_status(7),
        get_memory_limit(),
    ):
        try:
            command.read(text.splitlines())
        except UnexpectedReply:
            continue
