"""What attributes of devices have beside what is observed: versions, brands, places on the bus.

Nothing is decided by it, so what cannot be read is left out. It does not change while the driver
is loaded: each GPU is asked once for each start of NVML.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from nodeagent.claims.offering.devices import GpuFacts, pci_address
from nodeagent.errors import DriverError
from nodeagent.gpu import nvml
from nodeagent.gpu.device import GpuDevice
from nodeagent.gpu.nvml_errors import is_unsupported
from nodeagent.gpu.pool import GpuPool
from nodeagent.plan.observed import Gpu
from nodeagent.structs import replace

SYSFS = Path("/sys")
_DEADLINE = 5.0  # seconds for one call

# By nvmlBrandType_t from 0 on, as NVIDIA's driver writes them (go-nvlib, pkg/nvlib/device).
_BRANDS = (
    "Unknown", "Quadro", "Tesla", "NVS", "Grid", "GeForce", "Titan", "NvidiaVApps", "NvidiaVPC",
    "NvidiaVCS", "NvidiaVWS", "NvidiaCloudGaming", "QuadroRTX", "NvidiaRTX", "Nvidia",
    "GeForceRTX", "TitanRTX",
)  # fmt: skip

# By NVML's number, as NVIDIA's driver writes them (go-nvlib, pkg/nvlib/device).
_ADDRESSING_MODES = ("None", "HMM", "ATS")

_PCIE_ROOT = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")


class FactsReader:
    """Reads the facts of GPUs and keeps them for as long as NVML is not started anew.

    `root_of` gives the root of a GPU's part of the PCI bus and may block.
    """

    def __init__(self, pool: GpuPool, root_of: Callable[[Gpu], str]) -> None:
        self._pool = pool
        self._root_of = root_of
        self._session = 0
        self._known: dict[str, GpuFacts] = {}  # by UUID, as far as the driver has answered

    async def read(self, gpus: Iterable[Gpu]) -> dict[str, GpuFacts]:
        """The facts by UUID, of the GPUs that answer. Raises nothing."""
        if self._session != self._pool.session:
            self._session = self._pool.session
            self._known.clear()
        found: dict[str, GpuFacts] = {}
        for gpu in gpus:
            if gpu.uuid and gpu.answers:
                found[gpu.uuid] = self._known.get(gpu.uuid) or await self._read(gpu)
        return found

    async def _read(self, gpu: Gpu) -> GpuFacts:
        root = await asyncio.to_thread(self._root_of, gpu)
        cuda = ".".join(map(str, gpu.cuda_version)) if gpu.cuda_version > (0, 0) else ""
        facts = GpuFacts(self._pool.driver_version, cuda, pcie_root=root)
        try:
            brand = await self._word(gpu, "nvmlDeviceGetBrand", _BRANDS)
            mode = await self._word(gpu, "nvmlDeviceGetAddressingMode", _ADDRESSING_MODES)
        except DriverError:
            return facts  # not kept, so it is asked again
        facts = replace(facts, brand="" if brand == _BRANDS[0] else brand, addressing_mode=mode)
        self._known[gpu.uuid] = facts
        return facts

    async def _word(self, gpu: Gpu, function: str, words: Sequence[str]) -> str:
        """The word for the number that the function returns; "" where the driver has none."""

        def word(device: GpuDevice) -> str:
            number = int(nvml.call(function, device.handle))
            return words[number] if 0 <= number < len(words) else ""

        try:
            what = f"calling {function}"
            return await self._pool.visit(gpu.index, word, what=what, deadline=_DEADLINE)
        except DriverError as error:
            if not is_unsupported(error):
                raise
            return ""


def pcie_root(sysfs: Path, gpu: Gpu) -> str:
    """The root of the GPU's part of the PCI bus, "" where the kernel does not say. Blocks."""
    address = pci_address(gpu.pci_bus_id)
    if address is None:
        return ""
    try:
        path = (sysfs / "bus/pci/devices" / address).resolve(strict=True)
    except OSError:
        return ""
    return next((part for part in path.parts if _PCIE_ROOT.fullmatch(part)), "")
