"""How a kubelet finds its DRA plugins and keeps a connection to each, over real Unix sockets.

As in pkg/kubelet/pluginmanager and pkg/kubelet/cm/dra/plugin of Kubernetes 1.36, with their words;
what other versions do otherwise is in `KubeletVersion`. Waits between attempts are short here.
"""

import asyncio
import gc
import os
import stat
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import grpc
import grpc.aio

from nodeagent.cluster.kubelet.generated.pluginregistration_pb2 import (
    InfoRequest,
    PluginInfo,
    RegistrationStatus,
)

SCAN = 0.005  # seconds; stands in for inotify
RETRY = 0.02  # seconds; the real one begins with 0.5 and doubles
GET_INFO_WITHIN = 1.0
NOTIFY_WITHIN = 5.0
SERVICES = {  # as plugins name them, and as gRPC does
    "v1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
    "v1beta1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
}
HEALTH_SERVICES = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")  # the first is preferred

_Identity = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class KubeletVersion:
    """What differs between the first releases of each; numbers are pull requests of Kubernetes."""

    name: str
    follows_health: Literal["no", "always", "where advertised"]
    checks_endpoints: bool  # 140837
    appends_devices: bool  # 140274: devices of a repeated prepare come on top of the earlier ones
    releases_for_strangers: bool  # 140212: a pod that never got the claim has it released
    shares_while_releasing: bool  # 140527: a pod joins a claim that is being released

    def __str__(self) -> str:
        return self.name


V1_34 = KubeletVersion("1.34", "no", False, True, True, True)  # health is behind a gate
V1_36 = KubeletVersion("1.36", "always", False, True, True, True)
V1_37 = KubeletVersion("1.37", "where advertised", True, False, False, False)
VERSIONS = (V1_34, V1_36, V1_37)


@dataclass(slots=True, eq=False)
class Plugin:
    """A registered plugin; `service` is the first of its versions that the kubelet knows."""

    name: str
    endpoint: str
    versions: tuple[str, ...]
    service: str
    identity: _Identity
    channel: grpc.aio.Channel
    connected: bool = False
    tasks: list[asyncio.Task[None]] = field(default_factory=list)


class Plugins:
    """Watches `root`/plugins_registry from `start` to `stop`.

    `follow` runs for each plugin while it is registered. `found` has the registered plugins by
    socket, `refusals` what was said to plugins, `failures` what went wrong with others.
    """

    def __init__(
        self,
        root: Path,
        version: KubeletVersion,
        *,
        follow: Callable[[Plugin], Coroutine[Any, Any, None]],
        scan: float = SCAN,
    ) -> None:
        self.root = root
        self.registry = root / "plugins_registry"
        self.version = version
        self.found: dict[Path, Plugin] = {}
        self.refusals: list[str] = []
        self.failures: list[str] = []
        self._follow = follow
        self._scan = scan
        self._registering: dict[Path, asyncio.Task[None]] = {}
        self._watching: asyncio.Task[None] | None = None

    def get(self, driver: str) -> Plugin | None:
        """The driver's newest plugin, one that is connected before one that is not."""
        plugins = [plugin for plugin in self.found.values() if plugin.name == driver]
        return next((one for one in reversed(plugins) if one.connected), None) or (
            plugins[-1] if plugins else None
        )

    async def start(self) -> None:
        for folder in (self.root, self.root / "plugins", self.registry):
            folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Forget all plugins; nothing is said to them."""
        tasks = [*self._registering.values(), *([self._watching] if self._watching else [])]
        await _cancelled(tasks)
        self._registering.clear()
        for socket in list(self.found):
            await self._unregister(socket)
        gc.collect()  # gRPC's polling thread ends with its last object, and failed calls are cycles

    # --- the folder -----------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            sockets = dict(_sockets(self.registry))
            for socket, plugin in list(self.found.items()):
                if sockets.get(socket) != plugin.identity:
                    await self._unregister(socket)
            for socket, identity in sockets.items():
                if socket not in self.found and socket not in self._registering:
                    task = asyncio.create_task(self._register(socket, identity))
                    self._registering[socket] = task
            await asyncio.sleep(self._scan)

    async def _register(self, socket: Path, identity: _Identity) -> None:
        try:
            await self._introduce(socket, identity)
        except grpc.aio.AioRpcError as error:
            self.failures.append(f"{socket.name}: {error.code().name}")
        if socket not in self.found:
            await asyncio.sleep(RETRY)
        del self._registering[socket]

    async def _introduce(self, socket: Path, identity: _Identity) -> None:
        # Dialled without a scheme, as the kubelet does: the path is the authority then.
        async with channel_to(str(socket), authority=quote(str(socket), safe="")) as channel:
            ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
                "/pluginregistration.Registration/GetInfo"
            )
            notify: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
                "/pluginregistration.Registration/NotifyRegistrationStatus"
            )
            request = InfoRequest().SerializeToString()
            info = PluginInfo.FromString(await ask(request, timeout=GET_INFO_WITHIN))
            problem = self._problem(info, socket)
            if not problem:
                service = next(one for one in info.supported_versions if one in SERVICES)
                endpoint = info.endpoint or str(socket)
                plugin = Plugin(
                    info.name,
                    endpoint,
                    tuple(info.supported_versions),
                    service,
                    identity,
                    channel_to(endpoint),
                )
                self.found[socket] = plugin
                for follow in (self._follow_connection, self._follow):
                    plugin.tasks.append(asyncio.create_task(follow(plugin)))
            else:
                self.refusals.append(problem)
            status = RegistrationStatus(plugin_registered=not problem, error=problem)
            await notify(status.SerializeToString(), timeout=NOTIFY_WITHIN)

    async def _unregister(self, socket: Path) -> None:
        plugin = self.found.pop(socket)
        await _cancelled(plugin.tasks)
        await plugin.channel.close()

    # --- why a plugin is refused ------------------------------------------------------------------

    def _problem(self, info: PluginInfo, socket: Path) -> str:
        if info.type != "DRAPlugin":
            what = f"no handler registered for plugin type: {info.type} at socket {socket}"
            return f"RegisterPlugin error -- {what}"
        endpoint = info.endpoint or str(socket)
        at = f"DRA driver plugin {info.name} at endpoint {endpoint}"
        if not set(SERVICES) & set(info.supported_versions):
            reason = (
                f"invalid supported gRPC versions of {at}: none of services supported by the "
                f"plugin ({_listed(info.supported_versions)}) are supported by the kubelet "
                f"({_listed(SERVICES)})"
            )
            return f"RegisterPlugin error -- plugin validation failed with err: {reason}"
        if self.version.checks_endpoints and (reason := self._bad_endpoint(endpoint)):
            return f"RegisterPlugin error -- plugin validation failed with err: {reason}"
        if any(one.endpoint == endpoint for one in self.found.values()):
            reason = f"endpoint {endpoint} already registered for DRA driver plugin {info.name}"
            return f"RegisterPlugin error -- plugin registration failed with err: {reason}"
        return ""

    def _bad_endpoint(self, endpoint: str) -> str:
        if not Path(endpoint).is_absolute():
            return f'DRA plugin endpoint "{endpoint}" must be an absolute path'
        if len(os.fsencode(endpoint)) >= 108:
            return f'DRA plugin endpoint "{endpoint}" must not be longer than 108 bytes'
        if not Path(os.path.normpath(endpoint)).is_relative_to(self.root):
            return f'DRA plugin endpoint "{endpoint}" is not inside "{self.root}"'
        return ""

    # --- connections ------------------------------------------------------------------------------

    async def _follow_connection(self, plugin: Plugin) -> None:
        while True:
            state = plugin.channel.get_state(try_to_connect=True)
            plugin.connected = state is grpc.ChannelConnectivity.READY
            await plugin.channel.wait_for_state_change(state)


def channel_to(socket: str, *, authority: str = "localhost") -> grpc.aio.Channel:
    """A connection of its own to this socket."""
    options = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.min_reconnect_backoff_ms", 20),
        ("grpc.default_authority", authority),
    ]
    return grpc.aio.insecure_channel("unix:" + quote(socket), options=options)


def _sockets(folder: Path) -> Iterable[tuple[Path, _Identity]]:
    for path in sorted(folder.iterdir()):
        try:
            found = path.lstat()
        except FileNotFoundError:
            continue
        if stat.S_ISSOCK(found.st_mode) and not path.name.startswith("."):
            yield path, (found.st_dev, found.st_ino, found.st_mtime_ns)


def _listed(names: Iterable[str]) -> str:
    return "[" + " ".join(f'"{name}"' for name in names) + "]"


async def _cancelled(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
