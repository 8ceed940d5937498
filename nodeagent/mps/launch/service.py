"""Starts daemons as transient services of systemd, this machine's or the container host's.

They share nothing with the agent: no control group, no sandbox, no pod. So they outlive its stop,
its upgrade and its pod.
"""

import asyncio
import os
import re
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from nodeagent.catalogue import section
from nodeagent.mps.launch import launcher
from nodeagent.mps.launch.launcher import DaemonProcess, Launcher, StartError
from nodeagent.mps.shares import SHM, DaemonSpec
from nodeagent.programs import PATH, ProgramOutput, run_program
from nodeagent.structs import Struct

# Into the mount namespace of the host, where its programs, files and systemd's socket are. Not into
# its other ones: with hostPID the process numbers are the host's already.
_TO_THE_HOST = ("nsenter", "--target", "1", "--mount", "--")


class UnitState(Struct, frozen=True):
    """What systemd says of a unit. `result` and `status` are of its last main process."""

    active: str  # active, activating, deactivating, failed or inactive
    main_pid: int  # 0: none
    result: str  # success, exit-code, signal, core-dump, oom-kill, ...
    code: int  # what siginfo_t has as si_code: 1 exited, 2 killed, 3 killed with a core dump
    status: int  # the exit status, or the number of the signal
    loaded: bool


def read_state(text: str) -> UnitState:
    """Read what `systemctl show` prints; raises KeyError or ValueError for anything else."""
    found = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    return UnitState(
        active=found["ActiveState"],
        main_pid=int(found["MainPID"]),
        result=found["Result"],
        code=int(found["ExecMainCode"]),
        status=int(found["ExecMainStatus"]),
        loaded=found["LoadState"] == "loaded",
    )


def _first_line(text: str) -> str:
    lines = text.strip().splitlines()
    return "".join(c for c in lines[0] if c.isprintable()) if lines else ""


SLICE = "nodeagent-mps.slice"
_MAX_OPEN_FILES = 524_288  # systemd's own hard limit
_PAUSE = 0.02  # seconds between two looks at a unit that is about to change
_END_KNOWN = 5.0  # seconds for systemd, on a busy machine, to notice an end and to answer
# Nothing that systemd would read as its own: no blank, quote, %, $ or backslash. How these are
# escaped differs between its versions and its settings.
_PLAIN = re.compile(r"[A-Za-z0-9_@+=.,:/~-]*")
# Variables that systemd gives every service of its own accord.
_UNSET = (
    "HOME LOGNAME USER SHELL LANG INVOCATION_ID JOURNAL_STREAM SYSTEMD_EXEC_PID "
    "MEMORY_PRESSURE_WATCH MEMORY_PRESSURE_WRITE"
)


@dataclass(eq=False)
class ServiceLauncher(Launcher):
    """Starts daemons as systemd services; with `host`, from inside a container as services of the
    host, where the directories of daemons must have the same paths. `deadline` is for one start, in
    seconds. Needs systemd 240 or later, and root.
    """

    host: bool = field(kw_only=True)
    deadline: float = field(kw_only=True)

    async def _start(
        self, spec: DaemonSpec, command: Sequence[str], environment: Mapping[str, str]
    ) -> DaemonProcess:
        unit = unit_of(spec)
        try:
            async with asyncio.timeout(self.deadline):
                await self._clear(unit)
                log = launcher.open_log(spec)
                try:
                    await self._run(unit, _properties(spec, log), command, environment)
                finally:
                    os.close(log)
                return await self._started(unit, spec)
        except TimeoutError:
            # The unit may still start, unknown to the agent.
            await self._call("systemctl", "stop", "--no-block", unit)
            raise StartError.of("systemdSlow", unit=unit, seconds=f"{self.deadline:g}") from None

    def end_of(self, spec: DaemonSpec) -> Callable[[], Awaitable[str]]:
        return lambda: self._how_it_ended(unit_of(spec))

    async def _clear(self, unit: str) -> None:
        """Wait until no unit has this name; forget a failed one. Raises StartError if one runs."""
        while True:
            state = await self._show(unit)
            match state.active:
                case "active":
                    raise StartError.of("unitRuns", unit=unit, pid=state.main_pid)
                case "failed":
                    await self._forget(unit)
                    return
                case "inactive":
                    return
                case _:
                    await asyncio.sleep(_PAUSE)

    async def _run(
        self,
        unit: str,
        properties: Sequence[str],
        command: Sequence[str],
        environment: Mapping[str, str],
    ) -> None:
        for text in (*command, *environment.values()):
            if not _PLAIN.fullmatch(text):
                raise StartError.of("systemdCharacters", text=text)
        done = await self._call(
            "systemd-run",
            f"--unit={unit}",
            "--no-ask-password",
            "--service-type=exec",  # it waits until the program is loaded
            f"--slice={SLICE}",
            f"--description=MPS control daemon of {environment['CUDA_VISIBLE_DEVICES']}",
            *(f"--property={text}" for text in properties),
            *(f"--setenv={name}={value}" for name, value in environment.items()),
            "--",
            *command,
        )
        if done.status != 0:
            status = (await self._show(unit)).status
            await self._forget(unit)
            reason = section("systemd").get(str(status))
            said = _first_line(done.stderr) or f"status {done.status}"
            why = f"{said} ({reason})" if reason else said
            raise StartError.of("systemdRun", why=why, unit=unit)

    async def _started(self, unit: str, spec: DaemonSpec) -> DaemonProcess:
        while True:
            try:
                state = await self._show(unit)
                if not state.main_pid:
                    break
                identity = await asyncio.to_thread(launcher.identity_of, state.main_pid, spec)
                return DaemonProcess(identity, self.end_of(spec))
            except ProcessLookupError:
                break
            except (StartError, OSError, RuntimeError):
                # Systemd, descriptors or threads may fail for a moment. Given up now, the daemon
                # would run on and keep out all later ones; when the time is over, it is stopped.
                await asyncio.sleep(_PAUSE)
        raise StartError.of(
            "endedAtOnce", unit=unit, how=await self._how_it_ended(unit), logs=spec.log_directory
        )

    async def _how_it_ended(self, unit: str) -> str:
        """Ask systemd: only the parent knows, and only while it has not forgotten the unit. Then
        have it forget one that failed, which would show as a fault of the machine.
        """
        with suppress(TimeoutError, StartError):
            async with asyncio.timeout(_END_KNOWN):
                while True:
                    state = await self._show(unit)
                    if state.main_pid == 0:
                        await self._forget(unit)
                        return _end_words(state)
                    await asyncio.sleep(_PAUSE)
        return launcher.UNKNOWN_END

    async def _show(self, unit: str) -> UnitState:
        """Ask systemd for a unit's state. Raises StartError when it cannot be asked."""
        wanted = "LoadState,ActiveState,MainPID,Result,ExecMainCode,ExecMainStatus"
        done = await self._call("systemctl", "show", f"-p{wanted}", unit)
        try:
            return read_state(done.stdout)
        except (KeyError, ValueError):
            said = _first_line(done.stderr) or f"status {done.status}, {done.stdout[:200]!r}"
            raise self._unusable(f"systemctl: {said}") from None

    async def _forget(self, unit: str) -> None:
        """Have systemd free the name of a unit that failed, if there is one."""
        await self._call("systemctl", "reset-failed", unit)

    async def _call(self, *command: str) -> ProgramOutput:
        """Run a program of systemd's. Raises StartError when it cannot be run."""
        if self.host:
            command = (*_TO_THE_HOST, *command)
        # Programs are looked for in `programs.path` first, by this process and by systemd-run.
        environment = {"PATH": f"{self.programs.path}:{PATH}", "LC_ALL": "C"}
        try:
            return await run_program(command, environment, stderr=PIPE)
        except OSError as error:
            raise self._unusable(f"{command[0]} cannot be run: {error.strerror}") from error

    def _unusable(self, why: str) -> StartError:
        case = "noHost" if self.host else "noSystemd"
        return StartError.of(case, why=why)


def unit_of(spec: DaemonSpec) -> str:
    """The name of the daemon's systemd unit."""
    return f"nodeagent-mps-{spec.device}.service"


def _properties(spec: DaemonSpec, log: int) -> list[str]:
    # systemd opens the log as root. By its name it would follow a symlink that the log directory's
    # owner can make; this is the file itself, which was checked.
    output, account = f"append:/proc/{os.getpid()}/fd/{log}", spec.account
    return [
        f"User={account.uid}",
        f"Group={account.gid}",
        *([f"SupplementaryGroups={' '.join(map(str, account.groups))}"] if account.groups else []),
        f"StandardOutput={output}",
        "StandardError=inherit",
        f"UnsetEnvironment={_UNSET}",
        "WorkingDirectory=/",
        f"UMask={launcher.UMASK:04o}",
        f"LimitNOFILE={launcher.OPEN_FILES}:{_MAX_OPEN_FILES}",
        f"OOMScoreAdjust={launcher.OOM_SCORE}",
        "TasksMax=infinity",  # a server has threads for each client
        # Servers are the agent's to end: one whose daemon died may still serve its clients.
        "KillMode=process",
        *([f"BindPaths={spec.shm}:{SHM}"] if spec.private_shm else []),
    ]


def _end_words(state: UnitState) -> str:
    if not state.loaded:
        return "in a way that systemd counts as clean"
    if state.code == 1:
        return launcher.exit_words(state.status)
    if not state.status:
        return f"result {state.result}"
    cause = "" if state.result in {"signal", "core-dump"} else f", {state.result}"
    return f"{launcher.exit_words(-state.status)}{cause}"
