"""A simulated control daemon with clients, as the client watch and terminations meet it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nodeagent.mps.clients.watch import RunningDaemon
from nodeagent.mps.control import ControlClient
from nodeagent.mps.programs import Programs as MpsPrograms
from nodeagent.mps.shares import DaemonSpec
from nodeagent.plan.shares import WantedMps
from nodeagent.simulation.mps.installation import install
from nodeagent.simulation.mps.versions import VERSIONS
from tests.mps.plans import GPU, spec_of
from tests.simulation.mps.rig import CONTROL, Programs, Rig


@contextmanager
def installed_programs(version: str = "550") -> Iterator[Programs]:
    """In a folder that every user can reach."""
    folder = Path(tempfile.mkdtemp(prefix="mps-programs-", dir="/tmp"))
    try:
        folder.chmod(0o755)
        install(folder, version=version)
        yield Programs(folder, VERSIONS[version], real=False)
    finally:
        shutil.rmtree(folder)


def asking(rig: Rig) -> ControlClient:
    """The daemon's control client."""
    front_end = str(rig.programs.folder / CONTROL)
    programs = MpsPrograms(control=(front_end,), path=rig.environment["PATH"])
    return ControlClient(
        programs,
        pipe_directory=str(rig.pipes),
        log_directory=str(rig.logs),
        deadline=60.0,
    )


def start(rig: Rig, plan: WantedMps) -> DaemonSpec:
    """Start the daemon with the plan's ceiling."""
    rig.start()
    if plan.sharing.memory_ceiling is not None:
        rig.ask(f"set_default_device_pinned_mem_limit 0 {plan.sharing.memory_ceiling}M")
    rig.ask(f"set_default_active_thread_percentage {plan.sharing.thread_ceiling}")
    return spec_of(plan, pipe=str(rig.pipes))


def running(rig: Rig, plan: WantedMps, control: ControlClient, device: str = GPU) -> RunningDaemon:
    """As it is just now."""
    server = rig.server()
    pids = map(int, rig.ask(f"get_client_list {server}").split())
    spec = spec_of(plan, device, pipe=str(rig.pipes))
    return RunningDaemon(spec, control, None, tuple((server, pid) for pid in pids))
