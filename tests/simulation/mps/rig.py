"""Runs MPS programs, simulated or real, in a folder of their own, and ends them all."""

import fcntl
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self

from nodeagent.simulation.mps.installation import install
from nodeagent.simulation.mps.knobs import Knobs
from nodeagent.simulation.mps.versions import VERSIONS, Version
from tests.folders import executable, lasting_folder, new_folder
from tests.machine_load import stretched, wait_until

CONTROL = "nvidia-cuda-mps-control"
SERVER = "nvidia-cuda-mps-server"
DEVICE = "GPU-cb1213a3-d6a4-be7f-0000-000000000000"
ELSEWHERE = "/usr/local/bin:/usr/bin:/bin"

# Servers that never say anything to the daemon, for what the real daemon does without a GPU too.
STUBS = {
    "sleeping": "#!/bin/sh\nexec sleep 60\n",
    "exiting": "#!/bin/sh\nexit 3\n",
    # It ends once there is a file "over", or after a minute.
    "deaf": '#!/bin/sh\ntrap "" INT\n: > "$CUDA_MPS_LOG_DIRECTORY/deaf"\n'
    'for _ in $(seq 600); do [ -e "$CUDA_MPS_LOG_DIRECTORY/over" ] && exit; sleep 0.1; done\n',
}


class Programs(NamedTuple):
    """One installation: where it is, and which version it is or should be."""

    folder: Path
    version: Version
    real: bool


@cache
def programs_of(version: str) -> Path:
    """The stand-ins of a version, made once; removed when this process ends."""
    folder = lasting_folder("mps-programs-")
    install(folder, version=version)
    return folder


class Answer(NamedTuple):
    stdout: str
    stderr: str
    status: int


class Rig:
    """A daemon's folders and environment. Closing it ends every process that uses them."""

    def __init__(self, programs: Programs, *, server: str | None = None) -> None:
        self.programs = programs
        self.folder = new_folder("mps-")
        self.pipes, self.logs = self.folder / "pipe", self.folder / "log"
        path = [str(programs.folder), ELSEWHERE]
        if server is not None:
            path.insert(0, str(self._stub(server)))
        self.environment = {
            "PATH": ":".join(path),
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipes),
            "CUDA_MPS_LOG_DIRECTORY": str(self.logs),
            "CUDA_VISIBLE_DEVICES": DEVICE,
        }
        self._children: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """SIGKILL for all: no test may depend on an orderly end, and none may fail at its end."""
        for _ in range(3):  # a daemon may have started a server meanwhile
            for pid in self.processes():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for child in self._children:
                child.wait()
                for stream in (child.stdin, child.stdout, child.stderr):
                    if stream is not None:
                        with suppress(BrokenPipeError):
                            stream.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _stub(self, kind: str) -> Path:
        folder = self.folder / "stub"
        folder.mkdir()
        executable(folder / SERVER, STUBS[kind])
        return folder

    # --- running programs -------------------------------------------------------------------

    def run(
        self, *flags: str, stdin: str = "", user: int | None = None, timeout: float = 60.0
    ) -> Answer:
        done = subprocess.run(
            [CONTROL, *flags],
            input=stdin,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            user=user,
            group=user,
            extra_groups=() if user is not None else None,
            cwd="/",
            check=False,
            executable=str(self.programs.folder / CONTROL),
        )
        return Answer(done.stdout, done.stderr, done.returncode)

    def start(self, *flags: str, **environment: str) -> None:
        self.environment.update(environment)
        assert self.run("-d", *flags) == Answer("", "", 0)

    def _child(self, *flags: str, **pipes: Any) -> subprocess.Popen[str]:
        command = (str(self.programs.folder / CONTROL), *flags)
        child = subprocess.Popen(command, env=self.environment, text=True, **pipes)
        self._children.append(child)
        return child

    def foreground(self, *flags: str, wait: bool = True) -> subprocess.Popen[str]:
        child = self._child("-f", *flags, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if wait:
            wait_until(lambda: self.run(stdin="get_server_list").status == 0)
        return child

    @contextmanager
    def holding_front_end(self, *, wait: bool = True) -> Iterator[subprocess.Popen[str]]:
        seen = self.log().count("NEW UI")
        pipe = subprocess.PIPE
        front_end = self._child(stdin=pipe, stdout=pipe, stderr=pipe)
        if wait:
            wait_until(lambda: self.log().count("NEW UI") > seen)
        yield front_end
        if front_end.poll() is None:
            front_end.communicate(timeout=stretched(30))

    def type(self, front_end: subprocess.Popen[str], line: str) -> None:
        assert front_end.stdin is not None
        front_end.stdin.write(line)
        front_end.stdin.flush()

    def has_output(self, child: subprocess.Popen[str], within: float = 0.0) -> bool:
        """Whether something can be read from its standard output."""
        assert child.stdout is not None
        return bool(select.select([child.stdout], [], [], within)[0])

    def unread(self, child: subprocess.Popen[str]) -> int:
        """How many bytes of its standard input it has not read yet."""
        assert child.stdin is not None
        count = fcntl.ioctl(child.stdin, termios.FIONREAD, bytes(4))
        return int.from_bytes(count, sys.byteorder)

    def ask(self, *commands: str, user: int | None = None) -> str:
        answer = self.run(stdin="\n".join(commands), user=user)
        assert (answer.stderr, answer.status) == ("", 0)
        return answer.stdout

    # --- what is there ----------------------------------------------------------------------

    @property
    def knobs(self) -> Knobs:
        return Knobs(self.programs.folder, self.pipes)

    def log(self, name: str = "control") -> str:
        """The log without times and authors: the texts alone, a line each."""
        lines = (self.logs / f"{name}.log").read_text().splitlines()
        return "\n".join(line.partition("] ")[2] for line in lines)

    def server(self) -> int:
        wait_until(lambda: self.ask("get_server_list") != "")
        return int(self.ask("get_server_list"))

    def daemon(self) -> int:
        return next(pid for pid in self.processes() if os.getsid(pid) == pid)

    def processes(self) -> list[int]:
        """All that have this pipe directory in their environment, except front-ends of tests."""
        wanted, found = f"CUDA_MPS_PIPE_DIRECTORY={self.pipes}".encode(), []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found

    def modes(self) -> dict[str, str]:
        """Kind and permissions of everything in the pipe directory, as `ls` shows them."""
        return {path.name: stat.filemode(path.lstat().st_mode) for path in self.pipes.iterdir()}


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # the latter where it ends while it is read
        return True


def real_programs() -> Programs | None:
    """What is on PATH; its version is detected by what it does."""
    found = shutil.which(CONTROL)
    if found is None:
        return None
    folder = Path(found).parent
    with Rig(Programs(folder, VERSIONS["550"], real=True)) as rig:
        strict = "Cannot find" not in rig.run("-d", "-x").stderr
        rig.run("-d")
        status = "Unknown command" not in rig.ask("get_server_status")
        rig.run(stdin="quit")
    name = "535" if not status else "555" if strict else "550"
    return Programs(folder, VERSIONS[name], real=True)
