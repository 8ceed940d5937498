"""Which pods hold which devices, asked of this node's kubelet over its pod-resources socket.

A failed call never means "nothing is allocated": it raises, and every device counts as in use.
Each call makes its own connection (a Unix socket: about a millisecond), so a kubelet that comes
later, restarts or makes its socket anew needs no care. Mount or watch the socket's folder, not the
file: a restarted kubelet makes another file.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from urllib.parse import quote

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from nodeagent.cluster.kubelet.allocations import (
    Allocations,
    ClaimedDevice,
    Holding,
    PodName,
)
from nodeagent.cluster.kubelet.generated.podresources_pb2 import (
    ContainerDevices,
    ContainerResources,
    ListPodResourcesRequest,
    ListPodResourcesResponse,
    PodResources,
)
from nodeagent.errors import NodeagentError

LONGEST_PATH: Final = 107  # bytes that a Unix socket's address holds
LARGEST_ANSWER: Final = 16 << 20  # bytes; what the kubelet's other clients accept
SERVICE: Final = "v1.PodResourcesLister"

OPTIONS: Final = [
    ("grpc.max_receive_message_length", LARGEST_ANSWER),
    ("grpc.use_local_subchannel_pool", 1),  # a new connection must not wait for an old one's pause
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
]


class KubeletError(NodeagentError):
    """The kubelet did not say what is allocated, so everything counts as in use."""


class KubeletUnavailable(KubeletError):
    """The kubelet's socket does not answer; it may be restarting. Worth another try."""


class KubeletTooSlow(KubeletError):
    """The kubelet took the call and did not answer in time. Worth another try."""


class KubeletBusy(KubeletError):
    """The kubelet has had too many calls in this second (all its clients' together)."""


class KubeletTooOld(KubeletError):
    """The kubelet does not know the call at all; asking again is useless."""


class PodResourcesClient:
    """Stateless, so it can be kept and used from several tasks.

    `deadline` is in seconds, for a whole call. The kubelet serves about 100 calls a second to
    all its clients together. Every method raises a KubeletError.
    """

    def __init__(self, socket: Path, *, deadline: float) -> None:
        self._socket = socket
        self._deadline = deadline
        # How long gRPC keeps a connection that never became one; 20 s by default.
        self._options = [*OPTIONS, ("grpc.min_reconnect_backoff_ms", int(deadline * 1000))]

    async def allocations(self) -> Allocations:
        """What containers hold. Also those of a checkpoint, after a restart of the kubelet."""
        answer = await self._list()
        return Allocations(
            tuple(one for pod in answer.pod_resources for one in _holdings(pod)),
            tuple(one for pod in answer.pod_resources for one in _claimed(pod)),
        )

    async def _list(self) -> ListPodResourcesResponse:
        await asyncio.to_thread(_look_at, self._socket)
        address = "unix:" + quote(str(self._socket.absolute()))
        async with grpc.aio.insecure_channel(address, options=self._options) as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
                f"/{SERVICE}/List"
            )
            request = ListPodResourcesRequest().SerializeToString()
            try:
                # Decoded here: inside gRPC a failure would be logged past the agent's logging.
                answer = await call(request, timeout=self._deadline)
                return ListPodResourcesResponse.FromString(answer)
            except grpc.aio.AioRpcError as error:
                raise self._explained(error) from error
            except DecodeError as error:
                raise KubeletError(
                    f"the kubelet's answer to List is unreadable: {error}"
                ) from error

    def _explained(self, error: grpc.aio.AioRpcError) -> KubeletError:
        details = error.details() or error.code().name
        match error.code():
            case grpc.StatusCode.UNAVAILABLE:
                return KubeletUnavailable(
                    f"the kubelet's socket {self._socket} does not answer: {details}",
                    remedy="is the kubelet running? A restarted one makes its socket anew",
                )
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                return KubeletTooSlow(
                    f"the kubelet did not answer List within {self._deadline:g} s",
                    remedy="look at the kubelet's log and at the node's load",
                )
            case grpc.StatusCode.RESOURCE_EXHAUSTED:
                return KubeletBusy(
                    f"the kubelet refused List: {details}",
                    remedy="something on this node asks the kubelet very often",
                )
            case grpc.StatusCode.UNIMPLEMENTED:
                return KubeletTooOld(
                    f"the kubelet does not know List: {details}",
                    remedy="pod-resources v1 needs Kubernetes 1.20",
                )
            case _:
                return KubeletError(f"the kubelet failed List: {error.code().name}: {details}")


def _look_at(socket: Path) -> None:
    """Explain in plain words what gRPC would report in its own."""
    if len(os.fsencode(socket.absolute())) > LONGEST_PATH:
        raise KubeletError(
            f"the path of the kubelet's socket is too long for a socket: {socket}",
            remedy=f"at most {LONGEST_PATH} bytes",
        )
    try:
        mode = socket.stat().st_mode
    except PermissionError as error:
        raise KubeletError(
            f"no right to look at the kubelet's socket {socket}", remedy="its folder is root's"
        ) from error
    except OSError as error:
        raise KubeletUnavailable(
            f"the kubelet's socket {socket} is not there: {error.strerror}",
            remedy="is the kubelet running, and its pod-resources folder (not the file) mounted?",
        ) from error
    if not stat.S_ISSOCK(mode):
        raise KubeletError(
            f"{socket} is no socket", remedy="name the kubelet's pod-resources socket"
        )


def _by_resource(entries: Iterable[ContainerDevices]) -> Iterable[tuple[str, tuple[str, ...]]]:
    """Join the kubelet's entries, one for each device, into one for each resource."""
    ids: defaultdict[str, dict[str, None]] = defaultdict(dict)  # a dict keeps the order
    for entry in entries:
        ids[entry.resource_name].update(dict.fromkeys(entry.device_ids))
    return ((resource, tuple(devices)) for resource, devices in ids.items())


def _containers(pod: PodResources) -> Iterable[tuple[PodName, ContainerResources]]:
    return ((PodName(pod.namespace, pod.name), container) for container in pod.containers)


def _holdings(pod: PodResources) -> Iterable[Holding]:
    return (
        Holding(name, container.name, *one)
        for name, container in _containers(pod)
        for one in _by_resource(container.devices)
    )


def _claimed(pod: PodResources) -> Iterable[ClaimedDevice]:
    return (
        ClaimedDevice(
            name,
            container.name,
            PodName(claim.claim_namespace, claim.claim_name),
            device.driver_name,
            device.pool_name,
            device.device_name,
        )
        for name, container in _containers(pod)
        for claim in container.dynamic_resources
        for device in claim.claim_resources
    )
