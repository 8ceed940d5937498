"""Runs of tests on a mutant, each in a fork: which fail, and whether that repeats."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import hypothesis
import pytest

OUTPUT: Final = ".mutants-pytest"  # in a copy, what the last run of pytest printed


class Watch:
    """A pytest plugin: the quickest tests first, each with a limit; records times and failures.

    With `to_the_end`, files run in their own order, each until its first failure.
    """

    def __init__(self, times: Mapping[str, float], note: Path, *, to_the_end: bool) -> None:
        self._times = times
        self._note = note
        self._to_the_end = to_the_end
        self._taken: dict[str, float] = {}
        self._failed: dict[str, str] = {}  # by file: the test that failed first
        self._timed_out = False

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self._times:
            if not self._to_the_end:
                items.sort(key=lambda item: self._times.get(item.nodeid, 0.0))
            for item in items:
                limit = 10 + 20 * self._times.get(item.nodeid, 0.0)
                item.add_marker(pytest.mark.timeout(limit), append=False)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if file_of(item.nodeid) in self._failed:
            pytest.skip("this file has noticed the mutant")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._failed.setdefault(file_of(report.nodeid), report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid
        self._taken[name] = self._taken.get(name, 0.0) + report.duration
        if report.failed and file_of(name) not in self._failed:
            self._failed[file_of(name)] = name
            self._timed_out |= "Timeout (>" in report.longreprtext

    def pytest_sessionfinish(self) -> None:
        ours = str(self._note.parent)  # what is in the tree must be imported after it is changed
        specs = [getattr(module, "__spec__", None) for module in list(sys.modules.values())]
        modules = [s.name for s in specs if s and s.origin and not s.origin.startswith(ours)]
        found = {"times": self._taken, "failed": self._failed, "timed_out": self._timed_out}
        self._note.write_text(json.dumps({**found, "modules": modules}), encoding="utf-8")


def file_of(test: str) -> str:
    """The file of a test's id."""
    return test.partition("::")[0]


def run_tests(
    folder: Path,
    tests: Sequence[str],
    times: Mapping[str, float],
    limit: float,
    *,
    to_the_end: bool = False,
) -> tuple[int | None, dict[str, Any]]:
    """Pytest's exit code (None: stopped at the limit) and what `Watch` recorded."""
    note = folder / ".watch.json"
    note.unlink(missing_ok=True)
    watch = Watch(times, note, to_the_end=to_the_end)
    options = ["--continue-on-collection-errors"] if to_the_end else ["-x"]
    code = _wait(in_fork(lambda: _pytest(folder, [*options, *tests], watch)), limit)
    return code, json.loads(note.read_bytes()) if note.exists() else {}


def _pytest(folder: Path, arguments: Sequence[str], watch: Watch) -> int:
    os.chdir(folder)
    os.environ["PYTHONPATH"] = str(folder)  # for programs that tests start
    sys.path.insert(0, str(folder))
    with (folder / OUTPUT).open("wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    hypothesis.settings.register_profile(
        "mutants",
        derandomize=True,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],  # no shrinking
    )
    hypothesis.settings.load_profile("mutants")
    options = ["-q", "-m", "not full", "-p", "no:cacheprovider"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    return int(pytest.main([*options, *arguments], plugins=[watch]))


def in_fork(work: Callable[[], int]) -> int:
    """The id of a process that does this and ends with its result."""
    child = os.fork()
    if child:
        return child
    code = 3
    try:
        code = work()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _wait(child: int, limit: float) -> int | None:
    """Its exit code; None where it was killed at the limit."""
    process = os.pidfd_open(child)
    try:
        ended = select.select([process], [], [], limit)[0]
        if not ended:
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
    finally:
        os.close(process)
    return os.waitstatus_to_exitcode(status) if ended else None


def judge(folder: Path, tests: Sequence[str], times: Mapping[str, float]) -> str:
    """`killed`, `timeout` or `survived`; a failure that does not repeat is tried once more."""
    limit = 600 + 5 * sum(times.values())  # for what hangs outside a test; a test has its own
    for _ in range(2):
        code, noted = run_tests(folder, tests, times, limit)
        if code == 0:
            return "survived"
        failed = list(noted.get("failed", {}).values())
        if not failed or run_tests(folder, failed, times, limit)[0] != 0:
            return "timeout" if code is None or noted.get("timed_out") else "killed"
    return "survived"


def killers(
    folder: Path, tests: Sequence[str], times: Mapping[str, float]
) -> tuple[str, list[str]]:
    """What `judge` says, and the test files that fail, in the order of their names. A run that
    does not end, or that breaks off, is killed by none of them.
    """
    limit = 600 + 5 * sum(times.values())
    code, noted = run_tests(folder, tests, times, limit, to_the_end=True)
    if code == 0:
        return "survived", []
    failed = noted.get("failed", {})
    if code is None or not failed:
        return "timeout" if code is None else "killed", []
    again = run_tests(folder, list(failed.values()), times, limit, to_the_end=True)[1]
    repeated = sorted(failed.keys() & again.get("failed", failed).keys())
    if not repeated:
        return "survived", []
    return "timeout" if noted["timed_out"] else "killed", repeated
