"""Preflight: the driver, and what it says of each GPU."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence

from nodeagent.cli.checks.findings import Finding, error, ok, warning
from nodeagent.errors import DriverError
from nodeagent.plan.observed import Access, Gpu, ObservedNode
from nodeagent.plan.remedies import reset_remedy, silent_remedy

_PATIENCE = 10.0  # seconds for nvidia-smi


def driver_findings(observed: ObservedNode | DriverError) -> Iterator[Finding]:
    """Whether the driver answers and what it has; the error in its place when it does not."""
    if isinstance(observed, DriverError):
        yield error("driver", observed.message, observed.remedy)
        return
    yield ok("driver", f"version {observed.driver_version or 'unknown'} answers")
    if not observed.gpus:
        yield error(
            "gpus",
            "the driver answers but has no GPU",
            "look at `lspci -d 10de:` and `dmesg | grep NVRM`; in a container, give it the GPUs",
        )
    for gpu in observed.gpus:
        yield _gpu_finding(gpu)


def _gpu_finding(gpu: Gpu) -> Finding:
    check, name = f"gpu {gpu.index}", gpu.name or gpu.uuid or "the GPU"
    if gpu.access is not Access.OK:
        remedy = silent_remedy(lost=gpu.access is Access.LOST)
        return error(check, f"{name} does not answer: {gpu.access_reason}", remedy)
    if gpu.mig is None:
        return warning(check, f"{name} has no MIG", "plans can name it only without a mig layout")
    if gpu.mig.current != gpu.mig.pending:
        word = "on" if gpu.mig.pending else "off"
        return warning(
            check,
            f"{name}: MIG mode goes {word} at the next GPU reset",
            f"while it is idle, {reset_remedy(gpu.pci_bus_id)}",
        )
    if not gpu.profiles:
        return warning(
            check,
            f"{name}: the driver does not list its MIG profiles",
            "switch MIG mode on first (mig: enabled), or run this as root",
        )
    return ok(check, f"{name} has MIG, {'on' if gpu.mig.current else 'off'}")


def permission_finding(*, simulated: bool) -> Finding:
    """Changing MIG takes root, or the capability files of a container."""
    check = "permission"
    if simulated or os.geteuid() == 0:
        return ok(check, "MIG may be changed" if simulated else "running as root")
    config = "/proc/driver/nvidia/capabilities/mig/config"
    if os.access(config, os.R_OK):
        return ok(check, f"not root, but {config} may be read")
    return error(
        check,
        f"user {os.geteuid()} may not change MIG",
        "run as root, or in a container with the MIG config capability",
    )


def nvidia_smi_findings(
    observed: ObservedNode, nvidia_smi: Sequence[str], *, reset_allowed: bool
) -> Iterator[Finding]:
    """nvidia-smi, which resets GPUs; nothing where no GPU's mode change needs that."""
    if not any(gpu.mode_change_needs_reset for gpu in observed.gpus):
        return
    check = "nvidia-smi"
    path = shutil.which(nvidia_smi[0])
    if path is not None:
        yield ok(check, f"found as {path}")
        return
    found = f"{nvidia_smi[0]} is not found; these GPUs change their MIG mode only by a reset"
    remedy = "install nvidia-smi, or set nvidia_smi to its path"
    yield error(check, found, remedy) if reset_allowed else warning(check, found, remedy)


def persistence_findings(observed: ObservedNode, nvidia_smi: Sequence[str]) -> Iterator[Finding]:
    """From Hopper on, MIG mode is lost when the driver unloads, which persistence mode prevents.

    Nothing where no GPU is concerned, or where nvidia-smi does not say.
    """
    concerned = {
        gpu.uuid: gpu.index for gpu in observed.gpus if gpu.mig and not gpu.mode_change_needs_reset
    }
    modes = _persistence_modes(nvidia_smi) if concerned else {}
    known = {concerned[uuid]: on for uuid, on in modes.items() if uuid in concerned}
    off = sorted(index for index, on in known.items() if not on)
    if off:
        yield warning(
            "persistence mode",
            f"off on GPU {', '.join(map(str, off))}: MIG mode is lost whenever the driver unloads",
            "systemctl enable --now nvidia-persistenced, or nvidia-smi -pm 1",
        )
    elif known:
        yield ok("persistence mode", "on where MIG mode needs it")


def _persistence_modes(nvidia_smi: Sequence[str]) -> dict[str, bool]:
    query = ["--query-gpu=uuid,persistence_mode", "--format=csv,noheader"]
    try:
        answer = subprocess.run(
            [*nvidia_smi, *query], capture_output=True, text=True, timeout=_PATIENCE, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    rows = (line.partition(",") for line in answer.splitlines())
    return {uuid.strip(): mode.strip() == "Enabled" for uuid, _, mode in rows}
