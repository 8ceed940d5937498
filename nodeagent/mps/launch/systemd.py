"""Asks a systemd, this machine's or that of the host around a container, through its programs."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from nodeagent.mps.launch.process import StartError

_PROGRAMS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Into the mount namespace of the host, where its programs, files and systemd's socket are. Not into
# its other ones: with hostPID the process numbers are the host's already.
_TO_THE_HOST = ("nsenter", "--target", "1", "--mount", "--")

_NO_SYSTEMD = "see whether systemd runs here, or set mps.launch to child"
_NO_HOST = (
    "run the agent privileged and with hostPID on a host with systemd, or set mps.launch to child"
)


@dataclass(frozen=True, slots=True)
class UnitState:
    """What systemd says of a unit. `result` and `status` tell of its last main process."""

    active: str  # active, activating, deactivating, failed or inactive
    main_pid: int  # 0: none
    result: str  # success, exit-code, signal, core-dump, oom-kill, ...
    code: int  # what siginfo_t has as si_code: 1 exited, 2 killed, 3 killed with a core dump
    status: int  # the exit status, or the number of the signal
    loaded: bool


class SystemdClient:
    """`path` is where programs are looked for first, by this process and by systemd-run."""

    def __init__(self, *, host: bool, path: str) -> None:
        self._host = host
        self._environment = {"PATH": f"{path}:{_PROGRAMS}", "LC_ALL": "C"}

    async def run(self, arguments: list[str]) -> None:
        """Have a service started. Raises StartError with the words of systemd-run."""
        status, _, complaint = await self._call(["systemd-run", *arguments])
        if status != 0:
            raise StartError(
                f"systemd-run: {_first_line(complaint) or f'status {status}'}",
                remedy="see systemctl status and journalctl of the unit",
            )

    async def show(self, unit: str) -> UnitState:
        """Raises StartError when systemd cannot be asked."""
        wanted = "LoadState,ActiveState,MainPID,Result,ExecMainCode,ExecMainStatus"
        status, said, complaint = await self._call(["systemctl", "show", f"-p{wanted}", unit])
        found = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
        try:
            return UnitState(
                active=found["ActiveState"],
                main_pid=int(found["MainPID"]),
                result=found["Result"],
                code=int(found["ExecMainCode"]),
                status=int(found["ExecMainStatus"]),
                loaded=found["LoadState"] == "loaded",
            )
        except (KeyError, ValueError):
            raise StartError(
                f"systemctl: {_first_line(complaint) or f'status {status}, {said[:200]!r}'}",
                remedy=_NO_HOST if self._host else _NO_SYSTEMD,
            ) from None

    async def forget(self, unit: str) -> None:
        """So that a unit that failed does not keep its name; none with that name is fine."""
        await self._call(["systemctl", "reset-failed", unit])

    async def stop(self, unit: str) -> None:
        """Without waiting for its end."""
        await self._call(["systemctl", "stop", "--no-block", unit])

    async def _call(self, command: list[str]) -> tuple[int, str, str]:
        """Exit status and both outputs; ended when this is left early. Raises StartError."""
        if self._host:
            command = [*_TO_THE_HOST, *command]
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._environment,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise StartError(
                f"{command[0]} cannot be run: {error.strerror}",
                remedy=_NO_HOST if self._host else _NO_SYSTEMD,
            ) from error
        try:
            said, complaint = await process.communicate()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        return (
            int(process.returncode or 0),
            said.decode(errors="replace"),
            complaint.decode(errors="replace"),
        )


def _first_line(text: str) -> str:
    lines = text.strip().splitlines()
    return "".join(c for c in lines[0] if c.isprintable()) if lines else ""
