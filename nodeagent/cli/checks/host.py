"""Preflight: the machine around the GPUs, as far as can be seen from it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import assert_never

from nodeagent.cli import event_loop
from nodeagent.cli.checks.findings import Finding, error, ok, warning
from nodeagent.errors import DocumentError
from nodeagent.plan.desired import PlanDocument
from nodeagent.reconcile.plan_update import NoPlan, PlanText, PlanUpdate, UnreadablePlan

# Programs that change MIG layouts by themselves, by the name of their executable.
_OTHER_OWNERS = {
    "nvidia-mig-manager": "systemctl disable --now nvidia-mig-manager, or in a cluster set the "
    "GPU operator's migManager.enabled=false",
    "nvidia-mig-parted": "let it finish; switch off what starts it",
    "gpu-kubelet-plugin": "do not let NVIDIA's DRA driver make MIG devices on this node",
}
_OTHER_UNITS = ("nvidia-mig-manager.service",)
_WANTED_BY = ("multi-user.target.wants", "nvidia-gpu-reset.target.wants")


Commands = Mapping[int, Sequence[str]]  # words by pid


def owner_findings(commands: Commands, root: Path = Path("/")) -> Iterator[Finding]:
    """Other programs that change this node's layouts; `root` is where /etc lies."""
    found = False
    running = {name: pid for pid, name in _programs(commands).items() if name in _OTHER_OWNERS}
    for name, pid in sorted(running.items()):
        found = True
        yield warning(
            "other owners", f"{name} is running (pid {pid}) and may undo plans", _OTHER_OWNERS[name]
        )
    for unit in _OTHER_UNITS:
        if any((root / "etc/systemd/system" / target / unit).exists() for target in _WANTED_BY):
            found = True
            yield warning(
                "other owners",
                f"{unit} is enabled and changes layouts at every boot",
                f"systemctl disable --now {unit}",
            )
    if not found:
        yield ok("other owners", "none is running on this machine")


def _programs(commands: Commands) -> dict[int, str]:
    return {pid: PurePosixPath(words[0]).name for pid, words in commands.items()}


def fabric_finding(commands: Commands, root: Path = Path("/")) -> Finding | None:
    """NVSwitch machines need Fabric Manager; None where there is no NVSwitch in `root`/dev."""
    if not any((root / "dev").glob("nvidia-nvswitch[0-9]*")):
        return None
    check = "fabric manager"
    if any(name.startswith("nv-fabric") for name in _programs(commands).values()):
        return ok(check, "running")
    return warning(
        check,
        "this machine has NVSwitches, but Fabric Manager is not running",
        "systemctl enable --now nvidia-fabricmanager, of the driver's exact version",
    )


def directory_finding(name: str, path: Path) -> Finding:
    """Whether the agent can write there, or make the directory."""
    nearest = next(p for p in (path, *path.parents) if p.exists())
    remedy = f"make {path} writable for this user, or set {name} to another place"
    if not nearest.is_dir():
        return error(name, f"{nearest} is no directory", remedy)
    if not os.access(nearest, os.W_OK | os.X_OK):
        return error(name, f"{path} cannot be written", remedy)
    return ok(name, f"{path} can be {'written' if nearest == path else 'made'}")


def plan_finding(path: Path, configuration: str | None) -> tuple[Finding, PlanDocument | None]:
    """Whether the plan file can be read and is a plan; whether it fits the node comes later.

    The file is read by the agent's own reader, so what is said here holds for the agent.
    """
    offer = file_offer(path, configuration)
    if isinstance(offer, NoPlan):
        remedy = "write one; nodeagent export is a start"
        return warning("plan", f"{path} does not exist", remedy), None
    return offer_finding(offer, str(path), "")


def offer_finding(
    offer: PlanUpdate, where: str, remedy: str
) -> tuple[Finding, PlanDocument | None]:
    """Whether what is asked for `where` is a plan; `remedy` is for when nothing is."""
    from nodeagent.documents.reading import read_document

    match offer:
        case NoPlan(reason):
            return warning("plan", reason, remedy), None
        case UnreadablePlan(problem):
            return error("plan", problem.message, problem.remedy), None
        case PlanText(text, configuration):
            try:
                document = read_document(text, configuration=configuration)
            except DocumentError as refusal:
                return error("plan", f"{where}: {refusal.message}", refusal.remedy), None
            return ok("plan", f"{where} is well-formed"), document
        case _ as never:
            assert_never(never)


def file_offer(path: Path, configuration: str | None) -> PlanUpdate:
    """What the agent's own reader of plan files makes of it."""
    from nodeagent.reconcile.plan_file import PlanFile

    offers: list[PlanUpdate] = []
    event_loop.run(PlanFile(path, offers.append, configuration=configuration).look())
    return offers[-1]


def lock_finding(path: Path) -> Finding:
    """Whether another program, such as an agent, holds the right to change this node's GPUs."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return ok("writer", "no other program changes GPUs now")
    except BlockingIOError:
        return ok("writer", f"an agent or apply is running (it holds {path})")
    except OSError as failure:
        return warning("writer", f"{path} cannot be opened: {failure.strerror}", "run as root")
    return ok("writer", "no other program changes GPUs now")
