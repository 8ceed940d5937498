"""Tries every configuration of mig-parted's default file on every simulated board.

    python tools/try_default_configurations.py > docs/default-configurations.md

Each configuration is applied by `nodeagent apply`; what is then there is judged by a second
process running `nodeagent assert` on the same node. A configuration that is refused must have
changed nothing.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
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
LEGEND = """\
- ● applied, and found so by `nodeagent assert` in another process
- m refused: the configuration matches no GPU of this node, or none with MIG; nothing changed
- p refused: the card has no such profile; nothing changed
- f refused: the layout does not fit on the card; nothing changed
"""


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


def page(trials: Sequence[Trial]) -> str:
    """The table as Markdown."""
    boards = list(dict.fromkeys(trial.board for trial in trials))
    signs = {(t.board, t.configuration): SIGNS[t.result] for t in trials}
    counts = Counter(SIGNS[t.result] for t in trials)
    lines = [
        "# mig-parted's default configurations on every simulated board",
        "",
        f"{len(trials)} trials, each on a node of two cards: {counts['●']} applied and verified,",
        f"{counts['m'] + counts['p'] + counts['f']} refused with nothing changed.",
        "Made by `python tools/try_default_configurations.py`; a test repeats part of it.",
        "",
        LEGEND,
        "| configuration | " + " | ".join(boards) + " |",
        "|---" * (len(boards) + 1) + "|",
    ]
    names = dict.fromkeys(trial.configuration for trial in trials)
    lines += [f"| {name} | " + " | ".join(signs[b, name] for b in boards) + " |" for name in names]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    with ProcessPoolExecutor(1) as second_process:
        found = []
        for known in known_boards():
            found += try_all(known.name, configurations(), second_process)
            print(f"{known.name} done", file=sys.stderr)
    sys.stdout.write(page(found))
