"""What NVIDIA's toolkit has for every container, by the CDI document that it generates."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from msgspec import ValidationError, convert

from nodeagent.claims.serving.cdi import MAX_BYTES, claim_of
from nodeagent.documents.bounded_yaml import Value, read_tree
from nodeagent.errors import DocumentError, NodeagentError
from nodeagent.files.cdi import Edits
from nodeagent.files.state import read_own_file

TOOLKIT_KIND: Final = "nvidia.com/gpu"
# Where runtimes look. What was generated since the machine's start wins, as it does for them.
TOOLKIT_DIRS: Final = (Path("/var/run/cdi"), Path("/etc/cdi"))
_MAX_NODES: Final = 15_000  # of the toolkit's; 8 GPUs with all their MIG devices have some 6,000
_SUFFIXES = (".json", ".yaml")  # what the specification has runtimes read


class NoToolkitEdits(NodeagentError):
    """No CDI document says what a container needs to use a GPU at all."""


# Path, inode, change time and size, which differ for new content.
_Mark = tuple[Path, int, int, int]


class ToolkitEdits:
    """The edits for all devices in the toolkit's CDI document, kept until a file changes.

    `folders`: where runtimes look for CDI documents, the one that wins first.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = tuple(folders)
        self._known: tuple[tuple[_Mark, ...], Edits] | None = None

    def read(self) -> Edits:
        """Raises NoToolkitEdits, which says what was found instead. Blocks on the disk."""
        marks = tuple(self._marks())
        if self._known is None or self._known[0] != marks:
            self._known = (marks, self._read([path for path, *_ in marks]))
        return self._known[1]

    def _marks(self) -> Iterator[_Mark]:
        for folder in self._folders:
            try:
                # Without claims' own: these come and go meanwhile, and would change the marks.
                paths = (path for path in folder.iterdir() if not claim_of(path.name))
                for path in sorted(path for path in paths if path.suffix in _SUFFIXES):
                    found = path.lstat()
                    yield path, found.st_ino, found.st_ctime_ns, found.st_size
            except OSError:  # not there, or a file of it is gone just now
                continue

    def _read(self, paths: Sequence[Path]) -> Edits:
        faults: list[str] = []
        for path in paths:
            try:
                edits = _toolkit_edits(path)
            except (OSError, NodeagentError, ValidationError) as error:
                faults.append(f"{path}: {_reason(error)}")
                continue
            if edits is not None:
                return edits
        where = " or ".join(map(str, self._folders))
        found = f" ({'; '.join(faults[:3])})" if faults else ""
        raise NoToolkitEdits.of("noToolkitEdits", where=where, kind=TOOLKIT_KIND, found=found)


def _toolkit_edits(path: Path) -> Edits | None:
    """None where the file is about other devices, or has no edits for all of them."""
    text = read_own_file(path, MAX_BYTES)
    if TOOLKIT_KIND.encode() not in text:
        return None
    document: Value = read_tree(text, most_nodes=_MAX_NODES).value
    if not isinstance(document, dict) or document.get("kind") != TOOLKIT_KIND:
        return None
    edits = convert(document.get("containerEdits", {}), Edits)
    return edits if edits != Edits() else None


def _reason(error: OSError | NodeagentError | ValidationError) -> str:
    match error:
        case OSError():
            return error.strerror or str(error)
        case DocumentError():
            return error.message
    return f"containerEdits: {error}"
