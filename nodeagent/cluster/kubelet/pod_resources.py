"""Which pods hold which devices, asked of this node's kubelet over its pod-resources socket.

A failed call never means "nothing is allocated": it raises, and every device counts as in use.
A connection is kept while the socket is the same file and calls succeed: to make one costs more
than a call. Mount or watch the socket's folder, not the file: a restarted kubelet makes
another file.

A kubelet answers before it knows its pods, and lists none while it cannot reach the API server. So
each one's answer counts only once it has listed all pods that have processes on this node.
"""

import asyncio
import os
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from nodeagent.claims.model import Allocated
from nodeagent.claims.names import is_own
from nodeagent.cluster.kubelet.allocations import (
    DeviceId,
    Holding,
    read_claimed_device,
    read_device_id,
    read_own_device,
)
from nodeagent.cluster.kubelet.generated import podresources_pb2
from nodeagent.errors import NodeagentError
from nodeagent.files.watch import Signature
from nodeagent.plan.users import PodName
from nodeagent.text import listed

MAX_PATH: Final = 107  # bytes that a Unix socket's address holds
MAX_ANSWER: Final = 16 << 20  # bytes; what the kubelet's other clients accept
SERVICE: Final = "v1.PodResourcesLister"

OPTIONS: Final = [
    ("grpc.max_receive_message_length", MAX_ANSWER),
    ("grpc.use_local_subchannel_pool", 1),  # a new connection must not wait for an old one's pause
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
]


class KubeletError(NodeagentError):
    """The kubelet did not say what is allocated, so everything counts as in use."""


class KubeletBusy(KubeletError):
    """The kubelet has had too many calls in this second (all its clients' together)."""


class PodResourcesClient:
    """A client of the kubelet's PodResources API, which several tasks can share.

    `deadline` is in seconds, for a whole call. The kubelet serves about 100 calls a second to
    all its clients together. `running` finds the pods that have processes here, as far as that can
    be known; blocks. Every method raises a KubeletError.
    """

    def __init__(
        self,
        socket: Path,
        *,
        deadline: float,
        running: Callable[[], Collection[PodName]] = frozenset,
    ) -> None:
        self._socket = socket
        self._deadline = deadline
        self._running = running
        # The socket that it leads to, and a connection on which no call is under way.
        self._kept: tuple[Signature, grpc.aio.Channel] | None = None
        self._complete: Signature = ""  # of the socket whose kubelet has listed all that run
        # How long gRPC keeps a connection that never became one; 20 s by default.
        self._options = [*OPTIONS, ("grpc.min_reconnect_backoff_ms", int(deadline * 1000))]

    async def allocations(self) -> tuple[Holding, ...]:
        """What containers hold. Also those of a checkpoint, after a restart of the kubelet.

        Kubelets before 1.34 also list pods that have succeeded or failed: these hold theirs.
        """
        return await asyncio.to_thread(holdings_in, await self._list())

    async def claimed_devices(self) -> tuple[Allocated, ...]:
        """What pods have of this agent's own driver, from when a claim is prepared until its
        release was answered. Nothing where the kubelet does not list claims at all, as before 1.34.
        """
        return await asyncio.to_thread(allocated_in, await self._list())

    async def _list(self) -> bytes:
        kubelet = await asyncio.to_thread(_check_socket, self._socket)
        is_new = kubelet != self._complete
        running = frozenset(await asyncio.to_thread(self._running)) if is_new else frozenset()
        answer = await self._answer(kubelet)
        if await asyncio.to_thread(_check_socket, self._socket) != kubelet:
            raise KubeletError.of("kubeletRestarted")
        if running:
            await asyncio.to_thread(self._require, running, answer)
        self._complete = kubelet
        return answer

    def _require(self, running: frozenset[PodName], answer: bytes) -> None:
        """Raise KubeletError for pods that ran before the answer, still run, and are not in it."""
        missing = running - {PodName(pod.namespace, pod.name) for pod in _pods_in(answer)}
        if missing and (missing := missing.intersection(self._running())):
            raise KubeletError.of("kubeletStarting", pods=listed(map(str, sorted(missing))))

    async def close(self) -> None:
        """End the kept connection. It can be used again."""
        kept, self._kept = self._kept, None
        if kept is not None:
            await kept[1].close()

    async def _answer(self, kubelet: Signature) -> bytes:
        """Over the kept connection, unless that leads to another kubelet or another call has it."""
        kept, self._kept = self._kept, None
        if kept is not None and kept[0] == kubelet:
            channel = kept[1]
        else:
            if kept is not None:
                await kept[1].close()
            address = "unix:" + quote(str(self._socket.absolute()))
            channel = grpc.aio.insecure_channel(address, options=self._options)
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            f"/{SERVICE}/List"
        )
        request = podresources_pb2.ListPodResourcesRequest().SerializeToString()
        try:
            answer = await call(request, timeout=self._deadline)
            if self._kept is None:
                self._kept = kubelet, channel
            return answer
        except grpc.aio.AioRpcError as error:
            raise self._error(error) from error
        finally:
            if self._kept is None or self._kept[1] is not channel:
                await channel.close()

    def _error(self, error: grpc.aio.AioRpcError) -> KubeletError:
        details = error.details() or error.code().name
        match error.code():
            case grpc.StatusCode.UNAVAILABLE:
                return KubeletError.of("kubeletSilent", socket=self._socket, why=details)
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                return KubeletError.of("kubeletSlow", seconds=f"{self._deadline:g}")
            case grpc.StatusCode.RESOURCE_EXHAUSTED:
                return KubeletBusy.of("kubeletBusy", why=details)
            case _:
                return KubeletError(f"the kubelet failed List: {error.code().name}: {details}")


def _check_socket(socket: Path) -> Signature:
    """What distinguishes it from that of a kubelet before or after. Explains in plain words what
    gRPC would report in its own.
    """
    if len(os.fsencode(socket.absolute())) > MAX_PATH:
        raise KubeletError.of("kubeletPath", socket=socket, most=MAX_PATH)
    try:
        found = socket.stat()
    except PermissionError as error:
        raise KubeletError.of("kubeletHidden", socket=socket) from error
    except OSError as error:
        raise KubeletError.of("kubeletMissing", socket=socket, why=error.strerror) from error
    if not stat.S_ISSOCK(found.st_mode):
        raise KubeletError.of("kubeletNoSocket", socket=socket)
    return (found.st_dev, found.st_ino, found.st_ctime_ns)


# --- the answer -----------------------------------------------------------------------------------


def holdings_in(answer: bytes) -> tuple[Holding, ...]:
    """What containers hold by an answer to List; raises KubeletError for what is none."""
    found = (holding for pod in _pods_in(answer) for holding in _holdings(pod))
    return tuple(dict.fromkeys(found))  # replicas of a device are one use of it


def allocated_in(answer: bytes) -> tuple[Allocated, ...]:
    """What the answer says of devices of this agent's own driver."""
    found = (device for pod in _pods_in(answer) for device in _claimed(pod))
    return tuple(dict.fromkeys(found))  # kubelets that were restarted list them twice


def _pods_in(answer: bytes) -> Sequence[podresources_pb2.PodResources]:
    """Decoded here: inside gRPC a failure would be logged past the agent's logging."""
    try:
        return podresources_pb2.ListPodResourcesResponse.FromString(answer).pod_resources
    except DecodeError as error:
        raise KubeletError(f"the kubelet's answer to List is unreadable: {error}") from error


def _holdings(pod: podresources_pb2.PodResources) -> Iterator[Holding]:
    """The kubelet has one entry for each device."""
    name = PodName(pod.namespace, pod.name)
    for container in pod.containers:
        for entry in container.devices:
            for device in map(read_device_id, entry.device_ids):
                yield Holding(name, container.name, device, entry.resource_name)
        for claim in container.dynamic_resources:
            for claimed in claim.claim_resources:
                found = _claimed_device(claim, claimed)
                if found is not None:
                    yield Holding(name, container.name, found)


def _claimed_device(
    claim: podresources_pb2.DynamicResource, claimed: podresources_pb2.ClaimResource
) -> DeviceId | None:
    if not is_own(claimed.driver_name, claimed.pool_name):
        return read_claimed_device(claimed.driver_name, claimed.device_name)
    named = claim.claim_namespace, claim.claim_name
    return read_own_device(named, claimed.pool_name, claimed.device_name)


def _claimed(pod: podresources_pb2.PodResources) -> Iterator[Allocated]:
    """List a pod's devices of this agent's own driver, with their claims."""
    for container in pod.containers:
        for claim in container.dynamic_resources:
            for one in claim.claim_resources:
                if is_own(one.driver_name, one.pool_name):
                    key = (one.pool_name, one.device_name, one.share_id)
                    namespace, name = claim.claim_namespace, claim.claim_name
                    yield Allocated(namespace, name, pod.name, key, container.name)
