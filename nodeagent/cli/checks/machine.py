"""Preflight: the driver and each GPU, and the machine around them, as far as can be seen."""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from nodeagent.catalogue import section
from nodeagent.cli import event_loop
from nodeagent.cli.checks import PreflightFinding, error, ok, warning
from nodeagent.errors import DriverError, NodeagentError
from nodeagent.plan.mig import unlisted
from nodeagent.plan.observed import Gpu, ObservedNode
from nodeagent.plan.remedies import reset_remedy, silent_remedy
from nodeagent.programs import require_own, run_program
from nodeagent.settings import KubeletSettings

if TYPE_CHECKING:
    from nodeagent.cluster.kubelet.allocations import Holding

_SMI_TIMEOUT = 10.0  # seconds for nvidia-smi
_KUBELET_LOG = "read the kubelet's log: `journalctl -u kubelet`"


def driver_findings(observed: ObservedNode | DriverError) -> Iterator[PreflightFinding]:
    """Whether the driver and each GPU answer; `observed` is the error where the driver does not."""
    if isinstance(observed, DriverError):
        yield error("driver", observed)
        return
    yield ok("driver", f"version {observed.driver_version or 'unknown'} answers")
    if not observed.gpus:
        yield error("gpus", NodeagentError.of("noGpus"))
    for gpu in observed.gpus:
        yield _gpu_finding(gpu)


def _gpu_finding(gpu: Gpu) -> PreflightFinding:
    check, name = f"gpu {gpu.index}", gpu.name or gpu.uuid or "the GPU"
    if not gpu.answers:
        mend = silent_remedy(gpu)
        why = gpu.access_reason
        return error(check, NodeagentError.of("gpuUnanswered", gpu=name, why=why, mend=mend))
    if gpu.mig is None:
        return warning(check, NodeagentError.of("gpuWithoutMig", gpu=name))
    if gpu.mig.current != gpu.mig.pending:
        word = "on" if gpu.mig.pending else "off"
        reset = reset_remedy(gpu)
        return warning(check, NodeagentError.of("modePending", gpu=name, mode=word, reset=reset))
    if gpu.unlisted:
        problem = unlisted(gpu)
        return warning(check, NodeagentError(f"{name}: {problem.message}"), problem.remedy)
    return ok(check, f"{name} has MIG, {'on' if gpu.mig.current else 'off'}")


def permission_finding(*, simulated: bool) -> PreflightFinding:
    """Changing MIG takes root, or the capability files of a container."""
    check = "permission"
    if simulated or os.geteuid() == 0:
        return ok(check, "MIG may be changed" if simulated else "running as root")
    config = "/proc/driver/nvidia/capabilities/mig/config"
    if os.access(config, os.R_OK):
        return ok(check, f"not root, but {config} may be read")
    return error(check, NodeagentError.of("migNotAllowed", user=os.geteuid()))


def own_program_findings(command: Sequence[str], path: str) -> Iterator[PreflightFinding]:
    """Whether a command of the settings is not run because other users could replace its files.
    `path` is the agent's PATH, here and below: that of who asks may find other programs.
    """
    try:
        require_own(command, path)
    except OSError as found:
        why = NodeagentError.of("notOwn", command=shlex.join(command), why=found.strerror)
        yield error("programs", why)


def nvidia_smi_findings(
    observed: ObservedNode, nvidia_smi: Sequence[str], path: str, *, reset_allowed: bool
) -> Iterator[PreflightFinding]:
    """Whether there is nvidia-smi, which resets GPUs; no finding where no GPU's mode change needs a
    reset, or none can be reset here.
    """
    if not any(gpu.mode_change_needs_reset and not gpu.no_reset for gpu in observed.gpus):
        return
    check = "nvidia-smi"
    if found_as := shutil.which(nvidia_smi[0], path=path):
        yield ok(check, f"found as {found_as}")
        return
    found = NodeagentError.of("noNvidiaSmi", program=nvidia_smi[0])
    yield error(check, found) if reset_allowed else warning(check, found)


def persistence_findings(
    observed: ObservedNode, nvidia_smi: Sequence[str], path: str
) -> Iterator[PreflightFinding]:
    """Persistence mode, without which Hopper and later lose MIG mode when the driver unloads.

    Nothing where no GPU is concerned, or where nvidia-smi does not say.
    """
    concerned = {
        gpu.uuid: gpu.index for gpu in observed.gpus if gpu.mig and not gpu.mode_change_needs_reset
    }
    modes = _persistence_modes(nvidia_smi, path) if concerned else {}
    known = {concerned[uuid]: on for uuid, on in modes.items() if uuid in concerned}
    off = sorted(index for index, on in known.items() if not on)
    if off:
        gpus = ", ".join(map(str, off))
        yield warning("persistence mode", NodeagentError.of("persistenceOff", gpus=gpus))
    elif known:
        yield ok("persistence mode", "on where MIG mode needs it")


def _persistence_modes(nvidia_smi: Sequence[str], path: str) -> dict[str, bool]:
    query = ["--query-gpu=uuid,persistence_mode", "--format=csv,noheader"]
    try:
        status, said, _ = event_loop.run(
            run_program([*nvidia_smi, *query], os.environ | {"PATH": path}, deadline=_SMI_TIMEOUT)
        )
    except OSError:  # late, too
        return {}
    rows = (line.partition(",") for line in said.splitlines() if not status)
    return {uuid.strip(): mode.strip() == "Enabled" for uuid, _, mode in rows}


_OTHER_UNIT = "nvidia-mig-manager.service"
_WANTED_BY = ("multi-user.target.wants", "nvidia-gpu-reset.target.wants")
Commands = Mapping[int, Sequence[str]]  # command lines by pid


def owner_findings(commands: Commands, root: Path = Path("/")) -> list[PreflightFinding]:
    """Other programs that change this node's layouts; `root` is where /etc lies."""
    check = "other owners"
    managers = section("managerProgram")
    running = {name: pid for pid, name in _programs(commands).items() if name in managers}
    found = [
        warning(check, NodeagentError.of("ownerRuns", name=name, pid=pid, mend=managers[name]))
        for name, pid in sorted(running.items())
    ]
    enabled = (root / "etc/systemd/system" / target / _OTHER_UNIT for target in _WANTED_BY)
    if any(link.exists() for link in enabled):
        found.append(warning(check, NodeagentError.of("ownerEnabled", unit=_OTHER_UNIT)))
    return found or [ok(check, "none is running on this machine")]


def _programs(commands: Commands) -> dict[int, str]:
    return {pid: PurePosixPath(words[0]).name for pid, words in commands.items()}


def fabric_findings(commands: Commands, root: Path = Path("/")) -> Iterator[PreflightFinding]:
    """NVSwitch machines need Fabric Manager; nothing where there is no NVSwitch in `root`/dev."""
    check = "fabric manager"
    if not any((root / "dev").glob("nvidia-nvswitch[0-9]*")):
        return
    if any(name.startswith("nv-fabric") for name in _programs(commands).values()):
        yield ok(check, "running")
    else:
        yield warning(check, NodeagentError.of("fabricManagerMissing"))


def is_visible(path: Path) -> bool:
    """Whether the path exists and may be looked at; `Path.exists` raises PermissionError."""
    return os.path.exists(path)  # noqa: PTH110


def directory_finding(name: str, path: Path, *, as_agent: bool = True) -> PreflightFinding:
    """Whether the agent can write the directory, or make it; `as_agent`: it may be this user."""
    nearest = next(p for p in (path, *path.parents) if is_visible(p))
    message = f"{path} cannot be written"
    if not nearest.is_dir():
        message, remedy = f"{nearest} is not a directory", "move it away"
    elif os.access(nearest, os.W_OK | os.X_OK):
        return ok(name, f"{path} can be {'written' if nearest == path else 'made'}")
    elif os.geteuid() == 0:
        remedy = "mount its file system writable"
    elif as_agent:
        remedy = f"run `install -d -o {os.geteuid()} {path}` as root"
    else:  # root's agent must not keep files in a directory of this user
        remedy = "run this as root"
    return error(name, NodeagentError(message), f"{remedy}, or set {name} to another place")


def lock_finding(path: Path) -> PreflightFinding:
    """Whether another program, such as an agent, holds the right to change this node's GPUs."""
    try:
        if path.is_symlink() or path.is_fifo():
            why = "is no plain file"
            return warning("writer", NodeagentError.of("lockUnusable", path=path, why=why))
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return ok("writer", "no other program changes GPUs now")
    except BlockingIOError:
        return ok("writer", f"an agent or apply is running (it holds {path})")
    except OSError as failure:
        why = f"cannot be locked: {failure.strerror}"
        return warning("writer", NodeagentError.of("lockUnusable", path=path, why=why))
    return ok("writer", "no other program changes GPUs now")


def kubelet_findings(
    settings: KubeletSettings, *, in_cluster: bool, simulated: bool
) -> Iterator[PreflightFinding]:
    """Whether the kubelet reports who holds devices; nothing where the agent would not ask it."""
    needless = simulated or not (in_cluster or is_visible(settings.socket.parent))
    if settings.use == "never" or (settings.use == "auto" and needless):
        return
    from nodeagent.cluster.kubelet.pod_resources import KubeletError, PodResourcesClient

    async def ask() -> Sequence[Holding]:
        client = PodResourcesClient(settings.socket, deadline=settings.deadline)
        try:
            return await client.allocations()
        finally:
            await client.close()

    try:
        held = event_loop.run(ask())
    except KubeletError as failure:
        found = NodeagentError.of("kubeletUnanswered", why=failure.message)
        yield error("kubelet", found, failure.remedy or _KUBELET_LOG)
    else:
        holdings = {(one.pod, one.container, one.resource) for one in held if one.resource}
        yield ok("kubelet", f"answers; {len(holdings)} devices are allocated")
