"""Where the GPUs are in the machine: the NUMA node of each, and what its NVLinks lead to.

None of it decides about a plan, so a failure leaves it unknown and nothing else; a thread of its
own keeps a call that hangs away from the GPUs' own calls. It hardly ever changes, and a GPU may
have three dozen links, so it is read once for each start of NVML and each change of a GPU's MIG
mode (which may switch links off), and a GPU that refuses it is left alone after a few attempts.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import pynvml

from nodeagent.errors import DriverError
from nodeagent.gpu import nvml
from nodeagent.gpu.nvml import MAX_LINKS, Device, call
from nodeagent.gpu.nvml_errors import FUNCTION_NOT_FOUND, INVALID_ARGUMENT, is_unsupported
from nodeagent.gpu.workers import Worker
from nodeagent.plan.observed import NVSWITCH, Gpu, NvLinks
from nodeagent.structs import replace

OTHER = "other"

_ATTEMPTS = 3
_NODE_WORDS: Final = 16  # of 64 NUMA nodes each; Linux can have 1024

_Place = tuple[int | None, NvLinks | None]  # NUMA node and links


class Topology:
    """NUMA node and links of each GPU by UUID, and which of them have to be read (again).

    `patience` in seconds is how long an observation waits for it: no plan is to wait for what it
    does not need. What comes later is in the next one. `sysfs` is where the kernel has NUMA nodes,
    for drivers that do not report them.
    """

    def __init__(self, *, patience: float = 0.5, sysfs: Path = Path("/sys")) -> None:
        self.worker = Worker("the topology")
        self._patience = patience
        self._sysfs = sysfs
        self._known: dict[str, _Place] = {}
        self._read_in_mode: dict[str, bool | None] = {}
        self._attempts: Counter[str] = Counter()
        self._session = 0

    async def read(self, gpus: Sequence[Gpu], session: int) -> None:
        """Read what has to be read; never raises for a failure. NVML has to stay as it is.

        After NVML was started again all is read once more; what is known stays until then.
        """
        if session != self._session:
            self._session = session
            self._read_in_mode.clear()
            self._attempts.clear()
        due = [gpu for gpu in gpus if self._is_due(gpu)]
        if due and not self.worker.in_call:
            uuids = {gpu.pci_bus_id.upper(): gpu.uuid for gpu in gpus if gpu.pci_bus_id}
            # Late: the thread goes on, and keeps what it learns.
            with suppress(DriverError, TimeoutError):
                async with asyncio.timeout(self._patience):
                    await self.worker.call(
                        lambda: self._read(due, uuids),
                        what="reading NUMA nodes and NVLinks",
                        deadline=self._patience,
                    )

    def with_topology(self, gpu: Gpu) -> Gpu:
        numa_node, nvlink = self._known.get(gpu.uuid, (gpu.numa_node, gpu.nvlink))
        return replace(gpu, numa_node=numa_node, nvlink=nvlink)

    def _is_due(self, gpu: Gpu) -> bool:
        return (
            gpu.answers
            and self._attempts[gpu.uuid] < _ATTEMPTS
            and (
                gpu.uuid not in self._read_in_mode or self._read_in_mode[gpu.uuid] is not _mode(gpu)
            )
        )

    # --- in the thread --------------------------------------------------------------------------

    def _read(self, gpus: Sequence[Gpu], uuids: Mapping[str, str]) -> None:
        for gpu in gpus:
            try:
                handle = nvml.device_by_index(gpu.index)
                if nvml.uuid(handle) != gpu.uuid:  # renumbered, so NVML is started again soon
                    self._known[gpu.uuid] = None, None
                else:
                    node = self._numa_node(handle, gpu.pci_bus_id)
                    self._known[gpu.uuid] = node, _nvlinks(handle, uuids)
            except DriverError:
                self._attempts[gpu.uuid] += 1
            else:
                self._read_in_mode[gpu.uuid] = _mode(gpu)
                self._attempts[gpu.uuid] = 0

    def _numa_node(self, handle: Device, bus_id: str) -> int | None:
        try:
            nearest = _nearest_memory(handle)
        except DriverError as error:
            if not is_unsupported(error):
                raise
            nearest = ()
        return nearest[0] if len(nearest) == 1 else _kernels_numa_node(self._sysfs, bus_id)


def _mode(gpu: Gpu) -> bool | None:
    return gpu.mig.current if gpu.mig else None


def _nearest_memory(device: Device) -> tuple[int, ...]:
    """The NUMA nodes of the host whose memory is nearest, as in `nvidia-smi topo -m`.

    nvmlDeviceGetNumaNodeId is something else: the node that a GPU's own memory is, on machines
    where that is one.
    """
    scope = pynvml.NVML_AFFINITY_SCOPE_NODE
    words = call("nvmlDeviceGetMemoryAffinity", device, _NODE_WORDS, scope)
    return tuple(
        64 * number + bit
        for number, word in enumerate(words)
        for bit in range(64)
        if word >> bit & 1
    )


def _kernels_numa_node(sysfs: Path, bus_id: str) -> int | None:
    """Read the NUMA node that the kernel has for a PCI device: -1 where it does not know."""
    domain, _, rest = bus_id.lower().partition(":")
    try:
        # NVML writes the domain with eight digits, the kernel with at least four.
        device = f"{int(domain, 16):04x}:{rest}"
        node = int((sysfs / "bus/pci/devices" / device / "numa_node").read_text("ascii"))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _nvlinks(handle: Device, uuids: Mapping[str, str]) -> NvLinks | None:
    """All links of a GPU. Cards with some of their kind's links have gaps in the numbering."""
    total = 0
    peers: Counter[str] = Counter()
    for link in range(MAX_LINKS):
        try:
            up = call("nvmlDeviceGetNvLinkState", handle, link)
        except DriverError as error:
            if error.code in {INVALID_ARGUMENT, FUNCTION_NOT_FOUND}:  # no such link; no links
                break
            if not is_unsupported(error):
                raise
            continue
        total += 1
        if up:
            peers[_peer(handle, link, uuids)] += 1
    return NvLinks(total, peers.total(), tuple(sorted(peers.items()))) if total else None


def _peer(handle: Device, link: int, uuids: Mapping[str, str]) -> str:
    try:
        kind = call("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
        if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_GPU:
            info = call("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
            return uuids.get(info.busId.upper(), info.busId)
    except DriverError as error:
        if not is_unsupported(error):
            raise
        return OTHER
    return NVSWITCH if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH else OTHER
