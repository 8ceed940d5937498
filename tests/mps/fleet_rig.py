"""A fleet over stand-ins, in a folder that every user can reach; all it started ends with it."""

import os
import random
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Self

import psutil

from nodeagent.mps.commands import get_memory_limit, get_threads
from nodeagent.mps.context import Check, MpsContext
from nodeagent.mps.files.directories import pipe_directory
from nodeagent.mps.files.sockets import BACK
from nodeagent.mps.fleet import Fleet
from nodeagent.mps.launch.child import ChildLauncher
from nodeagent.mps.launch.launcher import Launcher
from nodeagent.mps.lifecycle.model import Report, ReportSubject
from nodeagent.mps.processes import CONTROL, SERVER, MpsProcess, mps_process
from nodeagent.mps.programs import Programs
from nodeagent.plan.shares import Account, Share, Sharing, WantedMps
from nodeagent.settings import MpsSettings
from nodeagent.simulation.mps.clients import SimulatedClient
from nodeagent.simulation.mps.installation import shared_interpreter
from nodeagent.simulation.mps.knobs import Knobs
from nodeagent.structs import replace
from nodeagent.views.shapes import MpsDaemon
from tests.folders import executable, new_folder
from tests.machine_load import until
from tests.processes.real import running
from tests.simulation.mps.rig import programs_of

GPU = "GPU-0a1b2c3d-0000-1111-2222-333344445555"
OTHER_GPU = "GPU-0a1b2c3d-0000-1111-2222-333344446666"
IS_ROOT = os.geteuid() == 0
US = 1000 if IS_ROOT else os.geteuid()

POLICY = MpsSettings(
    start_deadline=30.0,
    limit_deadline=3.0,
    initialize_deadline=1.0,
    quit_deadline=1.5,
    kill_deadline=10.0,
    steady=0.0,  # every daemon that was Ready has run long enough
    first_delay=0.05,
    longest_delay=30.0,
    most_failures=3,
    most_silences=2,
    most_attempts=2,
    answer_deadline=15.0,  # for daemons that are well: a busy machine makes none of them silent
    check_interval=0.5,
    grace=0.5,
    log_size=1,
)
SERVED = 0.3  # seconds between two questions to a daemon with a server
IMPATIENT = 1.0  # seconds for an answer of a daemon that is not well


def wanted(
    memory: int | None = 4096, threads: float | None = 50.0, *, uid: int = US, count: int = 2
) -> WantedMps:
    gid = uid if IS_ROOT else os.getegid()
    sharing = Sharing((Share("small", count, memory, threads),), "report")
    return WantedMps(sharing, Account(uid, gid))


class FleetRig:
    """Programs, folders and what fleets reported. Closing kills every process of these folders."""

    def __init__(self, version: str = "550", *, programs: Path | None = None) -> None:
        self.folder = new_folder("fleet-")
        self.run_dir = self.folder / "run"
        self.bin = programs or programs_of(version)
        path = f"{self.bin}:/usr/local/bin:/usr/bin:/bin"
        self.programs = Programs(control=(str(self.bin / CONTROL),), path=path)
        self.reports: list[tuple[str, Report]] = []
        self.changes = 0
        self.differences: tuple[str, ...] = ()
        self.seed = random.Random(1)
        self.impatient = False  # with daemons that do not answer
        self.launcher_of: Callable[[Programs], Launcher] = ChildLauncher

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for _ in range(3):  # a daemon may have started a server meanwhile
            for process in self.processes():
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
                with suppress(ChildProcessError):
                    os.waitpid(process.pid, 0)
        _reap_daemons()
        shutil.rmtree(self.folder, ignore_errors=True)

    def have_servers_sleep(self) -> None:
        """Servers of real daemons, which without a GPU would end at once."""
        stub = self.folder / "stub"
        stub.mkdir()
        executable(stub / SERVER, "#!/bin/sh\nsleep 60\n")  # the shell stays, and has the name
        self.programs = replace(self.programs, path=f"{stub}:{self.programs.path}")

    # --- fleets -------------------------------------------------------------------------------

    @asynccontextmanager
    async def fleet(
        self, policy: MpsSettings = POLICY, *, served: float = SERVED, private_shm: bool = False
    ) -> AsyncIterator[Fleet]:
        """One agent's life; what is reported is noted in `reports`."""
        launcher = self.launcher_of(self.programs)
        context = self.context(
            policy,
            launcher,
            check=lambda _: self.differences,
            report=lambda *heard: self.reports.append(heard),
            served=served,
        )
        async with Fleet(replace(context, private_shm=private_shm)) as made:
            yield made

    @asynccontextmanager
    async def started(
        self, plan: WantedMps | None = None, policy: MpsSettings = POLICY, *, served: float = SERVED
    ) -> AsyncIterator[Fleet]:
        """One with a daemon for the GPU."""
        async with self.fleet(policy, served=served) as fleet:
            await fleet.start(GPU, plan or wanted())
            yield fleet

    @asynccontextmanager
    async def adopted(self, pid: int) -> AsyncIterator[Fleet]:
        """One that has taken over the GPU's daemon with this pid."""
        async with self.fleet() as fleet:
            assert (await ready(fleet)).pid == pid
            yield fleet

    async def left_daemon(self, plan: WantedMps | None = None) -> int:
        """The pid of a daemon that was Ready when its agent went."""
        async with self.started(plan) as fleet:
            pid = status(fleet).pid
        assert pid is not None
        return pid

    def context(
        self,
        policy: MpsSettings,
        launcher: Launcher,
        *,
        check: Check,
        report: Callable[[str, Report], None],
        served: float = SERVED,
    ) -> MpsContext:
        if self.impatient:
            policy = replace(policy, answer_deadline=IMPATIENT)
        return MpsContext(
            run_dir=self.run_dir,
            programs=self.programs,
            launcher=launcher,
            settings=policy,
            check=check,
            report=report,
            changed=self._changed,
            jitter=self.seed.random,
            served_interval=served,
            start_timeout=6.0 if self.impatient else 60.0,
        )

    def _changed(self) -> None:
        self.changes += 1

    def said(self, subject: ReportSubject, device: str = GPU) -> list[str]:
        return [r.message for d, r in self.reports if (d, r.subject) == (device, subject)]

    async def reported(
        self, subject: ReportSubject, device: str = GPU, within: float = 60.0
    ) -> str:
        """What is reported of it, once it is, but that this machine is too busy for an answer."""
        await until(lambda: bool(self._blamed(subject, device)), within)
        return self._blamed(subject, device)[-1]

    def _blamed(self, subject: ReportSubject, device: str) -> list[str]:
        return [said for said in self.said(subject, device) if "waits for a processor" not in said]

    # --- what is there ------------------------------------------------------------------------

    def pipes(self, device: str = GPU) -> Path:
        return Path(pipe_directory(self.run_dir, device))

    def back(self, device: str = GPU) -> Path:
        return self.pipes(device).with_name(BACK)

    def log(self, device: str = GPU) -> Path:
        return self.pipes(device).with_name("log") / "daemon.log"

    def knobs(self, device: str | None = GPU) -> Knobs:
        return Knobs(self.bin, self.pipes(device) if device else None)

    def client(
        self, device: str = GPU, *, uid: int = US, environment: Mapping[str, str] | None = None
    ) -> SimulatedClient:
        return SimulatedClient(
            self.pipes(device), uid=uid, environment=environment, python=shared_interpreter()
        )

    @contextmanager
    def served(self, device: str = GPU, *, uid: int = US) -> Iterator[SimulatedClient]:
        with self.client(device, uid=uid) as client:
            client.wait_until_accepted()
            yield client

    def processes(self, program: str | None = None, device: str | None = None) -> list[MpsProcess]:
        """Daemons and servers of these folders, or some of them; front-ends for a moment too."""
        place = str(self.pipes(device)) if device else str(self.folder)
        pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
        found = (mps_process(pid) for pid in pids)
        return [
            one
            for one in found
            if one and one.pipe_directory.startswith(place) and program in {None, one.program}
        ]

    def lines(self, subject: ReportSubject) -> str:
        """Of the log, as the last such report shows them."""
        return " / ".join([r for _, r in self.reports if r.subject == subject][-1].lines)

    def servers(self, device: str = GPU) -> list[int]:
        return [one.pid for one in self.processes(SERVER, device)]


def called_like(
    program: str, pipes: str | Path, *arguments: str, uid: int | None = None
) -> AbstractContextManager[int]:
    """A process with the name and the pipe directory of a program of MPS, which it is not."""
    environment = {"CUDA_MPS_PIPE_DIRECTORY": str(pipes)}
    return running("sh", program, *arguments, environment=environment, uid=uid)


def _reap_daemons() -> None:
    """Those that another fleet of this very process has started, and whose end it did not see."""
    for child in psutil.Process().children():
        with suppress(psutil.Error, OSError):
            if child.name().startswith("nvidia-cuda-mps"):
                os.waitpid(child.pid, os.WNOHANG)


def status(fleet: Fleet, device: str = GPU) -> MpsDaemon:
    return next(state for state in fleet.statuses() if state.device == device)


async def ready(fleet: Fleet, device: str = GPU, *, within: float = 60.0) -> MpsDaemon:
    await until(lambda: status(fleet, device).is_ready, within)
    return status(fleet, device)


async def limits(fleet: Fleet, device: str = GPU) -> tuple[str, float]:
    """The memory and thread limits in force, as the daemon itself reports them."""
    [daemon] = [running for running in fleet.running() if running.device == device]
    memory, threads = await daemon.control.ask_each(get_memory_limit(), get_threads())
    return str(memory), threads


def quick(**changes: float) -> MpsSettings:
    return replace(POLICY, **changes)  # type: ignore[arg-type]  # counts are given as they are
