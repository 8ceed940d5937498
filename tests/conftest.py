"""What holds for every test: nothing leaks, nothing reaches the network, no setting comes in.

The guards compare what is alive before and after a test, so they cost well under a millisecond
each.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import gc
import inspect
import logging
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_timeout  # type: ignore[import-untyped]  # it ships no types
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import settings

import nodeagent.cluster.kubelet  # noqa: F401  # before the stand-in kubelet's gRPC, as in the agent
from nodeagent.simulation import SimulatedNode, simulated
from tests.folders import open_folder
from tests.machine_load import stretched
from tests.reaper import PRESENT, forget_failures, record_failure, run_below_reaper
from tests.virtual_time import VirtualTimeLoop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping

    from _pytest.terminal import TerminalReporter

    from tests.simulated_cluster.real_api_server import RealApiServer

# A deadline for each example would make a rule depend on how busy the machine is.
settings.register_profile("nodeagent", deadline=None)
settings.load_profile("nodeagent")

GRACE = 60.0  # seconds that threads and processes get to end by themselves after a test
STUCK = 60.0  # seconds after a test's time limit at which it counts as stuck for ever


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: no garbage collection goes through it
    again, of which the tests that count threads and descriptors make many.
    """
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main() -> None:
    """Processes that tests start end with the run, however it ends."""
    # Nothing here trusts the system's authorities, and to load them takes 0.1 s for each context.
    os.environ["SSL_CERT_FILE"] = os.devnull
    run_below_reaper()


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop of a test: one with virtual time where it is marked so."""
    is_virtual = item.get_closest_marker("virtual_time") is not None
    return {"loop": VirtualTimeLoop if is_virtual else asyncio.new_event_loop}


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: pytest_timeout.Settings) -> bool | None:
    """A test's limit, of the time in which this machine could have worked for it alone. Where even
    the limit's exception does not get out, all stacks are shown and the run ends.
    """
    if settings.method != "signal":
        return None
    began = time.monotonic()

    def arm(seconds: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        file = item.config.stash[fault_handler_stderr_fd_key]
        faulthandler.dump_traceback_later(seconds + stretched(STUCK), exit=True, file=file)

    def expire(signum: int, frame: object) -> None:
        __tracebackhide__ = True
        left = stretched(settings.timeout) - (time.monotonic() - began)
        arm(max(left, 0.0))
        if left <= 0:
            pytest_timeout.timeout_sigalrm(item, settings)

    signal.signal(signal.SIGALRM, expire)
    arm(settings.timeout)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_cancel_timer() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)
    faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """The limit anew for the teardown: pytest-timeout ends it with the first failure of a test."""
    if isinstance(node, pytest.Item):
        settings = pytest_timeout._get_item_settings(node)
        if settings.timeout:
            pytest_timeout_set_timer(node, settings)


# --- what is seen of a failure ------------------------------------------------------------------


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Show a failure when it happens, and not again at the end, which may not come."""
    reporter: TerminalReporter | None = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and config.option.tbstyle != "no":
        config.pluginmanager.register(_AtOnce(reporter))


class _AtOnce:
    def __init__(self, reporter: TerminalReporter) -> None:
        self._reporter = reporter

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._reporter.ensure_newline()
            self._reporter.write_sep("_", f"{report.nodeid} ({report.when})", red=True)
            self._reporter._outrep_summary(report)
            self._reporter.flush()  # the next thing may hang, until the process is ended
            record_failure(report.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(
        self, config: pytest.Config
    ) -> Generator[None, tuple[str, str, object], tuple[str, str, object]]:
        """No letter for each test where that is not wanted: the part's last line has the count."""
        category, letter, word = yield
        if config.get_verbosity(pytest.Config.VERBOSITY_TEST_CASES) < -1:
            return category, "", ""
        return category, letter, word

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        session.config.option.tbstyle = "no"
        forget_failures()


# --- what a test may leave behind: nothing ------------------------------------------------------


def _children() -> set[int]:
    """Process ids of this process' children, zombies included."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread ended meanwhile
            found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


def _describe(pid: int) -> str:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        command = "gone meanwhile"
    return f"{pid} ({command or 'zombie'})"


def _library_state() -> tuple[object, int]:
    """Which object stands behind pynvml, and how often it was initialised."""
    pynvml = sys.modules.get("pynvml")
    if pynvml is None:
        return None, 0
    library = pynvml.nvmlLib
    # Once loaded, the system's library stays; only a stand-in must be taken away again.
    return None if isinstance(library, ctypes.CDLL) else library, pynvml._nvmlLib_refcount


class _Unretrieved(logging.Handler):
    """What asyncio says of futures collected with an unretrieved failure, and of pending tasks."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []
        logging.getLogger("asyncio").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "never retrieved" in text or "was destroyed" in text:
            self.found.append(text)


_unretrieved = _Unretrieved()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Fail a test that leaves a failure in a future, when its fixtures and loop have ended.

    A garbage collection would find it in the midst of another test. What is left after this one
    stays: to go through all that earlier tests have left takes 80 ms.
    """
    yield
    if isinstance(item, pytest.Function):
        item.funcargs.clear()
    gc.collect()
    gc.freeze()
    found, _unretrieved.found = _unretrieved.found, []
    assert not found, f"the test left what was never retrieved: {found}"


@pytest.fixture(autouse=True)
def _nothing_leaks() -> Iterator[None]:
    """Fail a test that leaves a thread, a child process or a changed pynvml."""
    threads, children, library = set(threading.enumerate()), _children(), _library_state()
    yield
    deadline = time.monotonic() + stretched(GRACE)
    while True:
        new_threads = [t for t in threading.enumerate() if t not in threads]
        new_children = _children() - children
        if not (new_threads or new_children) or time.monotonic() > deadline:
            break
        time.sleep(0.005)
    assert not new_threads, f"the test left threads: {new_threads}"
    assert not new_children, f"the test left processes: {[_describe(p) for p in new_children]}"
    assert library == _library_state(), "the test left pynvml with another library or initialised"


@pytest.fixture(autouse=True)
def _no_task_leaks(_nothing_leaks: None, request: pytest.FixtureRequest) -> None:
    """Fail an async test that leaves a task; set up first, so it looks last."""
    if isinstance(request.node, pytest.Function) and _is_async(request.node.function):
        request.getfixturevalue("_task_guard")


def _is_async(function: Any) -> bool:
    inner = getattr(getattr(function, "hypothesis", None), "inner_test", function)
    return inspect.iscoroutinefunction(inner)


@pytest.fixture
async def _task_guard() -> AsyncIterator[None]:
    yield
    if left := asyncio.all_tasks() - {asyncio.current_task()}:
        # One that is ending may do so: gRPC's own tasks wait for its thread, which waits for a CPU.
        _, left = await asyncio.wait(left, timeout=stretched(5))
    assert not left, f"the test left tasks: {left}"


# --- what reaches a test from outside: nothing --------------------------------------------------

# Where things are, and what the run itself has set.
_KEPT = {
    *("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "LD_LIBRARY_PATH", "KUBEBUILDER_ASSETS"),
    *("VIRTUAL_ENV", "PYTHONPATH", "PYTHONPYCACHEPREFIX", "PYTHONHASHSEED"),
    *("SSL_CERT_FILE", PRESENT),
}
_KEPT_PREFIXES = ("NODEAGENT_TEST_", "PYTEST_", "COV_", "COVERAGE_", "GRPC_")


@pytest.fixture(autouse=True, scope="session")
def _no_settings_from_outside() -> Iterator[None]:
    """Whatever the developer, a container or systemd has set must not change what a test sees:
    settings, proxies, languages, time zones, terminals, the mask of files' modes.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ.keys() - _KEPT:
            if not name.startswith(_KEPT_PREFIXES):
                patch.delenv(name)
        time.tzset()
        umask = os.umask(0o022)
        yield
        os.umask(umask)


@pytest.fixture(autouse=True)
def _logging_starts_anew() -> Iterator[None]:
    """An agent in this process sets up logging for it; the next test must not write to its end."""
    thread_failed = threading.excepthook
    yield
    if logs := sys.modules.get("nodeagent.app.logs"):
        root = logging.getLogger()
        for handler in [h for h in root.handlers if isinstance(h, logs.LibraryLines)]:
            root.removeHandler(handler)
        logging.captureWarnings(capture=False)
        threading.excepthook = thread_failed
    structlog = sys.modules.get("structlog")
    if structlog is None or not structlog.is_configured():
        return
    structlog.reset_defaults()
    for name, module in list(sys.modules.items()):
        if name.startswith("nodeagent.") and hasattr(module, "log"):
            vars(module.log).pop("bind", None)  # the logger that was kept from its first use


@pytest.fixture(autouse=True, scope="session")
def _interrupts_arrive() -> None:
    """A shell starts background jobs deaf to SIGINT, and programs that tests start inherit it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def _no_network() -> Iterator[None]:
    real = socket.socket.connect

    def connect(self: socket.socket, address: Any) -> None:
        if self.family in {socket.AF_INET, socket.AF_INET6}:
            host = str(address[0])
            assert host == "::1" or host.startswith("127."), f"a test connects to {host}"
        real(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", connect)
        yield


# --- what many tests begin with -----------------------------------------------------------------


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder that every user may pass, and with a path short enough for sockets."""
    with open_folder() as folder:
        yield folder


@pytest.fixture
def node() -> Iterator[SimulatedNode]:
    """Two cards that switch MIG at once."""
    with simulated("h100-80gb:2") as node:
        yield node


# --- tests that need a real API server ----------------------------------------------------------


@pytest.fixture(scope="session")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealApiServer | None]:
    """With its etcd, one for all tests of a run; None where there is none. It takes seconds."""
    from tests.simulated_cluster.real_api_server import RealApiServer, why_not

    if why_not():
        yield None
        return
    with RealApiServer(tmp_path_factory.mktemp("cluster")).running() as server:
        yield server


# --- tests that need a driver -------------------------------------------------------------------


@cache
def _why_no_nvml() -> str:
    """Why tests marked `nvml` cannot run here; empty when they can."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        return f"no driver library: {error}"
    code = library.nvmlInit_v2()
    if code != 0:
        return f"the driver library does not initialise: NVML code {code}"
    library.nvmlShutdown()
    return ""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a driver or a GPU that may be changed where there is none."""
    if (item.get_closest_marker("nvml") or item.get_closest_marker("gpu")) and _why_no_nvml():
        pytest.skip(_why_no_nvml())
    if item.get_closest_marker("gpu") and not os.environ.get("NODEAGENT_TEST_GPUS"):
        pytest.skip("NODEAGENT_TEST_GPUS names no GPU (by UUID) that tests may change")
