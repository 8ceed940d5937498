"""The programs of MPS, and a run of one to its end that bounds what it may print."""

import asyncio
import errno
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress

from nodeagent.mps.processes import CONTROL
from nodeagent.structs import Struct

MAX_OUTPUT = 1 << 20  # bytes of each stream; the longest replies to a batch have some thousand
_BLOCK = 1 << 16


class Programs(Struct, frozen=True):
    """The programs of MPS.

    `control` is the program with leading arguments, if any; `path` is its PATH, in which it looks
    for the server (distributions put that into /usr/sbin); `library_path` says where libcuda is,
    if not where the loader looks.
    """

    control: tuple[str, ...] = (CONTROL,)
    path: str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    library_path: str = ""

    def environment(self, pipe_directory: str, log_directory: str) -> dict[str, str]:
        """All that a program of the daemon at this place has in its environment."""
        environment = {
            "CUDA_MPS_LOG_DIRECTORY": log_directory,
            "CUDA_MPS_PIPE_DIRECTORY": pipe_directory,
            "LC_ALL": "C",
            "PATH": self.path,
        }
        if self.library_path:
            environment["LD_LIBRARY_PATH"] = self.library_path
        return environment


class TooMuchOutput(OSError):
    """A program printed too much. It may be another that its user put in the place of MPS'."""

    def __init__(self) -> None:
        super().__init__(errno.EMSGSIZE, f"it printed more than {MAX_OUTPUT} bytes")


class ProgramOutput(Struct, frozen=True):
    """What a program printed on both streams, and its exit status."""

    stdout: str
    stderr: str
    status: int


async def run_program(
    command: Sequence[str], environment: Mapping[str, str], *, stdin: bytes = b""
) -> ProgramOutput:
    """Run a command to its end with this environment alone; it is killed when this is cancelled.
    `stdin` is what a pipe holds at most. Raises OSError, which includes TooMuchOutput.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env=environment,
        cwd="/",
        start_new_session=True,
    )
    if process.stdin is not None:
        process.stdin.write(stdin)
        process.stdin.close()
    streams = (process.stdout, process.stderr)
    try:
        said = await asyncio.gather(*(_read_all(process, one) for one in streams))
        await process.wait()
    finally:
        _kill(process)
        # asyncio waits for the ends of the streams too, so they are read until then.
        await asyncio.gather(*(_read_all(process, one) for one in streams))
        await process.wait()
    if max(map(len, said)) > MAX_OUTPUT:
        raise TooMuchOutput
    output, complaint = (one.decode(errors="replace") for one in said)
    return ProgramOutput(output, complaint, int(process.returncode or 0))


async def _read_all(process: Process, stream: asyncio.StreamReader | None) -> bytes:
    """What a stream says until it ends, or until it was too much; then the process is killed."""
    read = bytearray()
    while stream is not None and (block := await stream.read(_BLOCK)):
        if len(read) <= MAX_OUTPUT:
            read += block
        else:
            _kill(process)
    return bytes(read)


def _kill(process: Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
