"""The border between one life of an agent's claims and the world, where the life can be cut.

What a process does is seen where it leaves Python: at the C functions of NVML, at the system calls
that change files, and at the requests of API server and kubelet.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nodeagent.claims.model import Allocated
from nodeagent.claims.serving.claim_object import ClaimObject
from nodeagent.simulation import SimulatedNode
from nodeagent.simulation.functions import FUNCTIONS
from nodeagent.simulation.nvml_library import SimulatedLibrary, installed
from tests.claims.machine import Home, uid

_OWN = uid(0).partition("-")[2]  # what the names of all claims' files have in common
_CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Killed(BaseException):
    """The process ends here: no handler of an error is for it."""


class Border:
    """Counts what passes, and fails what comes after the first `passing`, once or for ever.

    Only what changes something counts, unless `reads`. With `Killed`, nothing that changes
    anything passes any more: a killed process does nothing. `passed` and `failed` say what.
    """

    def __init__(
        self,
        passing: int = sys.maxsize,
        *,
        reads: bool = False,
        error: Callable[[], BaseException] = Killed,
        concerns: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._passing, self._reads = passing, reads
        self._error, self._concerns = error, concerns
        self._counting = False
        self.passed: list[str] = []
        self.failed = ""

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Only what is done within it is counted, and cut."""
        self._counting = True
        try:
            yield
        finally:
            self._counting = False

    def cross(self, what: str, *, changes: bool) -> None:
        """Raises the error."""
        if self.failed:
            if changes and self._error is Killed:
                raise Killed
            return
        counts = self._counting and (changes or self._reads)
        if not counts or not self._concerns(what):
            return
        if len(self.passed) == self._passing:
            self.failed = what
            raise self._error()
        self.passed.append(what)


class WatchedLibrary:
    """NVML of one process with a border."""

    def __init__(self, node: SimulatedNode, border: Border) -> None:
        self._library, self._border = SimulatedLibrary(node), border

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function, changes = getattr(self._library, name), FUNCTIONS[name].changes

        def call(*given: Any) -> Any:
            self._border.cross(name, changes=changes)
            return function(*given)

        return call


class WatchedHome(Home):
    """A machine of which API server and kubelet are asked across the border."""

    border = Border()

    async def fetch(self, namespace: str, name: str) -> ClaimObject | None:
        self.border.cross("GET claim", changes=False)
        return await super().fetch(namespace, name)

    async def allocations(self) -> tuple[Allocated, ...]:
        self.border.cross("list pods", changes=False)
        return await super().allocations()


@contextmanager
def watched(node: SimulatedNode, home: WatchedHome, border: Border) -> Iterator[Border]:
    """Within it a process lives behind this border."""
    home.border = border
    with installed(WatchedLibrary(node, border)), _watched_files(str(home.folder), border):
        yield border


@contextmanager
def watched_process(node: SimulatedNode, border: Border) -> Iterator[None]:
    """Within it all that this process changes passes the border, wherever it is."""
    with installed(WatchedLibrary(node, border)), _watched_files("", border):
        yield


# --- files ----------------------------------------------------------------------------------------

_watching: list[tuple[str, Border]] = []  # at most one; a hook cannot be removed


@contextmanager
def _watched_files(folder: str, border: Border) -> Iterator[None]:
    _install_hook()
    _watching.append((folder, border))
    try:
        yield
    finally:
        _watching.clear()


def _install_hook(installed: list[bool] = []) -> None:  # noqa: B006  # once for this process
    if not installed:
        installed.append(True)
        sys.addaudithook(_audited)


def _audited(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watching:
        return
    match event, arguments:
        case "open", (str() as path, _, int(flags)) if flags & _CHANGES:
            _cross("write", path)
        case "os.mkdir", (path, *_):
            _cross("make", path)
        case "os.rename", (path, *_):
            _cross("rename", path)
        case "os.remove", (path, directory) if directory != -1 or os.path.lexists(path):
            _cross("remove", path)
        case "os.rmdir", (path, *_):
            _cross("remove", path)
        case "subprocess.Popen", (program, arguments, *_):
            _cross("start" if "-f" in arguments else "ask", program)


def _cross(what: str, path: str | Path) -> None:
    folder, border = _watching[0]
    if str(path).startswith(folder) or _OWN in str(path):
        border.cross(f"{what} {Path(path).name}", changes=True)
