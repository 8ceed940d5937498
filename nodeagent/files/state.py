"""Files of the agent's own state: written whole, read with every check, set aside when unusable.

A state file begins with one line that names its kind, its version and a checksum; what follows is
text that people can read:

    # nodeagent health 2 sha256:6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b
"""

import errno
import hashlib
import os
import re
import stat
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

from nodeagent.catalogue import section
from nodeagent.errors import NodeagentError
from nodeagent.structs import Struct

T = TypeVar("T")

_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_MARK = b"# nodeagent "
_HEADER = rb"# nodeagent ([a-z-]{1,40}) ([1-9][0-9]{0,5}) sha256:[0-9a-f]{64}"
_MAX_HEADER = 128  # bytes
_KINDS = {
    stat.S_ISLNK: "a symbolic link",
    stat.S_ISDIR: "a directory",
    stat.S_ISFIFO: "a named pipe",
    stat.S_ISSOCK: "a socket",
}


class StateUnusable(NodeagentError):
    """A state file is there and cannot be used; `reason` is the second half of a sentence.

    `newer` is the content of one that is whole, but of a newer version; else None.
    """

    def __init__(self, path: Path, reason: str, newer: bytes | None = None) -> None:
        super().__init__(f"{path} cannot be used: {reason}")
        self.path = path
        self.reason = reason
        self.newer = newer


class StateFormat(Struct, Generic[T], frozen=True):
    """How one kind of state file is written and read.

    `largest`: bytes of the content. Whatever `decode` raises means that the content is not usable.
    A change of the content that this version cannot read takes the next number as its `version`.
    """

    kind: str
    version: int
    largest: int
    encode: Callable[[T], bytes]
    decode: Callable[[bytes], T]


def read_state(path: Path, form: StateFormat[T]) -> T | None:
    """The value kept, None where there is no file; raises StateUnusable. Changes nothing.

    Blocks on the disk, but not on a named pipe or a device in the place of the file.
    """
    try:
        text = read_own_file(path, _MAX_HEADER + form.largest)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateUnusable(path, error.strerror or str(error)) from error
    content = _checked(path, form, text)
    try:
        return form.decode(content)
    except Exception as error:  # whatever is in a file, reading it must not end the agent
        reason = f"its content is not understood ({type(error).__name__}: {error!s:.200})"
        raise StateUnusable(path, reason) from error


def write_state(path: Path, form: StateFormat[T], value: T) -> None:
    """Put `value` in place of the file; its directory exists. Raises OSError. Blocks."""
    content = form.encode(value)
    if len(content) > form.largest:  # it would be refused when it is read
        raise OSError(f"{len(content)} bytes are more than the {form.largest} that are read")
    replace_file(path, _header(form.kind, form.version, content), content)


def set_aside(path: Path) -> Path:
    """Rename what cannot be used to a name beside it, in the place of what was there before; gives
    that name. Raises OSError where one of the two is a directory and the other is none, or is not
    empty: a directory never gives way.
    """
    return path.replace(_aside(path))


def replace_file(path: Path, *content: bytes) -> None:
    """Put `content` in place of the file, readable for its owner alone; its directory exists.

    After a crash there is all of the new content, after a power cut that or all of the old, if it
    was written in the last seconds: what it is about ends with the power, or is read anew. One
    process and one thread writes a file at a time. Raises OSError, with the old content still
    there. Blocks on the disk.
    """
    temporary = path.with_name(f".{path.name}.new")  # one name, so that crashes leave one file
    temporary.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
            file.writelines(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        error.filename = str(path)  # a write knows none
        raise


class StateFile(Generic[T]):
    """One state file, or none (`path` None): then nothing is kept.

    `problem` is what is wrong with it now. The methods block: call them in a thread, one at a time.
    """

    def __init__(self, path: Path | None, form: StateFormat[T]) -> None:
        self.path = path
        self._form = form
        self._unusable: NodeagentError | None = None
        self._aside: Path | None = None  # where an unusable file lies now
        self._unwritten: NodeagentError | None = None
        self._value: T | None = None  # as it is in the file, or was before that was deleted
        self._writing = threading.Lock()

    @property
    def _words(self) -> Mapping[str, str]:
        words: Mapping[str, str] = section("state")[self._form.kind]
        return words

    @property
    def problem(self) -> NodeagentError | None:
        return self._unwritten or self._unusable

    def read(self) -> T | None:
        """The value kept, None where there is none or it cannot be used; changes no file."""
        if self.path is None:
            return None
        try:
            value = read_state(self.path, self._form)
        except StateUnusable as error:
            message = f"{error.message}; {self._words['lost']}"
            self._unusable = NodeagentError(message, remedy=self._words["remedy"])
            return None
        self._unusable = None
        return value

    def load(self) -> T | None:
        """Read it for writing: a file that cannot be used is set aside.

        What was set aside in an earlier life is a problem until it is removed, too: what was lost
        with it is lost still, whether or not a new file was written since.
        """
        value = self._value = self.read()
        if self.path is None:
            return value
        if self._unusable is not None:
            with suppress(OSError):  # which the problem says; `save` tries again
                self._lies_at(set_aside(self.path), self._unusable.message)
        elif os.path.lexists(earlier := _aside(self.path)):
            self._lies_at(
                earlier, f"an earlier {self.path} could not be used; {self._words['lost']}"
            )
        return value

    def save(self, value: T) -> None:
        """Keep this value instead; raises NodeagentError, with what was there still there."""
        with self._writing:
            self._write(value)
            self._value = value

    def _write(self, value: T) -> None:
        if self.path is None:
            return
        try:
            if self._unusable is not None and self._aside is None:
                if os.path.lexists(self.path):
                    self._lies_at(set_aside(self.path), self._unusable.message)
                else:
                    self._unusable = None
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_state(self.path, self._form, value)
        except (OSError, ValueError) as error:  # ValueError: of what is no JSON, such as NaN
            why = error.strerror or error if isinstance(error, OSError) else error
            self._unwritten = NodeagentError.of(
                "stateNotKept",
                what=self._words["what"],
                path=self.path,
                why=why,
                lost=self._words["lost"],
            )
            raise self._unwritten from error
        self._unwritten = None

    def review(self) -> None:
        """Clear the problem of a file that was set aside once it was removed; write the file again
        where it was deleted. Raises nothing; may be called while another method is.
        """
        if self._aside and not os.path.lexists(self._aside):
            self._unusable = self._aside = None
        with self._writing, suppress(NodeagentError):  # which the problem says
            if self.path and self._value is not None and not os.path.lexists(self.path):
                self._write(self._value)

    def _lies_at(self, aside: Path, message: str) -> None:
        self._aside = aside
        remedy = f"{self._words['remedy']}; then rm {aside}"
        self._unusable = NodeagentError(f"{message}; it is now {aside}", remedy=remedy)


# --- one file -------------------------------------------------------------------------------------


def _aside(path: Path) -> Path:
    return path.with_name(f"{path.name}.unusable")


def _header(kind: str, version: int, content: bytes) -> bytes:
    signed = b"%s %d" % (kind.encode(), version)
    digest = hashlib.sha256(signed + b"\n")
    digest.update(content)  # which may be large, and so is copied nowhere
    return b"# nodeagent %s sha256:%s\n" % (signed, digest.hexdigest().encode())


def _not_regular(mode: int) -> str:
    found = next((name for of_kind, name in _KINDS.items() if of_kind(mode)), "a device")
    return f"it is {found} and not a regular file"


def _checked(path: Path, form: StateFormat[T], text: bytes) -> bytes:
    """The content; raises StateUnusable."""
    if not text.startswith(_MARK):
        raise StateUnusable(path, "its first line is missing")
    header, newline, content = text.partition(b"\n")
    found = re.fullmatch(_HEADER, header)
    if found is None or not newline:
        raise StateUnusable(path, "its first line is damaged")
    kind, version = found[1].decode(), int(found[2])
    if header + newline != _header(kind, version, content):
        raise StateUnusable(path, "its checksum is not that of its content")
    if kind != form.kind:
        raise StateUnusable(path, f"it holds {kind} and not {form.kind}")
    if version > form.version:
        reason = f"a newer nodeagent wrote it (version {version}; this one reads {form.version})"
        raise StateUnusable(path, reason, content)
    if version < form.version:
        raise StateUnusable(path, f"version {version} of it is not read any more")
    return content


def read_own_file(path: Path, most: int) -> bytes:
    """A regular file of root's or this process' user, of at most so many bytes; raises OSError for
    anything else, a symbolic link too. Blocks on the disk alone.
    """
    try:
        text = _read(path, most + 1, _FLAGS | os.O_NOFOLLOW, own=True)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise OSError(_not_regular(path.lstat().st_mode)) from error
        raise
    if len(text) > most:
        raise OSError(f"it has more than {most} bytes")
    return text


def read_regular_file(path: Path, most: int) -> bytes:
    """The file's first `most` bytes; raises OSError also when it is no regular file. Blocks.

    Opened without waiting, so that a named pipe does not hang the agent.
    """
    return _read(path, most, _FLAGS, own=False)


def _read(path: Path, most: int, flags: int, *, own: bool) -> bytes:
    descriptor = os.open(path, flags)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(_not_regular(found.st_mode))
        if own and found.st_uid not in (0, os.geteuid()):
            raise OSError(f"it belongs to uid {found.st_uid} and not to uid {os.geteuid()}")
        # `open` refuses the descriptor of a directory and then leaves it open.
        with open(descriptor, "rb", closefd=False) as file:
            text = file.read(most)
        if text is None:  # such as /proc/kmsg, a regular file by its kind
            raise OSError("reading it would wait, as for no regular file")
        return text
    finally:
        os.close(descriptor)
