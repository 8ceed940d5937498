"""The CDI files of claims in `cdi.dir`, and what NVIDIA's toolkit has for every container.

Each file is written whole and read back. One that differs from what it should be, or is missing,
is written anew; one that nothing stands for is deleted.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

from msgspec import ValidationError, convert

from nodeagent.claims.files.cdi import LARGEST, claim_of, file_name
from nodeagent.claims.model import FileState
from nodeagent.documents.bounded_yaml import Value, read_tree
from nodeagent.errors import DocumentError, NodeagentError
from nodeagent.files.cdi import Edits
from nodeagent.files.open_directory import OpenDirectory, PathRefused, Remedies
from nodeagent.files.state import read_own_file, read_regular_file

TOOLKIT_KIND: Final = "nvidia.com/gpu"
# Where runtimes look. What was generated since the machine's start wins, as it does for them.
TOOLKIT_DIRS: Final = (Path("/var/run/cdi"), Path("/etc/cdi"))
_MOST_NODES: Final = 15_000  # of the toolkit's; 8 GPUs with all their MIG devices have some 6,000
_SUFFIXES = (".json", ".yaml")  # what the specification has runtimes read

_REMOVE = "find out what created it, and remove it"
_REMEDIES = Remedies(
    owner=_REMOVE,
    symlink=f"{_REMOVE}, or set cdi.dir to where it leads",
    system="run as root, or set cdi.dir to a directory that can be written",
)


class NoToolkitEdits(NodeagentError):
    """No CDI document says what a container needs to use a GPU at all."""


def file_state(cdi_dir: Path, uid: str, content: bytes) -> FileState:
    """Of the claim with this uid; one that cannot be read differs. Blocks on the disk."""
    try:
        found = read_regular_file(cdi_dir / file_name(uid), LARGEST + 1)
    except FileNotFoundError:
        return FileState.MISSING
    except OSError:
        return FileState.DIFFERS
    return FileState.SAME if found == content else FileState.DIFFERS


def publish(cdi_dir: Path, uid: str, content: bytes) -> bool:
    """Make the claim's file be this, and read it back; whether it was not so before.

    Raises PathRefused, with what was there still there. Blocks on the disk.
    """
    name = file_name(uid)
    with OpenDirectory.opened(cdi_dir, make=True, remedies=_REMEDIES) as directory:
        changed = directory.put(name, content)
        if changed and directory.put(name, content):
            raise PathRefused(
                f"{directory.path / name} does not have the content that was written",
                remedy=f"find out which other program writes there: `ls -l {directory.path}`",
            )
    return changed


def withdraw(cdi_dir: Path, files: Collection[str]) -> None:
    """Delete these files, as far as they are there. Raises PathRefused. Blocks on the disk."""
    if not files or not os.path.lexists(cdi_dir):
        return
    with OpenDirectory.opened(cdi_dir, make=False, remedies=_REMEDIES) as directory:
        for name in files:
            directory.remove(name)


def file_names(cdi_dir: Path) -> tuple[str, ...]:
    """Of all files in it, none where it is not there. Raises PathRefused. Blocks on the disk."""
    if not os.path.lexists(cdi_dir):
        return ()
    with OpenDirectory.opened(cdi_dir, make=False, remedies=_REMEDIES) as directory:
        return directory.names()


# --- the toolkit's --------------------------------------------------------------------------------

_Mark = tuple[
    Path, int, int, int
]  # path, inode, change time and size, which differ for new content


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
        raise NoToolkitEdits(
            f"no CDI document in {where} has containerEdits for {TOOLKIT_KIND}, so containers "
            f"would get a GPU without its driver's libraries{found}",
            remedy="nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
        )


def _toolkit_edits(path: Path) -> Edits | None:
    """None where the file is about other devices, or has no edits for all of them."""
    text = read_own_file(path, LARGEST)
    if TOOLKIT_KIND.encode() not in text:
        return None
    document: Value = read_tree(text, most_nodes=_MOST_NODES).value
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
