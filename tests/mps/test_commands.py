from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.mps.commands import (
    ControlCommand,
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
)
from nodeagent.mps.lifecycle.model import ServerStatus
from nodeagent.mps.shares import MAX_LIMIT

# --- commands -------------------------------------------------------------------------------------


EVERYTHING: list[tuple[ControlCommand[Any], str]] = [
    (get_server_list(), "get_server_list"),
    (get_server_status(7), "get_server_status 7"),
    (get_client_list(7), "get_client_list 7"),
    (set_threads(25), "set_default_active_thread_percentage 25"),
    (set_threads(33.33), "set_default_active_thread_percentage 33.33"),
    (set_threads(0.1), "set_default_active_thread_percentage 0.1"),
    (get_threads(), "get_default_active_thread_percentage"),
    (set_threads(100.0, 7), "set_active_thread_percentage 7 100"),
    (get_threads(7), "get_active_thread_percentage 7"),
    (set_memory_limit(40960), "set_default_device_pinned_mem_limit 0 40960M"),
    (get_memory_limit(), "get_default_device_pinned_mem_limit 0"),
    (set_memory_limit(1, 7), "set_device_pinned_mem_limit 7 0 1M"),
    (get_memory_limit(7), "get_device_pinned_mem_limit 7 0"),
    (terminate_client(7, 8), "terminate_client 7 8"),
    (quit_daemon(None), "quit"),
    (quit_daemon(10), "quit -t 10"),
]


@pytest.mark.parametrize(("command", "line"), EVERYTHING)
def test_every_form(command: ControlCommand[Any], line: str) -> None:
    assert command.line == line


# What the daemon takes without a word for something else: 1 MB, no limit, another device.
DANGEROUS = [
    "1.5G", "1T", "0G", "-1G", "abc", "1024K", "8G", "8192M", "8192", "8192M\nquit", "", " 1M",
    "GPU-00000000-0000-0000-0000-000000000001=1G", "0x10", "1e3", "0=1G",
    1.5, 1024.0, 0, -1, True, None, MAX_LIMIT + 1, 2**63, float("nan"), float("inf"), b"1M",
]  # fmt: skip


@pytest.mark.parametrize("value", DANGEROUS)
def test_no_dangerous_memory_can_be_said(value: Any) -> None:
    with pytest.raises(ValueError, match="expected a whole number from 1 to"):
        set_memory_limit(value)


@pytest.mark.parametrize(
    "value", ["25", "25\nquit", "", 0, -1, 100.01, 33.333, 0.001, True, None, float("nan"), 1e300]
)
def test_no_dangerous_percentage_can_be_said(value: Any) -> None:
    """Where the daemon would keep the old one and say so in its log alone."""
    with pytest.raises(ValueError, match="percentage"):
        set_threads(value)


@pytest.mark.parametrize("pid", ["7", "7 8", "7\nquit", 0, -1, 1.0, True, None, 2**22 + 1])
def test_no_text_passes_for_a_pid(pid: Any) -> None:
    with pytest.raises(ValueError, match="expected a whole number from 1 to"):
        get_server_status(pid)


@pytest.mark.parametrize(
    "make",
    [
        lambda: get_client_list(0),
        lambda: get_threads(0),
        lambda: get_memory_limit(0),
        lambda: terminate_client(7, 0),
        lambda: terminate_client(0, 7),
        lambda: set_threads(1, 0),
        lambda: set_threads(0, 7),
        lambda: set_memory_limit(1, 0),
        lambda: set_memory_limit(0, 7),
    ],
)
def test_every_command_checks_what_it_says(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="expected a"):
        make()


@given(mebibytes=st.integers(1, MAX_LIMIT), hundredths=st.integers(10, 10_000))
def test_every_line_is_one_line_of_safe_forms(mebibytes: int, hundredths: int) -> None:
    memory = set_memory_limit(mebibytes).line
    assert memory == f"set_default_device_pinned_mem_limit 0 {mebibytes:d}M"
    threads = set_threads(hundredths / 100).line.split()[1]
    assert round(float(threads) * 100) == hundredths
    assert set(threads) <= set("0123456789.")
    assert len(threads) <= 5


# --- replies --------------------------------------------------------------------------------------


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
def test_values(command: ControlCommand[Any], reply: str, value: object) -> None:
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
def test_refusals(command: ControlCommand[Any], reply: str, kind: type[UnexpectedReply]) -> None:
    with pytest.raises(UnexpectedReply) as caught:
        command.read(reply.splitlines())
    assert type(caught.value) is kind
    assert repr(command.line) in caught.value.message


@pytest.mark.parametrize(
    ("printed", "mebibytes", "agrees"),
    [
        *(("1G", 1024, True), ("1G", 1500, True), ("1G", 2047, True), ("1G", 2048, False)),
        *(("1G", 1023, False), ("0G", 512, False), ("4G", 5000, True), ("1023M", 1023, True)),
        ("1M", 1536, False),  # what became of "1.5G"
        *(("5000M", 5000, True), ("512K", 1, False)),
    ],
)
def test_the_floor_rule(printed: str, mebibytes: int, agrees: bool) -> None:
    """The daemon cuts down to whole G from 1G up; what was set is known exactly."""
    limit = get_memory_limit().read([printed])
    assert limit is not None
    assert str(limit) == printed
    assert limit.agrees_with(mebibytes) is agrees
