"""Preflight: the machine around the GPUs, as far as can be seen from it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from nodeagent.cli import event_loop
from nodeagent.cli.checks.findings import Finding, error, ok, warning
from nodeagent.settings import KubeletSettings

# Programs that change MIG layouts by themselves, by the name of their executable.
_OTHER_OWNERS = {
    "nvidia-mig-manager": "systemctl disable --now nvidia-mig-manager, or in a cluster set the "
    "GPU operator's migManager.enabled=false",
    "nvidia-mig-parted": "wait until it ends; disable what starts it",
    "gpu-kubelet-plugin": "disable DynamicMIG of NVIDIA's DRA driver on this node",
}
_OTHER_UNIT = "nvidia-mig-manager.service"
_WANTED_BY = ("multi-user.target.wants", "nvidia-gpu-reset.target.wants")
Commands = Mapping[int, Sequence[str]]  # words by pid


def owner_findings(commands: Commands, root: Path = Path("/")) -> list[Finding]:
    """Other programs that change this node's layouts; `root` is where /etc lies."""
    check = "other owners"
    running = {name: pid for pid, name in _programs(commands).items() if name in _OTHER_OWNERS}
    found = [
        warning(check, f"{name} is running (pid {pid}) and may undo plans", _OTHER_OWNERS[name])
        for name, pid in sorted(running.items())
    ]
    enabled = (root / "etc/systemd/system" / target / _OTHER_UNIT for target in _WANTED_BY)
    if any(link.exists() for link in enabled):
        message = f"{_OTHER_UNIT} is enabled and changes layouts at every boot"
        found.append(warning(check, message, f"systemctl disable --now {_OTHER_UNIT}"))
    return found or [ok(check, "none is running on this machine")]


def _programs(commands: Commands) -> dict[int, str]:
    return {pid: PurePosixPath(words[0]).name for pid, words in commands.items()}


def fabric_findings(commands: Commands, root: Path = Path("/")) -> Iterator[Finding]:
    """NVSwitch machines need Fabric Manager; nothing where there is no NVSwitch in `root`/dev."""
    check = "fabric manager"
    if not any((root / "dev").glob("nvidia-nvswitch[0-9]*")):
        return
    if any(name.startswith("nv-fabric") for name in _programs(commands).values()):
        yield ok(check, "running")
    else:
        yield warning(
            check,
            "this machine has NVSwitches, but Fabric Manager is not running",
            "systemctl enable --now nvidia-fabricmanager, of the driver's exact version",
        )


def is_visible(path: Path) -> bool:
    """Whether it is there and may be looked at; `Path.exists` raises PermissionError."""
    return os.path.exists(path)  # noqa: PTH110


def directory_finding(name: str, path: Path) -> Finding:
    """Whether the agent can write there, or make the directory."""
    nearest = next(p for p in (path, *path.parents) if is_visible(p))
    remedy = f"run `install -d -o {os.geteuid()} {path}` as root, or set {name} to another place"
    if not nearest.is_dir():
        return error(name, f"{nearest} is not a directory", remedy)
    if not os.access(nearest, os.W_OK | os.X_OK):
        return error(name, f"{path} cannot be written", remedy)
    return ok(name, f"{path} can be {'written' if nearest == path else 'made'}")


def lock_finding(path: Path) -> Finding:
    """Whether another program, such as an agent, holds the right to change this node's GPUs."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return ok("writer", "no other program changes GPUs now")
    except BlockingIOError:
        return ok("writer", f"an agent or apply is running (it holds {path})")
    except OSError as failure:
        return warning("writer", f"{path} cannot be opened: {failure.strerror}", "run as root")
    return ok("writer", "no other program changes GPUs now")


def kubelet_findings(
    settings: KubeletSettings, *, in_cluster: bool, simulated: bool
) -> Iterator[Finding]:
    """Whether the kubelet reports who holds devices; nothing where the agent would not ask it."""
    unasked = simulated or not (in_cluster or is_visible(settings.socket.parent))
    if settings.use == "never" or (settings.use == "auto" and unasked):
        return
    from nodeagent.cluster.kubelet.pod_resources import KubeletError, PodResourcesClient

    client = PodResourcesClient(settings.socket, deadline=settings.deadline)
    try:
        held = event_loop.run(client.allocations())
    except KubeletError as failure:
        message = f"{failure.message}; so every device counts as in use"
        yield error(
            "kubelet", message, failure.remedy or "read the kubelet's log: `journalctl -u kubelet`"
        )
    else:
        holdings = {(one.pod, one.container, one.resource) for one in held if one.resource}
        yield ok("kubelet", f"answers; {len(holdings)} devices are allocated")
