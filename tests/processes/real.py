"""Real processes for tests, with any name."""

import shutil
import subprocess
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def running(
    program: str,
    *command: str,
    environment: Mapping[str, str] | None = None,
    pass_fds: Collection[int] = (),
    uid: int | None = None,
) -> Iterator[int]:
    """The pid of `program`, started with the words of `command`, its name first, as this user."""
    executable = shutil.which(program)
    assert executable
    with subprocess.Popen(
        command,
        executable=executable,
        env=environment,
        pass_fds=pass_fds,
        user=uid,
        extra_groups=None if uid is None else (),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield process.pid
        finally:
            process.kill()
