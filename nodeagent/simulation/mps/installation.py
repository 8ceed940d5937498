"""Makes the two executables in a folder that is then put on PATH."""

import os
import shlex
import sys
from pathlib import Path

from nodeagent.errors import UsageError

CONTROL_PROGRAM = "nvidia-cuda-mps-control"
SERVER_PROGRAM = "nvidia-cuda-mps-server"
_OTHER_PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3")
_MAX_LINE = 120  # of `#!`, in bytes

_SCRIPT = """\
import sys
sys.path.insert(0, {root!r})
from nodeagent.simulation.mps.{module} import main
sys.exit(main(version={version!r}, installation={installation!r}))
"""


def install(directory: Path, *, version: str = "550", python: Path | None = None) -> None:
    """Write both programs into a folder, which is made where it is missing.

    `version` is one of `VERSIONS`. `python` runs them; left out, it is this interpreter, or one
    of the system when other users could not run this one, as servers run as other users. Knobs
    are turned with `Knobs(directory)`. Raises UsageError and OSError.
    """
    from nodeagent.simulation.mps.versions import VERSIONS

    if version not in VERSIONS:
        raise UsageError(
            f"there is no simulated MPS {version!r}", remedy=f"one of {', '.join(VERSIONS)}"
        )
    directory = directory.absolute()
    interpreter = str(python or shared_interpreter())
    make_passable(directory / "knobs")
    for name, module in ((CONTROL_PROGRAM, "front_end"), (SERVER_PROGRAM, "server")):
        script = _SCRIPT.format(
            root=str(Path(__file__).parents[3]),
            module=module,
            version=version,
            installation=str(directory),
        )
        program = directory / name
        program.write_text(f"{_first_lines(interpreter)}\n{script}", encoding="utf-8")
        program.chmod(0o755)


def make_passable(directory: Path) -> None:
    """Make what is missing of it such that every user can pass and read, whatever the umask is."""
    for level in (*reversed(directory.parents), directory):
        if not level.exists():
            level.mkdir(exist_ok=True)
            level.chmod(0o755)


def programs_in(directory: Path) -> Path:
    """Where the stand-ins of a node are, given its `directory_beside`."""
    return directory / "bin"


def _first_lines(interpreter: str) -> str:
    """Isolated and without site packages: it starts in half the time, whatever is set outside."""
    line = f"#!{interpreter} -IS"
    if len(line) <= _MAX_LINE and " " not in interpreter:
        return line
    # For the shell a command, for Python a string:
    return f"#!/bin/sh\n'''exec' {shlex.quote(interpreter)} -IS \"$0\" \"$@\"\n' '''"


def shared_interpreter() -> Path:
    """This interpreter, or one of the system where other users could not run this one."""
    this = Path(sys.executable)
    if os.geteuid() != 0 or _for_everyone(this):
        return this
    for other in map(Path, _OTHER_PYTHONS):
        if other.exists() and _for_everyone(other) and _recent_enough(other):
            return other
    return this


def _for_everyone(path: Path) -> bool:
    """Whether another user can run it; the standard library counts too."""
    library = Path(os.__file__)
    places = {path.resolve(), library} if path == Path(sys.executable) else {path.resolve()}
    return all(p.stat().st_mode & 0o001 for place in places for p in place.resolve().parents)


def _recent_enough(python: Path) -> bool:
    """Judged by its name, which Debian and others resolve to `python3.11` and the like."""
    name = python.resolve().name.removeprefix("python")
    parts = name.split(".")
    return len(parts) == 2 and all(p.isdigit() for p in parts) and tuple(map(int, parts)) >= (3, 11)
