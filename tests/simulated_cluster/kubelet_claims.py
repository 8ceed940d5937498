"""How a kubelet has the claims of its pods prepared and released, and follows devices' health.

As in pkg/kubelet/cm/dra of Kubernetes 1.36, with its words, its checkpoint and its errors; see
`KubeletVersion` for the others.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import grpc
import grpc.aio

from nodeagent.cluster.kubelet.generated import dra_health_pb2, dra_pb2
from tests.simulated_cluster import kubelet_plugins
from tests.simulated_cluster.kubelet import Kubelet

CALL_WITHIN = 45.0  # seconds for a prepare or release, then the kubelet cancels it
SILENCE = 30.0  # seconds after which a device's health is unknown
HEALTH_RETRY = 0.02  # seconds; the real one waits 5
POD_RETRY = 0.02  # seconds; the real one waits 60 to 90
DRIVER = "gpu.nodeagent.io"


class PodFailed(Exception):
    """A pod's claims cannot be prepared or released; the text is what the pod's Event says."""


@dataclass(frozen=True, slots=True)
class Claim:
    """An allocated claim, with the drivers whose devices it has."""

    name: str
    uid: str
    namespace: str = "default"
    drivers: tuple[str, ...] = (DRIVER,)


@dataclass(slots=True)
class ClaimInfo:
    """What the kubelet keeps of a claim; `prepared` is forgotten when it restarts."""

    claim: Claim
    pods: set[str] = field(default_factory=set)
    devices: dict[str, list[dra_pb2.Device]] = field(default_factory=dict)
    prepared: bool = False
    releasing: bool = False


@dataclass(frozen=True, slots=True)
class _Health:
    status: str
    message: str
    until: float


class DraKubelet:
    """`async with DraKubelet(root) as kubelet`; `checkpoint` has its claims by namespace and name.

    `pod_resources` lists the devices of claims to those who ask. `calls` has the method and the
    uids of each call, `events` the failures of pods that `start_pod` starts.
    """

    def __init__(
        self,
        root: Path,
        version: kubelet_plugins.KubeletVersion = kubelet_plugins.V1_36,
        *,
        pod_resources: Kubelet | None = None,
        call_within: float = CALL_WITHIN,
        scan: float = kubelet_plugins.SCAN,
    ) -> None:
        self.version = version
        self.plugins = kubelet_plugins.Plugins(root, version, follow=self._follow_health, scan=scan)
        self.checkpoint: dict[tuple[str, str], ClaimInfo] = {}
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        self.events: list[str] = []
        self.pod_resources = pod_resources
        self._call_within = call_within
        self._health: dict[str, dict[tuple[str, str], _Health]] = {}

    # --- its life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        await self.plugins.start()

    async def stop(self) -> None:
        await self.plugins.stop()

    async def restart(self) -> None:
        """Another kubelet with the same checkpoint; it has to prepare all claims again."""
        await self.stop()
        for info in self.checkpoint.values():
            info.prepared = False
        await self.start()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # --- claims -----------------------------------------------------------------------------------

    async def prepare(self, pod: str, *claims: Claim) -> None:
        """What happens before the pod's sandbox is made; also for a running one after a restart."""
        for claim in claims:
            for driver in claim.drivers:
                self._plugin(driver)
        batches: dict[str, list[Claim]] = {}
        wanted = [self._referenced(pod, claim) for claim in claims]
        for info in wanted:
            for driver in () if info.prepared else info.claim.drivers:
                batches.setdefault(driver, []).append(info.claim)
        for driver, batch in batches.items():
            request = dra_pb2.NodePrepareResourcesRequest(claims=map(_named, batch))
            raw = await self._call(driver, "NodePrepareResources", batch, request)
            answers = dra_pb2.NodePrepareResourcesResponse.FromString(raw).claims
            for claim in _answered("NodePrepareResources", batch, answers):
                info = self.checkpoint[claim.namespace, claim.name]
                earlier = info.devices.get(driver, []) if self.version.appends_devices else []
                info.devices[driver] = [*earlier, *answers[claim.uid].devices]
        for info in wanted:
            info.prepared = True
        self._list(pod, {claim.namespace for claim in claims})

    async def start_pod(self, pod: str, *claims: Claim) -> None:
        """Prepare until it succeeds, as the pod's worker does."""
        while True:
            try:
                return await self.prepare(pod, *claims)
            except PodFailed as error:
                self.events.append(str(error))
            await asyncio.sleep(POD_RETRY)

    async def release(self, pod: str, *claims: Claim) -> None:
        """What happens after the pod's last container; the pod stays until this succeeds.

        `claims` are those of the pod's spec, for a kubelet that has no checkpoint of the pod.
        """
        known = [info for info in self.checkpoint.values() if pod in info.pods]
        if not known:
            keys = [(claim.namespace, claim.name) for claim in claims]
            known = [self.checkpoint[key] for key in keys if key in self.checkpoint]
        batches: dict[str, list[Claim]] = {}
        released = []
        for info in known:
            if pod not in info.pods and not self.version.releases_for_strangers:
                continue
            if len(info.pods) > 1:
                info.pods.discard(pod)
                self._list(pod, [info.claim.namespace])
                continue
            info.releasing = True
            released.append(info)
            for driver in info.claim.drivers:
                batches.setdefault(driver, []).append(info.claim)
        try:
            for driver, batch in batches.items():
                request = dra_pb2.NodeUnprepareResourcesRequest(claims=map(_named, batch))
                raw = await self._call(driver, "NodeUnprepareResources", batch, request)
                answers = dra_pb2.NodeUnprepareResourcesResponse.FromString(raw).claims
                for _ in _answered("NodeUnprepareResources", batch, answers):
                    pass
        finally:
            for info in released:
                info.releasing = False
        for info in released:
            self.checkpoint.pop((info.claim.namespace, info.claim.name), None)
        self._list(pod, {info.claim.namespace for info in released})

    def cdi_ids(self, claim: Claim) -> list[str]:
        """What containers of the claim's pods get, in order."""
        devices = self.checkpoint[claim.namespace, claim.name].devices
        return [
            one for held in devices.values() for device in held for one in device.cdi_device_ids
        ]

    def _list(self, pod: str, namespaces: Iterable[str]) -> None:
        """Let the pod-resources service know; until a release succeeds its devices are listed."""
        if self.pod_resources is None:
            return
        for namespace in namespaces:
            held = [
                (info.claim.name, driver, device.pool_name, device.device_name)
                for info in self.checkpoint.values()
                if pod in info.pods and info.claim.namespace == namespace
                for driver, devices in info.devices.items()
                for device in devices
            ]
            self.pod_resources.set_claims(pod, held, namespace=namespace)

    def _referenced(self, pod: str, claim: Claim) -> ClaimInfo:
        info = self.checkpoint.setdefault((claim.namespace, claim.name), ClaimInfo(claim))
        if info.claim.uid != claim.uid:
            raise PodFailed(
                f"old ResourceClaim with same name {claim.name} and different UID "
                f"{info.claim.uid} still exists (previous pod force-deleted?!)"
            )
        if info.releasing and not self.version.shares_while_releasing:
            raise PodFailed(f"ResourceClaim {claim.name} is being unprepared")
        info.pods.add(pod)
        return info

    def _plugin(self, driver: str) -> kubelet_plugins.Plugin:
        plugin = self.plugins.get(driver)
        if plugin is None:
            raise PodFailed(f"DRA driver {driver} is not registered")
        return plugin

    async def _call(
        self,
        driver: str,
        method: str,
        claims: list[Claim],
        request: dra_pb2.NodePrepareResourcesRequest | dra_pb2.NodeUnprepareResourcesRequest,
    ) -> bytes:
        plugin = self._plugin(driver)
        self.calls.append((method, tuple(claim.uid for claim in claims)))
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = plugin.channel.unary_unary(
            f"/{kubelet_plugins.SERVICES[plugin.service]}/{method}"
        )
        try:
            return await call(request.SerializeToString(), timeout=self._call_within)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # The plugin is gone, and its connection was closed under the call.
            raise PodFailed(f"{method}: rpc error: code = Canceled") from error
        except grpc.aio.AioRpcError as error:
            code = "".join(word.title() for word in error.code().name.split("_"))
            raise PodFailed(
                f"{method}: rpc error: code = {code} desc = {error.details()}"
            ) from error

    # --- health -----------------------------------------------------------------------------------

    def health(self, driver: str, pool: str, device: str) -> tuple[str, str]:
        """The device's status and message as its pod shows them."""
        found = self._health.get(driver, {}).get((pool, device))
        if found is None or asyncio.get_running_loop().time() > found.until:
            return "UNKNOWN", ""
        return found.status, found.message

    def _health_service(self, plugin: kubelet_plugins.Plugin) -> str:
        match self.version.follows_health:
            case "no":
                return ""
            case "always":
                return "v1alpha1.DRAResourceHealth"
            case "where advertised":
                return next(
                    (one for one in kubelet_plugins.HEALTH_SERVICES if one in plugin.versions), ""
                )

    async def _follow_health(self, plugin: kubelet_plugins.Plugin) -> None:
        service = self._health_service(plugin)
        if not service:
            return
        start: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = plugin.channel.unary_stream(
            f"/{service}/NodeWatchResources"
        )
        while True:
            try:
                async for raw in start(b""):
                    message = dra_health_pb2.NodeWatchResourcesResponse.FromString(raw)
                    self._update_health(plugin.name, message)
            except grpc.aio.AioRpcError:
                pass
            finally:
                self._health.pop(plugin.name, None)
            await asyncio.sleep(HEALTH_RETRY)

    def _update_health(
        self, driver: str, message: dra_health_pb2.NodeWatchResourcesResponse
    ) -> None:
        """Devices that are missing keep what was said until that is too old."""
        now = asyncio.get_running_loop().time()
        known = self._health.setdefault(driver, {})
        for device in message.devices:
            key = device.device.pool_name, device.device.device_name
            within = device.health_check_timeout_seconds or SILENCE
            status = dra_health_pb2.HealthStatus.Name(device.health)
            known[key] = _Health(status, device.message, now + within)


def _named(claim: Claim) -> dra_pb2.Claim:
    return dra_pb2.Claim(namespace=claim.namespace, uid=claim.uid, name=claim.name)


def _answered(
    method: str,
    claims: list[Claim],
    answers: Mapping[str, dra_pb2.NodePrepareResourceResponse]
    | Mapping[str, dra_pb2.NodeUnprepareResourceResponse],
) -> Iterator[Claim]:
    """The claims that were answered, up to the first error."""
    by_uid = {claim.uid: claim for claim in claims}
    for uid, answer in answers.items():
        if uid not in by_uid:
            raise PodFailed(f"{method} returned result for unknown claim UID {uid}")
        if answer.error:
            raise PodFailed(f"{method} failed for ResourceClaim {by_uid[uid].name}: {answer.error}")
        yield by_uid[uid]
    if skipped := len(claims) - len(answers):
        raise PodFailed(f"{method} skipped {skipped} ResourceClaims")
