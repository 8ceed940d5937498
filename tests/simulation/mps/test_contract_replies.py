import os
from collections.abc import Callable, Iterator

import pytest

from tests.simulation.mps.conftest import chosen
from tests.simulation.mps.rig import Programs, Rig

START = "set_default_device_pinned_mem_limit 0 3G"
LIMIT = "get_default_device_pinned_mem_limit 0"
NEEDS_UID = "A user id (UID) is required to start a new server\n"


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("535", marks=pytest.mark.full),
        "555",
        pytest.param("615", marks=pytest.mark.full),
        "real",
    ],
)
def daemon(
    request: pytest.FixtureRequest, installed: Callable[[str], Programs], real: Programs | None
) -> Iterator[Rig]:
    """A running daemon; every case sets first what it depends on."""
    with Rig(chosen(request.param, installed, real)) as rig:
        rig.start()
        yield rig


@pytest.mark.parametrize(
    ("command", "reply"),
    [
        ("get_server_list", ""),
        ("  get_server_list and more", ""),
        ("get_server_lists", 'Unknown command "get_server_lists"\n'),
        ("help me", 'Unknown command "help"\n'),
        ("__1", 'Unknown command "__1"\n'),
        ("QUIT", 'Unknown command "QUIT"\n'),
        ("start_server", NEEDS_UID),
        ("start_server -uid abc", NEEDS_UID),
        ("shutdown_server", "Server 0 not found\n"),
        ("shutdown_server 4 -f", "Server 4 not found\n"),
        ("get_client_list", "Server 0 not found\n"),
        ("get_client_list 4", "Server 4 not found\n"),
        ("get_active_thread_percentage 4", "Server 4 not found\n"),
        ("set_active_thread_percentage 4 50", "Server 4 not found\n"),
        ("get_device_pinned_mem_limit 4 0", "Server 4 not found\n"),
        ("set_device_pinned_mem_limit 4 0 1G", "Server 4 not found\n"),
        ("terminate_client", "Server 0 not found\nServer 0 not found!\n1\n"),
        ("terminate_client 1 2", "Server 1 not found\nServer 1 not found!\n1\n"),
    ],
)
def test_without_a_server(daemon: Rig, command: str, reply: str) -> None:
    assert reply == daemon.ask(command)


def test_the_status_of_a_server_is_newer_than_535(daemon: Rig) -> None:
    replies = daemon.ask("get_server_status", "get_server_status 5")
    if daemon.programs.version.server_status:
        assert replies == "A server PID is required\nServer 5 not found\n"
    else:
        assert replies == 'Unknown command "get_server_status"\n' * 2


def test_an_empty_line_is_an_unknown_command(daemon: Rig) -> None:
    """So a batch must not hold any; the last newline may be there or not."""
    assert daemon.ask("", "") == 'Unknown command ""\n'
    assert daemon.ask("") == ""


def test_a_nonsense_word_separates_replies(daemon: Rig) -> None:
    replies = daemon.ask("get_server_list", "__1", "get_server_list", "__2")
    assert replies == 'Unknown command "__1"\nUnknown command "__2"\n'


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        *(("100M", "100M"), ("1023M", "1023M"), ("1024M", "1G"), ("1500M", "1G"), ("5000M", "4G")),
        *(("1G", "1G"), ("2g", "2G"), ("2GB", "2G"), ("512", "512M"), ("1024K", "1G")),
        *(("1.5G", "1M"), ("1T", "1M"), ("1e3M", "1M"), ("2 G", "2M"), ("+5M", "5M")),
        *(("-1G", "17179869183G"), ("abc", None), ("0G", None), ("0.5G", None), ("0x10M", None)),
        ("", None),
    ],
)
def test_memory_limits(daemon: Rig, value: str, stored: str | None) -> None:
    """What is sent, silently becomes something else; nothing is printed when none is left."""
    replies = daemon.ask(START, f"set_default_device_pinned_mem_limit 0 {value}", LIMIT)
    assert replies == ("" if stored is None else f"{stored}\n")


@pytest.mark.parametrize("key", ["abc", "0.5", "0,1"])
def test_a_limit_for_what_is_no_ordinal_wipes_that_of_device_0(daemon: Rig, key: str) -> None:
    replies = daemon.ask(START, f"set_default_device_pinned_mem_limit {key} 5G", LIMIT)
    assert replies == ""


def test_a_limit_by_uuid_wipes_that_of_device_0_up_to_555(daemon: Rig) -> None:
    by_uuid = "set_default_device_pinned_mem_limit GPU-cb1213a3-d6a4-be7f-0000-000000000000 5G"
    assert daemon.ask(START, by_uuid, LIMIT) == (
        "5G\n" if daemon.programs.version.limits_by_uuid else ""
    )


@pytest.mark.parametrize(("key", "limit"), [("31", "5G\n"), ("32", ""), ("-1", "")])
def test_ordinals_end_at_31(daemon: Rig, key: str, limit: str) -> None:
    name = "default_device_pinned_mem_limit"
    replies = daemon.ask(START, f"set_{name} {key} 5G", LIMIT, f"get_{name} {key}")
    assert replies == f"3G\n{limit}"


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        *(("1", "1.0"), ("33.33", "33.3"), ("0.01", "0.0"), ("100", "100.0"), ("1e1", "10.0")),
        *(("33,3", "33.0"), ("12abc", "12.0"), ("0", "50.0"), ("100.1", "50.0"), ("-5", "50.0")),
        *(("nan", "50.0"), ("abc", "50.0"), ("", "50.0")),
    ],
)
def test_percentages(daemon: Rig, value: str, stored: str) -> None:
    name = "default_active_thread_percentage"
    replies = daemon.ask(f"set_{name} 50", f"set_{name} {value}", f"get_{name}")
    assert replies == f"50.0\n{stored}\n{stored}\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_what_other_users_may_do(daemon: Rig) -> None:
    settings = "Control deamon settings can only be modified by the user started it"
    replies = daemon.ask(
        "set_default_active_thread_percentage 5",
        "set_default_device_pinned_mem_limit 0 1G",
        "start_server -uid 0",
        "get_server_list",
        "set_active_thread_percentage 4 5",
        "quit",
        user=1000,
    ).splitlines()
    assert replies[-2:] == ["Server 4 not found", "Not enough privilege to execute quit command"]
    start = "Insufficient privileges for UID 1000"
    if daemon.programs.version.guards_settings:
        assert replies[:-2] == [
            *[f"{start}. {settings} or by the root user."] * 2,
            f"{start}. Only the root user may start server for another user.",
        ]
    else:
        assert replies[:-2] == ["5.0", start]
