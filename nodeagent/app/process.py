"""The agent as a process: its log, its place as the only writer, and the signals that end it.

At SIGTERM the running steps finish and the rest is left to the next start; a second signal ends the
process at once.
"""

import asyncio
import os
import resource
import signal
from asyncio import sslproto
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from nodeagent.app.logs import configure_logging
from nodeagent.app.paths import Paths, Simulation
from nodeagent.app.plan_service import SettingsFile
from nodeagent.app.sd_notify import Notifier
from nodeagent.app.service import Agent
from nodeagent.catalogue import section
from nodeagent.cluster.client.presence import runs_as
from nodeagent.settings import Settings

log = structlog.get_logger(__name__)

_NUMBERS = (signal.SIGTERM, signal.SIGINT)
_OPEN_FILES = 16_384  # as the units have it
# Kinds of words that are read before no file can be opened, and not in the event loop.
WORDS = (
    *("agent", "credentials", "directory", "error", "manager", "offence", "otherUse", "problem"),
    *("state", "systemd", "unplanned"),
)
_TLS_BUFFER = 16 * 1024  # bytes; TLS sends no more in one record


def run(
    settings: Settings,
    *,
    settings_file: SettingsFile | None = None,
    simulation: Simulation | None = None,
    on_ready: Callable[[], None] = lambda: None,
) -> None:
    """Run the agent until a signal ends it; raises NodeagentError when it cannot go on.

    A change of `settings_file` is reported. `on_ready` is called when the API answers and the first
    reconciliation is over, or the driver hangs.
    """

    async def agent() -> None:
        made = Agent(settings, settings_file, places, notifier, lock, on_ready=on_ready)
        with stopped_by_signals(made.stop):
            await made.run()

    _raise_open_files()
    for kind in WORDS:
        section(kind)
    # Each connection has one, from before its handshake. asyncio's 256 KiB are 56 MiB for a peer.
    sslproto.SSLProtocol.max_size = _TLS_BUFFER
    notifier = Notifier.take_from(os.environ)
    configure_logging(form=settings.log.format, level=settings.log.level)
    for problem in settings.dra.without_effect(in_cluster=bool(runs_as(settings.kubernetes))):
        log.warning(problem.message, remedy=problem.remedy)
    places = Paths(settings, simulation)
    places.make_state_directory()
    lock = places.writer_lock()
    try:
        if lock:
            lock.take()
        asyncio.run(agent())
    except BaseExceptionGroup as group:
        raise _first_of(group) from None
    finally:
        if lock:
            lock.release()


def _raise_open_files() -> None:
    """Raise the soft limit, often 1024, up to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What ended the agent: the first failure, since the other tasks are cancelled for it."""
    first = group.exceptions[0]
    return _first_of(first) if isinstance(first, BaseExceptionGroup) else first


@contextmanager
def stopped_by_signals(stop: Callable[[str], None]) -> Iterator[None]:
    """Call `stop` in the event loop with the first signal's name; the next ends the process."""
    loop = asyncio.get_running_loop()

    def received(number: signal.Signals) -> None:
        stop(number.name)
        for one in _NUMBERS:
            loop.remove_signal_handler(one)
            signal.signal(one, signal.SIG_DFL)

    for number in _NUMBERS:
        loop.add_signal_handler(number, received, number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _NUMBERS)  # the program's start blocks them
    try:
        yield
    finally:
        for number in _NUMBERS:
            loop.remove_signal_handler(number)
