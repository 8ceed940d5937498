"""Real processes for tests, which end with the block: with any name, or once they are ready."""

import shutil
import subprocess
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


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
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    whose = {"user": uid, "extra_groups": None if uid is None else ()}
    options = {"executable": executable, "env": environment, "pass_fds": pass_fds}
    with process_of(*command, **options, **whose, **silent) as process:
        yield process.pid


@contextmanager
def process_of(*command: str | Path, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen(command, **{**pipes, **options})
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def ready_process(*command: str | Path, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """One that has said a line."""
    with process_of(*command, **options) as process:
        assert process.stdout
        assert process.stdout.readline(), f"{command} says nothing"
        yield process
