import os
import resource
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import grpc.aio
import pytest

from nodeagent.cluster.kubelet.plugin import sockets
from nodeagent.cluster.kubelet.plugin.driver import RegistrationService
from nodeagent.files.open_directory import PathRefused
from tests.simulated_cluster.kubelet_plugins import channel_to

pytestmark = pytest.mark.usefixtures("grpc_ends")
NAME = "gpu.nodeagent.io-reg.sock"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A socket's path in a folder such as the kubelet makes."""
    folder = tmp_path / "plugins_registry"
    folder.mkdir(mode=0o750)
    return folder / NAME


def registration() -> RegistrationService:
    return RegistrationService(Path("/endpoint"))


async def answers(path: Path) -> bool:
    async with channel_to(str(path)) as channel:
        ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/pluginregistration.Registration/GetInfo"
        )
        return b"/endpoint" in await ask(b"", timeout=30)


async def refused(path: Path, words: str) -> None:
    with pytest.raises(PathRefused, match=words):
        async with sockets.serve(path, [registration().handler()]):
            pass


def dead_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def put(kind: str, path: Path, target: Path) -> None:
    match kind:
        case "file":
            path.write_text("mine")
        case "folder":
            path.mkdir()
        case _:
            path.symlink_to(target)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def is_socket(path: Path) -> bool:
    return stat.S_ISSOCK(path.lstat().st_mode)


async def test_only_its_owner_can_use_the_socket(path: Path) -> None:
    async with sockets.serve(path, [registration().handler()]):
        assert await answers(path)
        assert mode(path) == 0o600
        assert [one.name for one in path.parent.iterdir()] == [NAME]
    assert list(path.parent.iterdir()) == []


async def test_what_a_killed_agent_left_is_replaced(path: Path) -> None:
    dead_socket(path)
    dead_socket(path.parent / ".nodeagent")
    async with sockets.serve(path, [registration().handler()]):
        assert await answers(path)
        assert [one.name for one in path.parent.iterdir()] == [NAME]


async def test_the_socket_of_a_successor_stays(path: Path) -> None:
    async with AsyncExitStack() as first:
        await first.enter_async_context(sockets.serve(path, [registration().handler()]))
        async with sockets.serve(path, [registration().handler()]):
            await first.aclose()
            assert await answers(path)


@pytest.mark.parametrize("kind", ["file", "folder", "symlink"])
async def test_what_is_no_socket_is_not_touched(path: Path, kind: str) -> None:
    """It may be in use by its maker; the error names it, and nothing is left behind."""
    target = path.parent.parent / "target"
    dead_socket(target)
    put(kind, path, target)
    await refused(path, f"{NAME} is not a socket")
    assert [one.name for one in path.parent.iterdir()] == [NAME]
    assert not is_socket(path)
    assert is_socket(target)


async def test_a_folder_without_room(path: Path) -> None:
    put("folder", path.parent / ".nodeagent", path)
    await refused(path, r"no socket can be created in .*/plugins_registry ")
    assert [one.name for one in path.parent.iterdir()] == [".nodeagent"]


async def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    """Without the kubelet's folder there is no kubelet; it is not made in its place."""
    path = tmp_path / "plugins_registry" / NAME
    await refused(path, "No such file .*set kubelet.dir to the kubelet's root directory")
    assert not path.parent.exists()


@pytest.mark.parametrize("mode", ["757", pytest.param("770", marks=as_root)])
async def test_a_folder_that_others_can_write(path: Path, mode: str) -> None:
    """Others, or members of another group, could put a socket of their own in our place."""
    if mode == "770":
        os.chown(path.parent, 0, 1000)
    path.parent.chmod(int(mode, 8))
    await refused(path, rf"can be written by others \(mode {mode}\)")
    if mode == "757":
        with pytest.raises(PathRefused, match="can be written by others"):
            sockets.make_directory(path.parent)


async def test_a_folder_that_is_a_symlink(path: Path, tmp_path: Path) -> None:
    """It could lead anywhere, and elsewhere later."""
    link = tmp_path / "link"
    link.symlink_to(path.parent)
    await refused(link / NAME, "link is a symlink")
    with pytest.raises(PathRefused, match="link is a symlink"):
        sockets.make_directory(link)


def test_the_folder_of_the_driver(tmp_path: Path) -> None:
    folder = tmp_path / "gpu.nodeagent.io"
    sockets.make_directory(folder)
    assert mode(folder) == 0o750
    folder.chmod(0o755)
    sockets.make_directory(folder)
    assert mode(folder) == 0o750
    with pytest.raises(PathRefused, match=r"set kubelet.dir to the kubelet's root directory"):
        sockets.make_directory(tmp_path / "missing" / "gpu.nodeagent.io")


def test_paths_that_no_kubelet_could_use() -> None:
    """A socket's address holds 107 bytes, and the kubelet takes absolute paths."""
    sockets.check_path(Path("/" + "x" * 106))
    with pytest.raises(PathRefused, match="has 108 bytes, a socket's path at most 107"):
        sockets.check_path(Path("/" + "x" * 107))
    with pytest.raises(PathRefused, match="has 108 bytes"):
        sockets.check_path(Path("/" + "ä" * 53 + "x"))
    for path in ("plugins/dra.sock", "/var/lib/../plugins/dra.sock"):
        with pytest.raises(PathRefused, match=r"not an absolute path without \.\."):
            sockets.check_path(Path(path))


@pytest.fixture
def descriptors() -> Iterator[list[int]]:
    """All that this process may open, taken; each that is closed can be opened again."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    taken: list[int] = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield taken
    finally:
        for one in taken:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("look", [sockets.remove_dead, sockets.served])
def test_a_look_without_descriptors_is_refused(
    path: Path, descriptors: list[int], look: Callable[[Path, str], object]
) -> None:
    """Wherever they run out, so that it is tried again."""
    os.close(descriptors.pop())
    dead_socket(path)
    descriptors.append(os.dup(0))
    for _ in range(2):
        with pytest.raises(PathRefused, match="Too many open files"):
            look(path.parent, "*")
        os.close(descriptors.pop())
    look(path.parent, "*")
    assert path.exists() is (look is sockets.served)
