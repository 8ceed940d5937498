import os
import socket
from pathlib import Path

from nodeagent.app.sd_notify import Notifier


def test_knows_abstract_addresses() -> None:
    """A leading @ is Linux' abstract name space, as in containers."""
    name = f"nodeagent-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind("\0" + name)
        systemd.settimeout(30)
        notifier = Notifier.take_from({"NOTIFY_SOCKET": "@" + name})
        notifier.ready()
        notifier.status("two\nlines")
        assert [systemd.recv(100) for _ in range(2)] == [b"READY=1", b"STATUS=two lines"]


def test_takes_the_variables_away() -> None:
    environment = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "10000000", "PATH": "/bin"}
    assert Notifier.take_from(environment) == Notifier("/x", 10.0)
    assert environment == {"PATH": "/bin"}


def test_no_watchdog_unless_meant_for_this_process() -> None:
    for environment in (
        {},
        {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "soon"},
        {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "0"},
        {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "10000000", "WATCHDOG_PID": "1"},
        {"WATCHDOG_USEC": "10000000"},
    ):
        assert Notifier.take_from(dict(environment)).watchdog is None, environment


def test_no_listener_is_no_failure(tmp_path: Path) -> None:
    Notifier().ready()
    Notifier(str(tmp_path / "gone")).ready()
