import asyncio
import re
import shutil
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from asyncinotify import Inotify, Mask

from nodeagent.claims.names import NVIDIA_DRIVER
from nodeagent.claims.reporting.device_reports import DeviceHealth
from nodeagent.cluster.kubelet.plugin.claim_calls import HealthFeed
from nodeagent.cluster.kubelet.plugin.driver import Registration, RegistrationService, dra_driver
from nodeagent.files.open_directory import PathRefused
from tests.cluster.kubelet.plugin.rig import Claims
from tests.machine_load import stretched, until
from tests.simulated_cluster.kubelet_claims import DRIVER, Claim, DraKubelet, PodFailed
from tests.simulated_cluster.kubelet_plugins import VERSIONS, KubeletVersion

pytestmark = pytest.mark.usefixtures("grpc_ends")
REGISTERED = Registration("registered")
CLAIM = Claim("claim-a1", "a1", "team")
each_version = pytest.mark.parametrize("version", VERSIONS, ids=str)


@pytest.fixture
def root() -> Iterator[Path]:
    """The kubelet's root directory; pytest's own folders are too deep for sockets."""
    with TemporaryDirectory(prefix="kubelet-") as folder:
        yield Path(folder) / "kubelet"


@asynccontextmanager
async def driver(
    root: Path, claims: Claims, feed: HealthFeed | None = None
) -> AsyncIterator[RegistrationService]:
    async with dra_driver(root, claims.calls(), feed or HealthFeed()) as registration:
        yield registration


@asynccontextmanager
async def registered(kubelet: DraKubelet, claims: Claims) -> AsyncIterator[None]:
    async with kubelet, driver(kubelet.plugins.root, claims) as registration:
        await until(lambda: registration.status == REGISTERED)
        yield


# --- registration ---------------------------------------------------------------------------------


@each_version
async def test_each_registers_the_driver(
    root: Path, claims: Claims, version: KubeletVersion
) -> None:
    async with DraKubelet(root, version) as kubelet:
        async with driver(root, claims) as registration:
            await until(lambda: registration.status == REGISTERED)
            plugin = kubelet.plugins.get(DRIVER)
            assert plugin is not None
            assert plugin.service == "v1.DRAPlugin"
            await until(lambda: plugin.connected)
        await until(lambda: not kubelet.plugins.found)
        assert kubelet.plugins.refusals == []


async def test_the_order_in_which_sockets_come_and_go(root: Path, claims: Claims) -> None:
    for folder in ("plugins/gpu.nodeagent.io", "plugins_registry"):
        (root / folder).mkdir(parents=True)
    with Inotify() as inotify:
        for folder in ("plugins/gpu.nodeagent.io", "plugins_registry"):
            inotify.add_watch(root / folder, Mask.MOVED_TO | Mask.DELETE)
        async with driver(root, claims):
            pass
        seen: list[tuple[str, bool]] = []
        while len(seen) < 4:
            event = await inotify.get()
            assert event.name is not None
            seen.append((event.name.name, bool(event.mask & Mask.DELETE)))
    name = seen[1][0]
    assert re.fullmatch(r"gpu\.nodeagent\.io-[0-9a-f]{8}-reg\.sock", name)
    assert seen == [("dra.sock", False), (name, False), (name, True), ("dra.sock", True)]


@pytest.mark.parametrize("lost", ["registration", "endpoint", "folder", "own"])
async def test_a_deleted_socket_is_made_again(root: Path, claims: Claims, lost: str) -> None:
    endpoint = root / "plugins" / DRIVER / "dra.sock"
    kubelet = DraKubelet(root)
    async with registered(kubelet, claims):
        ((socket, first),) = kubelet.plugins.found.items()
        match lost:
            case "registration":
                socket.unlink()
            case "folder":
                await kubelet.stop()
                shutil.rmtree(root / "plugins_registry")
                await kubelet.start()
            case "own":
                shutil.rmtree(endpoint.parent)
            case _:
                endpoint.unlink()
        await until(lambda: socket.exists() and endpoint.exists())
        if lost in {"registration", "folder"}:
            await until(lambda: first not in kubelet.plugins.found.values())
        await until(lambda: (plugin := kubelet.plugins.get(DRIVER)) and plugin.connected)
        await kubelet.start_pod("pod", CLAIM)
        assert len(claims.prepared) == 1
        assert {path.name for path in endpoint.parent.iterdir()} == {"dra.sock"}


async def test_what_cannot_be_served_leaves_nothing(root: Path, claims: Claims) -> None:
    (root / "plugins").mkdir(parents=True)
    with pytest.raises(PathRefused, match="plugins_registry cannot be used"):
        async with driver(root, claims):
            pass
    assert list((root / "plugins" / DRIVER).iterdir()) == []
    with pytest.raises(PathRefused, match="bytes, a socket's path at most 107"):
        async with driver(root / ("x" * 80), claims):
            pass


# --- claims ---------------------------------------------------------------------------------------


async def test_an_agent_that_restarts(root: Path, claims: Claims) -> None:
    """It is registered in place of the sockets that the killed one left, under another name, since
    the kubelet waits longer and longer before it tries one again; and releases its claims.
    """
    async with DraKubelet(root) as kubelet:
        (root / "plugins" / DRIVER).mkdir()
        registry = root / "plugins_registry"
        dead = [registry / f"{name}-0badcafe-reg.sock" for name in (DRIVER, NVIDIA_DRIVER)]
        theirs = registry / f"{NVIDIA_DRIVER}-reg.sock"
        for path in (root / "plugins" / DRIVER / "dra.sock", *dead, theirs):
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(path))
        await until(lambda: kubelet.plugins.failures)
        async with driver(root, claims):
            await until(lambda: kubelet.plugins.get(DRIVER))
            left = {*registry.iterdir()}
            assert (len(left), theirs in left, left & {*dead}) == (2, True, set())
            await _prepare_in_the_end(kubelet)
        with pytest.raises(PodFailed):
            await kubelet.release("pod")
        async with driver(root, claims) as registration:
            await until(lambda: registration.status == REGISTERED)
            await kubelet.release("pod")
        assert claims.prepared == set()


async def _prepare_in_the_end(kubelet: DraKubelet) -> None:
    """As the kubelet does, which may have seen the socket that was left, reached the new one, and
    registers that once more: a call under way is cancelled then, and made again.
    """
    async with asyncio.timeout(stretched(60)):
        while True:
            with suppress(PodFailed):
                await kubelet.prepare("pod", CLAIM)
                return
            await asyncio.sleep(0.05)


async def test_an_agent_that_ends_during_a_call(root: Path, claims: Claims) -> None:
    async with DraKubelet(root) as kubelet, AsyncExitStack() as agent:
        registration = await agent.enter_async_context(driver(root, claims))
        await until(lambda: registration.status == REGISTERED)
        claims.hold()
        call = asyncio.create_task(kubelet.prepare("pod", CLAIM))
        await until(lambda: claims.begun)
        await agent.aclose()
        with pytest.raises(PodFailed, match="rpc error"):
            await call
        assert claims.prepared == set()


# --- health ---------------------------------------------------------------------------------------

CUT = "...; in full: nodeagent status --problems"


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("x" * 1024, "x" * 1024),
        ("x" * 1025, "x" * 983 + CUT),
        ("ä" * 600, "ä" * 491 + CUT),  # 2 bytes each
        ("/run/\udcff", "/run/?"),  # a path with a byte that is not a text
    ],
    ids=["as long as it may be", "too long", "no half letters", "no text"],
)
async def test_long_messages_are_cut(root: Path, claims: Claims, text: str, sent: str) -> None:
    """To the kubelet's limit of 1024 bytes, which would cut a letter in two itself."""
    feed = HealthFeed()
    feed.publish([DeviceHealth("n/gpu-1", "gpu", "unhealthy", 1.0, text)])
    async with DraKubelet(root) as kubelet, driver(root, claims, feed):
        await until(lambda: kubelet.health(DRIVER, "n/gpu-1", "gpu") == ("UNHEALTHY", sent))
