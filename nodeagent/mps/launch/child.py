"""Starts daemons as children of this process, with a /dev/shm of their own where that is wanted.

They outlive it where nothing ends all processes of its control group: under systemd with
KillMode=process, not in a container. The kernel keeps mount namespaces for each thread: a thread
that starts one process and ends can have another one, with no program in between whose failure
would have to be reported back.
"""

import asyncio
import ctypes
import os
import resource
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from nodeagent.mps.launch import launcher
from nodeagent.mps.launch.launcher import DaemonProcess, Launcher, StartError
from nodeagent.mps.processes import MpsProcess
from nodeagent.mps.shares import SHM, DaemonSpec
from nodeagent.own_thread import OwnThread

# <linux/sched.h> and <linux/mount.h>
_CLONE_NEWNS = 0x0002_0000
_MS_BIND = 1 << 12
_MS_REC = 1 << 14
_MS_SLAVE = 1 << 19


def _mount_own_shm(spec: DaemonSpec) -> None:
    """Give the calling thread the device's own /dev/shm. There is no way back: it must end soon.

    What is mounted elsewhere later still appears, what is mounted here appears nowhere else.
    """
    try:
        done = _own_mounts().mount(spec.shm.encode(), SHM.encode(), None, _MS_BIND, None)
        _check(done, f"{spec.shm} cannot be mounted on {SHM}")
    except OSError as error:
        raise StartError.of("noShm", device=spec.device, why=error.strerror) from error


@lru_cache(maxsize=1)
def can_mount_own_shm() -> bool:
    """Whether this process may give a thread mounts of its own. Rights, seccomp and security
    modules all have a say, so it is tried, in a thread that ends.
    """
    return OwnThread("mount namespace").submit(_own_mounts).exception() is None


def _own_mounts() -> ctypes.CDLL:
    """Give the calling thread mounts of its own. Raises OSError with the step that was refused."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mount.argtypes = (*(ctypes.c_char_p,) * 3, ctypes.c_ulong, ctypes.c_void_p)
    _check(libc.unshare(_CLONE_NEWNS), "a mount namespace cannot be made")
    _check(libc.mount(None, b"/", None, _MS_REC | _MS_SLAVE, None), "mounts cannot be kept apart")
    return libc


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


@dataclass(eq=False)
class ChildLauncher(Launcher):
    """Starts daemons as children, each in a session of its own, with its output in a file, not in a
    pipe that would break. A private /dev/shm takes CAP_SYS_ADMIN.
    """

    # A fork stops the whole interpreter for some milliseconds; in between, the loop has its turn.
    _one_by_one: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def _start(
        self, spec: DaemonSpec, command: Sequence[str], environment: Mapping[str, str]
    ) -> DaemonProcess:
        async with self._one_by_one:
            # A thread of its own, not one of a pool: it may get another mount namespace, for good.
            starting = OwnThread("mps start").submit(_spawned, spec, command, environment)
            try:
                identity = await asyncio.shield(asyncio.wrap_future(starting))
            except asyncio.CancelledError:
                starting.add_done_callback(_kill_started)
                raise
        try:
            return DaemonProcess(identity, lambda: _how_it_ended(identity.pid))
        except OSError as error:  # no descriptor left, say: it would run on without anybody's care
            await asyncio.to_thread(_kill_started, starting)
            raise StartError.of(
                "notWatched", device=spec.device, why=error.strerror, pid=os.getpid()
            ) from error


def _spawned(
    spec: DaemonSpec, command: Sequence[str], environment: Mapping[str, str]
) -> MpsProcess:
    """Blocks until the program is loaded."""
    log = launcher.open_log(spec)
    try:
        if spec.private_shm:
            _mount_own_shm(spec)
        child: subprocess.Popen[bytes] = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=environment,
            start_new_session=True,
            umask=launcher.UMASK,
            **_credentials(spec),  # type: ignore[call-overload]  # user and groups, or none
        )
    except (OSError, subprocess.SubprocessError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise StartError.of(
            "notRunAsUser", program=command[0], user=spec.uid, why=reason
        ) from error
    finally:
        os.close(log)
    _allow_open_files(child.pid)
    _lower_oom_score(child.pid)
    child.returncode = 0  # waited for by pidfd from here on; that it runs needs no warning
    return launcher.identity_of(child.pid, spec)


def _kill_started(starting: Future[MpsProcess]) -> None:
    """End a daemon that no supervisor knows, and that has no client yet."""
    if starting.exception() is None:
        pid = starting.result().pid
        with suppress(OSError):
            os.kill(pid, 9)  # our child, not waited for yet: the number is still its own
            os.waitpid(pid, 0)


async def _how_it_ended(pid: int) -> str:
    try:
        _, status = os.waitpid(pid, os.WNOHANG)  # noqa: ASYNC222  # does not wait
    except ChildProcessError:  # other code in this process waits for all children
        return launcher.UNKNOWN_END
    return launcher.exit_words(os.waitstatus_to_exitcode(status))


def _credentials(spec: DaemonSpec) -> dict[str, object]:
    """The user and groups to run the process as; empty where it is the agent's own user.

    The group as well: the daemon makes its servers the user's, but leaves them its own group.
    """
    account = spec.account
    if (account.uid, account.gid) == (os.geteuid(), os.getegid()) and account.uid != 0:
        return {}
    return {"user": account.uid, "group": account.gid, "extra_groups": list(account.groups)}


def _allow_open_files(pid: int) -> None:
    """Raise the limit to what servers need, as far as the hard limit allows."""
    with suppress(OSError, ValueError):
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        most = launcher.OPEN_FILES
        if soft < most:
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, hard))


def _lower_oom_score(pid: int) -> None:
    """Have others be killed first when memory runs out, where CAP_SYS_RESOURCE allows for it."""
    score = Path(f"/proc/{pid}/oom_score_adj")
    with suppress(OSError, ValueError):
        if int(score.read_text()) > launcher.OOM_SCORE:
            score.write_text(str(launcher.OOM_SCORE))
