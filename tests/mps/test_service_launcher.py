import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nodeagent.mps.launch.launcher import DaemonProcess, StartError
from nodeagent.mps.launch.service import ServiceLauncher, unit_of
from nodeagent.mps.lifecycle.model import ReportSubject
from nodeagent.mps.processes import CONTROL, mps_process, processes_of
from nodeagent.mps.programs import Programs
from nodeagent.mps.shares import DaemonSpec
from nodeagent.structs import replace
from tests.folders import executable
from tests.machine_load import until
from tests.mps.conftest import PYTHON, as_root, flag, seen, spec_for
from tests.mps.fleet_rig import GPU, FleetRig
from tests.mps.plans import with_account

# Stand-ins for systemd-run, systemctl and nsenter: they do what they are asked, without a systemd.
# Units are files in their folder. What a service is started as, is really done: user, groups,
# environment, log.
_SHARED = """#!{python} -IS
import json, os, sys, time
folder = os.path.dirname(os.path.realpath(__file__))

def note(*call):
    with open(folder + "/calls", "a") as calls:
        calls.write(json.dumps(call) + "\\n")

def path(unit):
    return folder + "/" + unit + ".json"

def write(unit, **state):
    new = path(unit) + ".%d" % os.getpid()
    with open(new, "w") as file:
        json.dump(state, file)
    os.rename(new, path(unit))

def read(unit):
    try:
        with open(path(unit)) as file:
            return json.load(file)
    except OSError:
        return dict(LoadState="not-found", ActiveState="inactive", MainPID=0, Result="success",
                    ExecMainCode=0, ExecMainStatus=0)
"""

_SYSTEMD_RUN = """
note("systemd-run", *sys.argv[1:])
if os.path.exists(folder + "/hang"):
    time.sleep(60)
separator = sys.argv.index("--")
command, options = sys.argv[separator + 1:], {}
for option in sys.argv[1:separator]:
    name, _, value = option.partition("=")
    options.setdefault(name, []).append(value)
[unit] = options["--unit"]
properties = dict(text.split("=", 1) for text in options["--property"])
environment = dict(text.split("=", 1) for text in options["--setenv"])
if read(unit)["LoadState"] == "loaded":
    sys.exit("Failed to start transient service unit: Unit %s was already loaded." % unit)
reader, writer = os.pipe()  # closed when the program is loaded, as with --service-type=exec

def service():
    log = os.open(properties["StandardOutput"].removeprefix("append:"), os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.umask(int(properties["UMask"], 8))
    os.chdir(properties["WorkingDirectory"])
    if os.geteuid() == 0:
        os.setgroups([int(n) for n in properties.get("SupplementaryGroups", "").split()])
        os.setgid(int(properties["Group"]))
        os.setuid(int(properties["User"]))
    os.environ["PATH"] = environment["PATH"]
    os.execvpe(command[0], command, environment)

if os.fork() == 0:  # what systemd would be: it waits, and knows how the service ended
    os.setsid()
    for descriptor in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
    os.close(reader)
    pid = os.fork()
    if pid == 0:
        os.setsid()
        try:
            service()
        except OSError:
            os._exit(203)
    write(unit, LoadState="loaded", ActiveState="active", MainPID=pid, Result="success",
          ExecMainCode=0, ExecMainStatus=0)
    os.close(writer)
    _, status = os.waitpid(pid, 0)
    code, status = (2, status) if os.WIFSIGNALED(status) else (1, os.WEXITSTATUS(status))
    if (code, status) in ((1, 0), (2, 15)):
        os.unlink(path(unit))
    else:
        write(unit, LoadState="loaded", ActiveState="failed", MainPID=0,
              Result="signal" if code == 2 else "exit-code", ExecMainCode=code,
              ExecMainStatus=status)
    os._exit(0)
os.close(writer)
os.read(reader, 1)
for _ in range(20):  # the process that waits for the service may still be writing how it ended
    if read(unit)["ExecMainStatus"] == 203:
        print("Job for %s failed because the control process exited with error code." % unit,
              file=sys.stderr)
        print("See ...", file=sys.stderr)
        sys.exit(1)
    time.sleep(0.005)
"""

_SYSTEMCTL = """
note("systemctl", *sys.argv[1:])
match sys.argv[1:]:
    case ["show", wanted, unit]:
        state = read(unit)
        if state["MainPID"] and os.path.exists(folder + "/fail_once"):
            os.unlink(folder + "/fail_once")
            sys.exit("Failed to get properties: Connection timed out")
        for name in wanted.removeprefix("-p").split(","):
            print("%s=%s" % (name, state[name]))
    case ["reset-failed", unit]:
        if read(unit)["ActiveState"] == "failed":
            os.unlink(path(unit))
    case ["stop", "--no-block", unit]:
        if read(unit)["MainPID"]:
            os.kill(read(unit)["MainPID"], 15)
    case other:
        sys.exit("Unknown command verb %s" % other)
"""

_NSENTER = """
note("nsenter", *sys.argv[1:])
assert sys.argv[1:5] == ["--target", "1", "--mount", "--"], sys.argv
try:
    os.execvp(sys.argv[5], sys.argv[5:])
except OSError as error:
    sys.exit("nsenter: failed to execute %s: %s" % (sys.argv[5], error.strerror))
"""


class Systemd:
    """Its programs, beside those of MPS, first on PATH; and a daemon to start by them."""

    def __init__(self, folder: Path, programs: Programs, spec: DaemonSpec) -> None:
        self.folder, self.programs, self.spec = folder, programs, spec
        stand_ins = {"systemd-run": _SYSTEMD_RUN, "systemctl": _SYSTEMCTL, "nsenter": _NSENTER}
        for name, text in stand_ins.items():
            executable(folder / name, _SHARED.format(python=PYTHON) + text)

    def calls(self, program: str = "") -> list[list[str]]:
        lines = (self.folder / "calls").read_text().splitlines()
        return [call for call in map(json.loads, lines) if program in {"", call[0]}]

    def turn(self, unit: str, **state: Any) -> None:
        known = {"LoadState": "loaded", "MainPID": 0, "Result": "success"}
        codes = {"ExecMainCode": 1, "ExecMainStatus": 0}
        (self.folder / f"{unit}.json").write_text(json.dumps({**known, **codes, **state}))

    def units(self) -> list[str]:
        return [path.stem for path in self.folder.glob("*.service.json")]

    async def launch(self, *, host: bool = False, deadline: float = 60.0) -> DaemonProcess:
        launcher = ServiceLauncher(
            self.programs, host=host, deadline=deadline, find_flag=flag("-M")
        )
        return await launcher.launch(self.spec)

    @asynccontextmanager
    async def running(self, *, host: bool = False) -> AsyncIterator[DaemonProcess]:
        """The daemon, once it has noted what it was given; killed in the end."""
        process = await self.launch(host=host)
        try:
            await until((Path(self.spec.log_directory) / "seen").exists)
            yield process
        finally:
            process.kill()
            await process.wait()


UNIT = f"nodeagent-mps-{GPU}.service"


@pytest.fixture
def systemd(short: Path, programs: Programs, spec: DaemonSpec) -> Systemd:
    return Systemd(short, programs, spec)


@as_root
async def test_run_as_the_plans_user(short: Path, systemd: Systemd) -> None:
    (short / "own").mkdir()
    spec = with_account(spec_for(short / "own", 1000, 100), groups=(44, 109))
    systemd.spec = spec
    systemd.programs = replace(systemd.programs, library_path="/opt/cuda")
    async with systemd.running() as process:
        assert process.identity == mps_process(process.pid)
        assert (process.identity.uid, process.identity.program) == (1000, CONTROL)
        found = seen(spec)
        assert (found["uid"], found["gid"], found["groups"]) == (1000, 100, [44, 109])
        given = {
            "CUDA_MPS_PIPE_DIRECTORY": spec.pipe_directory,
            "CUDA_VISIBLE_DEVICES": GPU,
            "LD_LIBRARY_PATH": "/opt/cuda",
        }
        assert found["environment"].items() >= given.items()
        assert found["arguments"] == ["-f"]
        said = Path(spec.log_directory) / "daemon.log"
        assert await asyncio.to_thread(said.read_text) == "first line\nlast line\n"


async def test_what_systemd_is_asked_for(systemd: Systemd) -> None:
    systemd.spec = replace(with_account(systemd.spec, any_user=True), private_shm=True)
    async with systemd.running():
        [call] = systemd.calls("systemd-run")
    assert {
        f"--unit={UNIT}",
        "--service-type=exec",
        "--slice=nodeagent-mps.slice",
        "--property=KillMode=process",
        "--property=LimitNOFILE=16384:524288",
        "--property=OOMScoreAdjust=-500",
        f"--property=BindPaths={Path(systemd.spec.pipe_directory).parent}/shm:/dev/shm",
    } < set(call)
    assert call[call.index("--") + 1 :] == [*systemd.programs.control, "-f", "-M"]


@pytest.mark.parametrize("host", [False, True])
async def test_through_the_hosts_systemd(systemd: Systemd, host: bool) -> None:
    async with systemd.running(host=host):
        calls = systemd.calls()  # not of its end, which may be given up between the two
    entered = [call for call in calls if call[0] == "nsenter"]
    asked = len(calls) - len(entered)
    assert len(entered) == (asked if host else 0)
    assert asked >= 3


@pytest.mark.parametrize(
    ("number", "how"), [(9, "signal 9 (SIGKILL)"), (15, "in a way that systemd counts as clean")]
)
async def test_how_it_ended(systemd: Systemd, number: int, how: str) -> None:
    for _ in range(2):
        async with systemd.running() as process:
            os.kill(process.pid, number)
            assert await process.wait() == how
        assert systemd.units() == []


async def test_how_one_of_an_earlier_agent_ended(rig: FleetRig, systemd: Systemd) -> None:
    """Systemd is asked then, too, and forgets the unit, which would show as failed for good."""
    rig.programs = replace(rig.programs, path=f"{rig.bin}:{systemd.folder}:/usr/bin:/bin")
    rig.launcher_of = partial(ServiceLauncher, host=False, deadline=60.0)
    pid = await rig.left_daemon()
    async with rig.fleet():
        os.kill(pid, signal.SIGKILL)
        assert "signal 9 (SIGKILL)" in await rig.reported(ReportSubject.EXITED)
    assert ["systemctl", "reset-failed", UNIT] in systemd.calls()


async def test_systemd_does_not_answer_once_it_runs(systemd: Systemd) -> None:
    """It is asked again: a daemon that nobody looks at would keep out every later one."""
    (systemd.folder / "fail_once").touch()
    async with systemd.running() as process:
        assert processes_of(systemd.spec.pipe_directory, CONTROL) == (process.identity,)
    assert not (systemd.folder / "fail_once").exists()


async def test_one_that_ends_at_once(systemd: Systemd) -> None:
    (Path(systemd.spec.log_directory) / "end").touch()
    try:
        how = await (await systemd.launch()).wait()
    except StartError as error:
        how = error.message
    assert how.endswith("status 3")


async def test_no_program(systemd: Systemd) -> None:
    systemd.programs = replace(systemd.programs, control=("/nowhere/control",))
    with pytest.raises(StartError, match=r"Job for .* failed .*\(the program cannot be run\)"):
        await systemd.launch()
    assert systemd.units() == []


async def test_what_failed_earlier_is_cleared(systemd: Systemd) -> None:
    """A unit that failed while no agent ran keeps its name until then."""
    systemd.turn(UNIT, ActiveState="failed", Result="signal", ExecMainCode=2, ExecMainStatus=9)
    async with systemd.running():
        assert unit_of(systemd.spec) == UNIT


async def test_a_unit_that_runs_already(systemd: Systemd) -> None:
    """It is named, not replaced: another program may use it."""
    systemd.turn(UNIT, ActiveState="active", MainPID=815)
    with pytest.raises(StartError, match=f"{UNIT} runs already, with pid 815"):
        await systemd.launch()


async def test_systemd_does_not_answer(systemd: Systemd) -> None:
    (systemd.folder / "hang").touch()
    with pytest.raises(StartError, match=r"has not started .* within 0\.5 s"):
        await systemd.launch(deadline=0.5)
    assert systemd.calls()[-1] == ["systemctl", "stop", "--no-block", UNIT]
    assert not processes_of(systemd.spec.pipe_directory, CONTROL)


@pytest.mark.parametrize(
    ("host", "program", "complaint", "remedy"),
    [
        (False, "systemctl", "System has not been booted with systemd", "mps.launch to child"),
        (True, "nsenter", "nsenter: failed to execute systemctl: No such file", "hostPID"),
    ],
)
async def test_no_systemd(
    systemd: Systemd, host: bool, program: str, complaint: str, remedy: str
) -> None:
    (systemd.folder / program).write_text(f"#!/bin/sh\necho '{complaint}' >&2\nexit 1\n")
    with pytest.raises(StartError, match=complaint) as refusal:
        await systemd.launch(host=host)
    assert remedy in (refusal.value.remedy or "")


@pytest.mark.parametrize("hostile", ["a b", "%n", "$HOME", "a\\x20", '"', "a\nUser=root"])
async def test_what_systemd_could_misread(systemd: Systemd, hostile: str) -> None:
    """Refused in any value, rather than escaped in ways that differ between its versions."""
    systemd.programs = replace(systemd.programs, library_path=f"/opt/{hostile}")
    with pytest.raises(StartError, match="systemd could take for its own"):
        await systemd.launch()
    assert [call[0] for call in systemd.calls()] == ["systemctl"]


async def test_a_log_that_leads_elsewhere(systemd: Systemd) -> None:
    """systemd, which opens logs as root, gets the file that was looked at, not its name."""
    log = Path(systemd.spec.log_directory) / "daemon.log"
    log.with_name("victim").touch()
    log.symlink_to("victim")
    with pytest.raises(StartError, match="cannot be written"):
        await systemd.launch()
    log.unlink()
    async with systemd.running():
        [call] = systemd.calls("systemd-run")
        [opened] = [text for text in call if "StandardOutput" in text]
        assert opened.startswith(f"--property=StandardOutput=append:/proc/{os.getpid()}/fd/")
