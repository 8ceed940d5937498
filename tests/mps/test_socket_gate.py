"""Sockets out of the way and back, however far an earlier attempt came."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.mps.files.sockets import DaemonSockets

NAMES = ("control", "control_privileged")


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """A pipe directory."""
    made = tmp_path / "pipe"
    made.mkdir()
    return made


@pytest.fixture
def listening(pipe: Path) -> Iterator[socket.socket]:
    """A daemon's two sockets, one of which listens."""
    (pipe / "control_privileged").touch()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(pipe / "control"))
        listener.listen()
        yield listener


def reachable(path: Path) -> bool:
    """Whether a client could connect."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        return client.connect_ex(str(path)) == 0


def test_there_and_back(pipe: Path, listening: socket.socket) -> None:
    """Only a client that knows the other door gets in; the other door is the agent's alone."""
    door = DaemonSockets(str(pipe))
    assert (door.hidden, door.listens, door.directory) == (False, True, str(pipe))
    for _ in range(2):
        door.keep(hidden=True)
    back = Path(door.directory)
    assert (door.hidden, door.listens, back.stat().st_mode & 0o777) == (True, True, 0o700)
    assert (reachable(pipe / "control"), reachable(back / "control")) == (False, True)
    for _ in range(2):
        door.keep(hidden=False)
    assert (door.hidden, door.directory, reachable(pipe / "control")) == (False, str(pipe), True)
    assert len(str(back)) <= len(str(pipe))


@pytest.mark.parametrize("moved", NAMES)
def test_half_of_it(pipe: Path, listening: socket.socket, moved: str) -> None:
    """A crash between two renames is mended in either direction."""
    for hidden in (False, True):
        door = DaemonSockets(str(pipe))
        door.keep(hidden=False)
        (pipe.with_name("back")).mkdir(exist_ok=True)
        (pipe / moved).rename(pipe.with_name("back") / moved)
        door.keep(hidden=hidden)
        assert [(Path(door.directory) / name).exists() for name in NAMES] == [True, True]


def test_a_later_daemon_keeps_its_sockets(pipe: Path, listening: socket.socket) -> None:
    """Those of the one before are dropped."""
    door = DaemonSockets(str(pipe))
    door.keep(hidden=True)
    for name in NAMES:
        (pipe / name).write_text("new")
    door.keep(hidden=False)
    assert [(pipe / name).read_text() for name in NAMES] == ["new", "new"]
    assert not door.hidden


def test_without_a_place_to_go_back_to(pipe: Path, listening: socket.socket) -> None:
    """The pipe directory was removed meanwhile; and a dead daemon's sockets go, all of them."""
    door = DaemonSockets(str(pipe))
    door.keep(hidden=True)
    pipe.rmdir()
    door.keep(hidden=False)
    assert (door.hidden, door.listens) == (False, False)
    pipe.mkdir()
    (pipe / "control").touch()
    door.clear()
    door.clear()
    assert not door.listens


@pytest.mark.parametrize("place", ["pipe", "back"])
def test_something_else_in_place_of_a_socket(pipe: Path, place: str) -> None:
    """The pipe directory is its user's, who cannot keep the next daemon from having its sockets."""
    (pipe.with_name(place) / "control" / "below").mkdir(parents=True)
    door = DaemonSockets(str(pipe))
    door.clear()
    assert not door.listens
