"""Tries every configuration of mig-parted's default file on every simulated board.

    python tools/try_default_configurations.py > tests/data/default_configurations.csv

Prints a table: ● applied, and found so by the other process; refused with nothing changed, since
m no GPU of the node matches or none has MIG, p the card has no such profile, f the layout does not
fit. Each configuration is applied by `nodeagent apply`; what is then there is judged by a second
process running `nodeagent assert` on the same node. A configuration that is refused must have
changed nothing.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import yaml

from nodeagent.cli import main
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.simulation import known_boards

DOCUMENT = Path(__file__).parent.parent / "examples" / "mig-parted" / "config.yaml"

SIGNS = {
    "applied": "●",
    "UnknownProfile": "p",
    "NotMigCapable": "m",
    "UnknownDevice": "m",
    "DoesNotFit": "f",
}


@dataclass(frozen=True)
class Trial:
    """How one configuration ended on one board."""

    board: str
    configuration: str
    result: str


def run(*arguments: str) -> tuple[int, str]:
    """One command's exit code and standard output."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = main(list(arguments))
    return code, out.getvalue()


def configurations() -> list[str]:
    """The names in the default file."""
    return list(yaml.safe_load(DOCUMENT.read_text())["mig-configs"])


def try_all(board: str, names: Sequence[str], other: ProcessPoolExecutor) -> list[Trial]:
    """Every configuration on one node of two such cards, one after the other.

    `other` runs the asserts. Raises RuntimeError when a configuration ends half-done.
    """
    with tempfile.TemporaryDirectory() as directory:
        state = ("--state", f"{directory}/node.json")
        run("export", "--simulate", f"{board}:2", *state)
        return [_try(board, name, state, other) for name in names]


def _try(board: str, name: str, state: tuple[str, str], other: ProcessPoolExecutor) -> Trial:
    document = ("-f", str(DOCUMENT), "-c", name, *state)
    before = run("export", *state)
    code, out = run("apply", *document, "--reset", "whenIdle", "-o", "json")
    is_so = other.submit(run, "assert", *document).result()[0]
    if code == ExitCode.DONE:
        _insist(is_so == ExitCode.DONE, f"{board} {name}: said to be applied, but is not so")
        return Trial(board, name, "applied")
    _insist(is_so != ExitCode.DONE, f"{board} {name}: refused, but found to be so")
    _insist(run("export", *state) == before, f"{board} {name}: refused, but changed something")
    problems = json.loads(out)["problems"]
    return Trial(board, name, problems[0]["code"])


def _insist(condition: bool, otherwise: str) -> None:
    if not condition:
        raise RuntimeError(otherwise)


def table(trials: Sequence[Trial]) -> Iterator[list[str]]:
    """A row for each configuration, a column for each board."""
    boards = list(dict.fromkeys(trial.board for trial in trials))
    signs = {(t.board, t.configuration): SIGNS[t.result] for t in trials}
    yield ["configuration", *boards]
    for name in dict.fromkeys(trial.configuration for trial in trials):
        yield [name, *(signs[board, name] for board in boards)]


if __name__ == "__main__":
    with ProcessPoolExecutor(1) as second_process:
        found = []
        for known in known_boards():
            found += try_all(known.name, configurations(), second_process)
            print(f"{known.name} done", file=sys.stderr)
    csv.writer(sys.stdout, lineterminator="\n").writerows(table(found))
