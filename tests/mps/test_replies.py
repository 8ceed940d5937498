"""What a daemon's replies mean; the texts are those of drivers 535 to 580."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.mps.control.commands import (
    Client,
    Command,
    GetClientList,
    GetDefaultMemoryLimit,
    GetDefaultThreads,
    GetMemoryLimit,
    GetServerList,
    GetServerStatus,
    GetThreads,
    ListClients,
    MemoryLimit,
    NotPermitted,
    QuitDaemon,
    SetDefaultMemoryLimit,
    SetDefaultThreads,
    SetThreads,
    ShutDownServer,
    StartServer,
    TerminateClient,
    UnexpectedReply,
    UnknownCommand,
    UnknownServer,
    threads_agree,
)
from nodeagent.mps.lifecycle.model import ServerStatus

PS = """\
PID       ID        SERVER         DEVICE            NAMESPACE      COMMAND
9741      0         6472           GPU-cb1213a3-d6a4-be7f 4026531836     ./nbody -n 5
0         1         6472           GPU-cb1213a3-d6a4-be7f 4026531836
"""


@pytest.mark.parametrize(
    ("command", "reply", "value"),
    [
        (GetServerList(), "", ()),
        (GetServerList(), "815\n4711\n", (815, 4711)),
        (GetServerStatus(7), "INITIALIZING", ServerStatus.INITIALIZING),
        (GetServerStatus(7), "ACTIVE", ServerStatus.ACTIVE),
        (GetServerStatus(7), "FAULT", ServerStatus.FAULT),
        (GetServerStatus(7), "", None),
        (GetClientList(7), "12\n", (12,)),
        (GetClientList(7), "0\n0\n", (0, 0)),
        (ListClients(), "Server not found", ()),
        (ListClients(), "", ()),
        (
            ListClients(),
            PS,
            (
                Client(9741, 6472, "GPU-cb1213a3-d6a4-be7f", 4026531836, "./nbody -n 5"),
                Client(0, 6472, "GPU-cb1213a3-d6a4-be7f", 4026531836, ""),
            ),
        ),
        (ListClients(), "SERVER PID DEVICE\n6472 1 MIG-1", (Client(1, 6472, "MIG-1", None, ""),)),
        (SetDefaultThreads(33.33), "33.3", 33.3),
        (GetDefaultThreads(), "100.0", 100.0),
        (GetThreads(7), "", None),
        (SetThreads(7, 5), "5.0", 5.0),
        (SetDefaultMemoryLimit(1), "", None),
        (GetDefaultMemoryLimit(), "", None),
        (GetDefaultMemoryLimit(), "2G", MemoryLimit(2, "G")),
        (GetMemoryLimit(7), "512M", MemoryLimit(512, "M")),
        (StartServer(0), "", None),
        (TerminateClient(7, 8), "0", 0),
        (QuitDaemon(1), "", None),
    ],
)
def test_values(command: Command[Any], reply: str, value: object) -> None:
    """Each reply as the value it stands for."""
    assert command.read(reply.splitlines()) == value


@pytest.mark.parametrize(
    ("command", "reply", "kind"),
    [
        (GetServerStatus(7), 'Unknown command "get_server_status"', UnknownCommand),
        (GetServerStatus(7), "Server 7 not found", UnknownServer),
        (ShutDownServer(7), "Server 7 not found", UnknownServer),
        (TerminateClient(7, 8), "Server 7 not found\nServer 7 not found!\n1", UnknownServer),
        (GetThreads(7), "Server 7 not found", UnknownServer),
        (QuitDaemon(1), "Not enough privilege to execute quit command", NotPermitted),
        (
            StartServer(1),
            "Insufficient privileges for UID 1. Only the root user may start server for ...",
            NotPermitted,
        ),
        (GetServerStatus(7), "DANCING", UnexpectedReply),
        (GetServerList(), "815 bottles", UnexpectedReply),
        (GetServerList(), "0", UnexpectedReply),
        (GetServerList(), "4194305", UnexpectedReply),
        (GetServerList(), "\n".join(map(str, range(1, 1026))), UnexpectedReply),
        (GetClientList(7), "4194305", UnexpectedReply),
        (GetDefaultThreads(), "", UnexpectedReply),
        (GetDefaultThreads(), "33.3\n33.3", UnexpectedReply),
        (GetDefaultMemoryLimit(), "much", UnexpectedReply),
        (SetDefaultMemoryLimit(1), "Invalid", UnexpectedReply),
        (ListClients(), "What?\n1 2 3", UnexpectedReply),
        (ListClients(), "PID SERVER DEVICE\na b c", UnexpectedReply),
        (TerminateClient(7, 8), "", UnexpectedReply),
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
    limit = GetDefaultMemoryLimit().read([printed])
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
    for command in (ListClients(), GetServerList(), GetServerStatus(7), GetDefaultMemoryLimit()):
        try:
            command.read(text.splitlines())
        except UnexpectedReply:
            continue
