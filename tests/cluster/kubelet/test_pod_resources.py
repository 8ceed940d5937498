import asyncio
import os
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nodeagent.claims.model import Allocated
from nodeagent.cluster.kubelet.allocations import ByClaim, ByFile, ByUuid, Holding
from nodeagent.cluster.kubelet.pod_resources import KubeletBusy, KubeletError, PodResourcesClient
from nodeagent.errors import NodeagentError
from nodeagent.plan.users import PodName
from tests.machine_load import until
from tests.simulated_cluster.kubelet import RATE_LIMITED, UNKNOWN_METHOD, Kubelet

MIG = "nvidia.com/mig-1g.10gb"
TRAINER = PodName("team", "trainer")
LIMIT = 60.0  # seconds, enough on a busy machine for anything that has no wait in it


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[Kubelet]:
    async with Kubelet(tmp_path / "pod-resources") as kubelet:
        yield kubelet


def client_of(kubelet: Kubelet, deadline: float = 60.0) -> PodResourcesClient:
    return PodResourcesClient(kubelet.socket, deadline=deadline)


async def test_every_device_is_one_holding(kubelet: Kubelet) -> None:
    kubelet.allocate("trainer", ["MIG-a", "MIG-b"], namespace="team", resource=MIG)
    kubelet.allocate("trainer", ["GPU-1::0", "GPU-1::1"], namespace="team", resource="x.io/gpu")
    kubelet.allocate("trainer", ["MIG-c"], namespace="team", container="sidecar", resource=MIG)
    assert await client_of(kubelet).allocations() == (
        Holding(TRAINER, "main", ByUuid("mig-a"), MIG),
        Holding(TRAINER, "main", ByUuid("mig-b"), MIG),
        Holding(TRAINER, "main", ByUuid("gpu-1"), "x.io/gpu"),
        Holding(TRAINER, "sidecar", ByUuid("mig-c"), MIG),
    )


@pytest.mark.parametrize("driver", ["gpu.nodeagent.io", "gpu.nvidia.com"])
async def test_devices_of_the_agents_own_driver(kubelet: Kubelet, driver: str) -> None:
    """Also where that has the name of NVIDIA's, which has a device, too."""
    own = {"driver": driver, "pool": "node-0/gpu-1", "namespace": "team"}
    for container in ("main", "sidecar"):
        kubelet.claim("trainer", "mig-1g-10gb-0", name="slice", container=container, **own)
    kubelet.claim("server", "mig-1g-10gb-0", name="slice", **own)
    kubelet.claim("server", "gpu-0", name="other", namespace="team")
    key = ("node-0/gpu-1", "mig-1g-10gb-0", "")
    client = client_of(kubelet)
    assert await client.claimed_devices() == (
        Allocated("team", "slice", "trainer", key, "main"),
        Allocated("team", "slice", "trainer", key, "sidecar"),
        Allocated("team", "slice", "server", key, "main"),
    )
    server, mine = PodName("team", "server"), ByClaim("gpu-1", 0, ("team", "slice"))
    assert await client.allocations() == (
        Holding(TRAINER, "main", mine),
        Holding(TRAINER, "sidecar", mine),
        Holding(server, "main", mine),
        Holding(server, "main", ByFile(0)),
    )
    kubelet.refuse["List"] = RATE_LIMITED
    with pytest.raises(KubeletBusy):
        await client.claimed_devices()


async def test_a_kubelet_that_is_replaced_during_a_call(kubelet: Kubelet) -> None:
    """Whose answer it is cannot be known: the new one may know no pods yet."""
    client = client_of(kubelet)
    kubelet.hold()
    asking = asyncio.create_task(client.allocations())
    await until(lambda: kubelet.calls)
    async with Kubelet(kubelet.socket.parent):
        kubelet.go_on()
        with pytest.raises(KubeletError, match="was restarted"):
            await asking


async def test_a_socket_that_comes_later(tmp_path: Path) -> None:
    kubelet = Kubelet(tmp_path / "pod-resources")
    client = client_of(kubelet)
    with pytest.raises(KubeletError, match="does not exist: No such file or directory"):
        await client.allocations()
    async with kubelet:
        assert await client.allocations() == ()


async def test_a_dead_socket_is_noticed_at_once_and_forgotten_at_once(kubelet: Kubelet) -> None:
    client = client_of(kubelet, deadline=60)
    await kubelet.stop(leave_socket=True)
    begin = time.monotonic()
    for _ in range(40):  # gRPC's shortest pause, 1 s before each, would be more than the limit
        with pytest.raises(KubeletError, match="does not answer"):
            await client.allocations()
    await kubelet.start()
    await client.allocations()
    assert time.monotonic() - begin < LIMIT


async def test_a_kubelet_that_does_not_answer(kubelet: Kubelet) -> None:
    kubelet.hold()
    begin = time.monotonic()
    with pytest.raises(KubeletError, match=r"did not answer List within 0\.2 s"):
        await client_of(kubelet, deadline=0.2).allocations()
    assert 0.19 < time.monotonic() - begin < LIMIT
    kubelet.go_on()
    assert await client_of(kubelet).allocations() == ()


async def test_a_call_that_hangs_holds_up_no_other(tmp_path: Path) -> None:
    kubelet = Kubelet(tmp_path)
    client = client_of(kubelet, deadline=60)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(kubelet.socket))
        listener.listen()
        listener.setblocking(False)
        hanging = asyncio.create_task(client.allocations())
        connection, _ = await asyncio.get_running_loop().sock_accept(listener)
        async with kubelet:
            with connection:
                assert await client.allocations() == ()
                assert not hanging.done()
            hanging.cancel()
            await asyncio.gather(hanging, return_exceptions=True)


async def test_the_kubelet_dies_during_a_call(kubelet: Kubelet) -> None:
    kubelet.hold()
    call = asyncio.create_task(client_of(kubelet).allocations())
    await until(lambda: kubelet.calls)
    await kubelet.stop()
    with pytest.raises(KubeletError, match="does not answer"):
        await call


@pytest.mark.parametrize(
    ("refusal", "kind", "words"),
    [
        (RATE_LIMITED, KubeletBusy, "rejected by rate limit"),
        (UNKNOWN_METHOD, KubeletError, "failed List: UNIMPLEMENTED"),
    ],
    ids=["rate limit", "unknown method"],
)
async def test_refusals_keep_the_kubelets_words(
    kubelet: Kubelet, refusal: object, kind: type[KubeletError], words: str
) -> None:
    kubelet.refuse["List"] = refusal  # type: ignore[assignment]  # pytest's table
    with pytest.raises(NodeagentError, match=words) as caught:
        await client_of(kubelet).allocations()
    assert type(caught.value) is kind


@pytest.mark.parametrize("garbage", [b"\x0a\xff", b"\x0a\x03\x0a\x01\xff"], ids=["cut", "not text"])
async def test_an_answer_that_cannot_be_read(kubelet: Kubelet, garbage: bytes) -> None:
    kubelet.spoilt["List"] = garbage
    with pytest.raises(KubeletError, match="answer to List is unreadable"):
        await client_of(kubelet).allocations()


async def test_what_is_no_socket(tmp_path: Path) -> None:
    plain = tmp_path / "file"
    plain.touch()
    with pytest.raises(KubeletError, match="is not a socket"):
        await PodResourcesClient(plain, deadline=1).allocations()
    with pytest.raises(KubeletError, match="too long"):
        await PodResourcesClient(tmp_path / ("x" * 108), deadline=1).allocations()


async def test_a_path_with_odd_characters(tmp_path: Path) -> None:
    async with Kubelet(tmp_path / "a b%20c?#") as kubelet:
        assert await client_of(kubelet).allocations() == ()


async def test_processes_can_be_started_during_calls(kubelet: Kubelet) -> None:
    """As daemons are, under a user: by a fork, which gRPC's own handlers for it must not end."""

    def start() -> set[int]:
        command, user = ["true"], os.geteuid()  # a user named is a fork, not a vfork
        return {subprocess.run(command, check=False, user=user).returncode for _ in range(20)}

    client = client_of(kubelet)
    starting = asyncio.create_task(asyncio.to_thread(start))
    while not starting.done():
        await client.allocations()
    assert await starting == {0}
