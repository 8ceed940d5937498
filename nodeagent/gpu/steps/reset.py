"""Resets a GPU with nvidia-smi, since NVML has no such call."""

from __future__ import annotations

from collections.abc import Sequence

from nodeagent.gpu.nvidia_smi import run_nvidia_smi


async def reset_gpu(nvidia_smi: Sequence[str], pci_bus_id: str, *, deadline: float) -> None:
    """Run `nvidia-smi --gpu-reset -i ADDRESS` to its end, at most `deadline` seconds.

    `nvidia_smi` is the program with leading arguments, if any. It must not be run while this
    process has NVML initialised: the driver resets only a GPU that nobody holds. Raises
    DriverError with what the program said; a program that is late is ended.
    """
    ended = await run_nvidia_smi(nvidia_smi, ["--gpu-reset", "-i", pci_bus_id], deadline=deadline)
    if ended.status != 0:
        raise ended.failed(
            "ResetFailed",
            remedy="end what holds the GPU (monitoring agents and display servers too), or reboot",
        )
