"""The file in which a simulated node survives the process and is shared with others.

The file is replaced as a whole, so readers need no lock. Who changes something holds the lock
beside it, reads what others wrote meanwhile, and writes at once. The lock file also counts the
changes, in memory that all processes share: before every call a look at it shows, without asking
the kernel, whether there is something to read.
"""

import fcntl
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import msgspec

from nodeagent.errors import NodeagentError
from nodeagent.simulation.state import NodeState

STATE_VARIABLE = "NODEAGENT_SIMULATED_STATE"  # names the file to the stand-in for nvidia-smi
_HERE = -100  # AT_FDCWD
_RENAME_EXCHANGE = 2

_COUNTER = 8  # bytes


def directory_beside(state: Path) -> Path:
    """Where a simulated node with this state file keeps all that is MPS: `programs_in` it the
    stand-ins, in `run` what its daemons have in run.dir on a real node.
    """
    state = state.absolute()
    return state.with_name(f"{state.name}.mps")


class StateFile:
    """One such file. Not safe for several threads: the node's lock guards it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen = b""
        self._content = b""
        self._session = False
        try:
            self._lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            if os.fstat(self._lock).st_size < _COUNTER:
                os.ftruncate(self._lock, _COUNTER)
            self._counter = mmap.mmap(self._lock, _COUNTER)
        except OSError as error:
            raise NodeagentError(
                f"the state of the simulated node cannot be kept in {path}: {error.strerror}",
                remedy="name a file in a folder that exists and may be written",
            ) from error

    def close(self) -> None:
        """Give back the lock file. A second time does nothing."""
        if self._lock >= 0:
            self._counter.close()
            os.close(self._lock)
            self._lock = -1

    @contextmanager
    def locked(self) -> Iterator[None]:
        """No other process changes the file meanwhile."""
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def stale(self) -> bool:
        """Whether another process has written since."""
        return self._counter[:] != self._seen

    def read(self) -> NodeState | None:
        """The content, None when there is no file; raises NodeagentError."""
        seen = self._counter[:]  # read before the file: a write in between is then seen next time
        try:
            content = self.path.read_bytes()
            state = msgspec.json.decode(content, type=NodeState)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self.broken(error.strerror or "unreadable") from error
        except (msgspec.ValidationError, NodeagentError) as error:
            raise self.broken(str(error)) from error
        except (msgspec.DecodeError, RecursionError) as error:
            raise self.broken("it is not JSON") from error
        self._seen, self._content = seen, content
        return state

    def write(self, state: NodeState) -> None:
        """Replace the file where this is another state; raises NodeagentError."""
        content = msgspec.json.encode(state) + b"\n"
        if content == self._content:
            return
        new = Path(f"{self.path}.tmp")  # the lock is held
        try:
            new.write_bytes(content)
            _put(new, self.path)
        except OSError as error:
            with suppress(OSError):
                new.unlink()
            raise NodeagentError(
                f"the state of the simulated node cannot be written to {self.path}: "
                f"{error.strerror}"
            ) from error
        self._content = content
        count = int.from_bytes(self._counter[:], "little") + 1
        self._seen = self._counter[:] = count.to_bytes(_COUNTER, "little")

    def broken(self, why: str) -> NodeagentError:
        """The error for content that cannot be used."""
        return NodeagentError(
            f"the file {self.path} is not the state of a simulated node: {why}",
            remedy="remove it or name another",
        )

    # --- who has the library open -------------------------------------------------------------

    def open_session(self) -> None:
        """Mark this process as one that has NVML initialised; its end takes the mark away."""
        fcntl.lockf(self._lock, fcntl.LOCK_SH, 1)
        self._session = True

    def close_session(self) -> bool:
        """Take the mark away; whether no other process has one."""
        self._session = False
        return not self.others_open()

    def others_open(self) -> bool:
        """Whether another process has NVML initialised."""
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        except OSError:
            alone = False
        else:
            alone = True
        fcntl.lockf(self._lock, fcntl.LOCK_SH if self._session else fcntl.LOCK_UN, 1)
        return not alone


def _put(new: Path, path: Path) -> None:
    """Let `path` be what `new` is, at one moment.

    ext4 writes a file out to disk when it is renamed onto another, which takes milliseconds and
    which a simulation does not need. Exchanging the two is as atomic, and does not; it fails where
    one does not exist, or the kernel, the C library or the file system cannot do it.
    """
    exchange, names = _renameat2(), (os.fsencode(new), os.fsencode(path))
    if exchange and exchange(_HERE, names[0], _HERE, names[1], _RENAME_EXCHANGE) == 0:
        new.unlink()
    else:
        new.replace(path)


@cache
def _renameat2() -> Callable[..., int] | None:
    import ctypes  # pynvml has loaded it, where there is pynvml at all

    return getattr(ctypes.CDLL(None), "renameat2", None)
