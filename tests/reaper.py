"""Whatever tests started ends with their run, also where the run is killed.

Daemons leave their parents, so they become children of a process that waits for them: a subreaper
(prctl(2)) between the process that was started and the one that runs the tests. It is in a session
of its own, so that a signal to the run's process group does not reach it.
"""

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

PRESENT = "TESTS_HAVE_A_REAPER"  # the pid of the one that the tests run under
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_FORWARDED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
_PARENT_ENDED = signal.SIGUSR1
_failures = -1  # a file in memory: what the runner writes there is left where it is killed


def record_failure(test: str) -> None:
    """For the process that was started, which names them where the run is ended before its end."""
    if _failures >= 0:
        os.write(_failures, f"{test}\n".encode())


def forget_failures() -> None:
    if _failures >= 0:
        os.ftruncate(_failures, 0)


def run_below_reaper() -> None:
    """Return in a grandchild of this process, which itself waits and ends as the grandchild did."""
    global _failures  # noqa: PLW0603  # one for each process that runs tests
    if PRESENT in os.environ:
        return
    _failures = os.memfd_create("failures")
    sys.stdout.flush()
    sys.stderr.flush()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, _PARENT_ENDED, *_FORWARDED})
    started = os.getpid()
    known, tell = os.pipe()
    if (reaper := os.fork()) != 0:
        os.close(tell)
        _stand_for(reaper, runner=int(os.read(known, 20)))
    os.close(known)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _prctl(_PR_SET_PDEATHSIG, _PARENT_ENDED)
    os.environ[PRESENT] = str(os.getpid())
    if (runner := os.fork()) != 0:
        os.setsid()
        os.write(tell, str(runner).encode())
        _reap_until_the_end(runner, started)
    os.close(tell)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _stand_for(reaper: int, *, runner: int) -> NoReturn:
    """Act for the tests' process: pass signals on to it, and end as it does."""
    while (heard := signal.sigwaitinfo({signal.SIGCHLD, *_FORWARDED})).si_signo != signal.SIGCHLD:
        if heard.si_code <= 0:  # a process sent it; a terminal's goes to the tests by itself
            with suppress(ProcessLookupError):
                os.kill(runner, heard.si_signo)
    status = os.waitpid(reaper, 0)[1]
    if failed := os.pread(_failures, 1 << 20, 0).decode():
        sys.stderr.write(f"\nThe run was ended. Failed so far:\n{failed}")
        sys.stderr.flush()
    _end_as(status)


def _reap_until_the_end(runner: int, started: int) -> NoReturn:
    """Wait for orphans, as init does, until the tests or the process started has ended."""
    while os.getppid() == started:
        signal.sigwaitinfo({signal.SIGCHLD, _PARENT_ENDED})
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0] not in {0, runner}:
                pass
            if ended[0] == runner:
                _end_children()
                _end_as(ended[1])
    _end_children()
    os._exit(1)


def _end_children() -> None:
    """Kill all children, then their orphans, until there are none."""
    with suppress(ChildProcessError):
        while True:
            for pid in Path("/proc/self/task", str(os.getpid()), "children").read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            os.waitpid(-1, 0)


def _end_as(status: int) -> NoReturn:
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


def _prctl(option: int, value: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
