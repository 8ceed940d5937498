"""What NVML does not say of the processes on GPUs: whose they are, and what an interpreter runs.

Reading a command line may block for as long as the memory of that process is locked up in the
kernel, and so may not happen in a GPU's thread: there it would pass for a driver that hangs.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath

from nodeagent.errors import DriverError
from nodeagent.gpu.workers import Worker
from nodeagent.plan.observed import Gpu
from nodeagent.plan.users import Usage, User
from nodeagent.processes import command_of
from nodeagent.structs import Struct, replace

_DEADLINE = 0.5  # seconds for all of them; after it they stay unknown
_MAX_LENGTH = 60  # characters of a script's name
_INTERPRETER = re.compile(r"(?:python|pypy)[\d.]*")
_NAMED_ALIKE = re.compile(r"(?:python|pypy|pt_main_thread)")  # PyTorch renames its main thread
_WITH_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs"})


class Details(Struct, frozen=True):
    """`uid` is the effective user, None while not known; `script` "" where there is none."""

    uid: int | None = None
    script: str = ""


class ProcessDetails:
    """Reads the details of the users of GPUs, in a thread of its own, and adds them.

    What cannot be read in time is left out.
    """

    def __init__(self, read: Callable[[User], Details] | None = None) -> None:
        self._read = read or details_of
        self._worker = Worker("the look at processes")

    async def with_details(self, gpus: Sequence[Gpu]) -> list[Gpu]:
        """The GPUs with the details of their users. Raises nothing."""
        usages = (usage for gpu in gpus for usage in gpu.usages)
        users = {user.pid: user for usage in usages for user in usage.processes if user.pid}
        if not users:
            return list(gpus)
        try:
            found = await self._worker.call(
                lambda: {pid: self._read(user) for pid, user in users.items()},
                what="looking at processes",
                deadline=_DEADLINE,
            )
        except DriverError:
            return list(gpus)
        return [_with_details(gpu, found) for gpu in gpus]

    def close(self) -> None:
        self._worker.close()


def details_of(user: User) -> Details:
    """Read the details of a running process; may block."""
    try:
        uid = os.stat(f"/proc/{user.pid}").st_uid  # noqa: PTH116 - quick
    except OSError:
        return Details()
    return Details(uid, script_of(user.pid) if _NAMED_ALIKE.match(user.command) else "")


def script_of(pid: int) -> str:
    """The file or module that an interpreter of Python runs, as it says itself; `-c` for a program
    in its command line. Printable; "" for other programs and where it is not known. May block.
    """
    words = command_of(pid)
    if not isinstance(words, tuple) or not words:
        return ""
    if not _INTERPRETER.fullmatch(PurePosixPath(words[0]).name):
        return ""
    script = script_in(words[1:])[:_MAX_LENGTH]
    return "".join(c if c.isprintable() else "?" for c in script)


def script_in(words: Sequence[str]) -> str:
    """The script in an interpreter's arguments, by the rules of python(1): options come before the
    script, and -c and -m end them.
    """
    rest = iter(words)
    for word in rest:
        if word in _WITH_VALUE:
            next(rest, "")
        elif not word.startswith("-") or word == "-":
            return PurePosixPath(word).name or word
        elif (end := re.match(r"-[^-cmWX]*([cm])(.*)", word, re.DOTALL)) is not None:
            return "-c" if end[1] == "c" else end[2] or next(rest, "")
    return ""


def _with_details(gpu: Gpu, found: Mapping[int, Details]) -> Gpu:
    def users(usage: Usage) -> Usage:
        if not usage.processes:
            return usage
        return replace(usage, processes=tuple(map(user_with, usage.processes)))

    def user_with(user: User) -> User:
        known = found.get(user.pid)
        return replace(user, uid=known.uid, script=known.script) if known else user

    whole = replace(gpu, usage=users(gpu.usage))
    return whole.with_mig_devices(lambda _, device: replace(device, usage=users(device.usage)))
