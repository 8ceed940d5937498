import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

from nodeagent.files.open_directory import OpenDirectory, PathRefused

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[OpenDirectory]:
    with opened(tmp_path / "some/where", make=True) as found:
        yield found


def opened(path: Path, *, make: bool = False) -> AbstractContextManager[OpenDirectory]:
    return OpenDirectory.opened(path, make=make, use="kubelet")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_is_written_once(directory: OpenDirectory) -> None:
    before = os.umask(0o077)
    try:
        assert directory.put("a.env", b"X=1\n")
        path = directory.path / "a.env"
        assert (path.read_bytes(), mode(path), mode(directory.path)) == (b"X=1\n", 0o644, 0o755)
        first = path.stat()
        assert not directory.put("a.env", b"X=1\n")
        assert path.stat() == first
        assert directory.put("a.env", b"X=2\n")
        assert path.stat().st_ino != first.st_ino
        assert directory.names() == ("a.env",)
    finally:
        os.umask(before)


def test_permissions_are_set_right(directory: OpenDirectory) -> None:
    directory.put("a", b"x")
    (directory.path / "a").chmod(0o666)
    assert directory.put("a", b"x")
    assert mode(directory.path / "a") == 0o644


def test_a_file_with_a_second_name(directory: OpenDirectory, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"x")
    victim.chmod(0o644)
    os.link(victim, directory.path / "a")
    assert directory.put("a", b"x")
    assert victim.read_bytes() == b"x"
    assert victim.stat().st_nlink == 1


def test_what_a_killed_process_left(directory: OpenDirectory) -> None:
    (directory.path / ".a.new").symlink_to("/etc/passwd")
    assert directory.put("a", b"x")
    assert directory.names() == ("a",)


@pytest.mark.parametrize("act", ["put", "remove"])
def test_symlinks_are_not_followed(directory: OpenDirectory, tmp_path: Path, act: str) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"x")
    (directory.path / "a").symlink_to(victim)
    with pytest.raises(PathRefused, match=f"{directory.path}/a is a symlink"):
        directory.put("a", b"y") if act == "put" else directory.remove("a")
    assert victim.read_bytes() == b"x"
    assert (directory.path / "a").is_symlink()


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir])
def test_what_is_no_file(directory: OpenDirectory, make: Callable[[Path], object]) -> None:
    path = directory.path / "a"
    make(path)
    with pytest.raises(PathRefused, match="is not a plain file"):
        directory.put("a", b"x")
    assert path.exists()


@as_root
def test_another_users_file(directory: OpenDirectory) -> None:
    directory.put("a", b"x")
    os.chown(directory.path / "a", 1000, 1000)
    for act in (partial(directory.put, "a", b"x"), partial(directory.remove, "a")):
        with pytest.raises(PathRefused, match="a belongs to user 1000, not 0"):
            act()
    assert (directory.path / "a").exists()


def refused(path: Path, why: str, *, make: bool = False) -> PathRefused:
    with pytest.raises(PathRefused, match=why) as caught, opened(path, make=make):
        pass
    return caught.value


def refused_in(top: OpenDirectory, name: str, why: str, *, make: bool = True) -> None:
    with pytest.raises(PathRefused, match=why), top.child(name, make=make):
        pass


@as_root
def test_another_users_directory(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    os.chown(tmp_path / "in", 1000, 1000)
    refused(tmp_path / "in", "in belongs to user 1000, not 0", make=True)
    with opened(tmp_path) as top:
        refused_in(top, "in", "in belongs to user 1000, not 0")


def test_a_directory_that_others_can_write(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    error = refused(tmp_path, r"can be written by others \(mode 777\)")
    assert error.remedy == f"chmod go-w {tmp_path}"


def test_a_directory_that_is_a_symlink(tmp_path: Path) -> None:
    (tmp_path / "real/cdi").mkdir(parents=True)
    (tmp_path / "var").symlink_to("real")
    (tmp_path / "cdi").symlink_to("real/cdi")
    with opened(tmp_path / "var/cdi"):
        pass
    refused(tmp_path / "cdi", "cdi is a symlink", make=True)
    with opened(tmp_path) as top:
        assert top.directories() == ("real",)
        refused_in(top, "cdi", "cdi is a symlink")


def test_nothing_there(tmp_path: Path) -> None:
    refused(tmp_path / "no", "no cannot be used")
    with opened(tmp_path) as top:
        refused_in(top, "no", "no cannot be used", make=False)
        assert not top.remove("no")
        top.remove_child("no")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["relative", "/run/../etc", "/run/\0"])
def test_paths_that_are_none(path: str) -> None:
    refused(Path(path), "not an absolute path", make=True)


def test_a_directory_that_vanishes(directory: OpenDirectory) -> None:
    directory.path.rmdir()
    with pytest.raises(PathRefused, match="a cannot be written: No such file"):
        directory.put("a", b"x")
