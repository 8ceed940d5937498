"""Change the code in small ways, one at a time, and count how many of them the tests notice.

    python -m tools.mutants [--each 40] [--seed 11] [--at-most N] [--jobs 2] [--scratch DIR]

The table names subjects, their code and their tests. `--each` mutants are drawn of each subject,
the same ones for the same tree and seed. Each is written into a copy of the tree, where the
subject's tests run, the quickest first, until one fails. A failure counts only if it repeats.

Libraries are imported once; each run is a fork of this process. With `--scratch DIR` the copies and
the results stay there, and a later call goes on where an earlier one ended or was broken off, until
something in the tree changes. The subjects take turns, so a few mutants are some of each.

Which test files kill which mutants:

    python -m tools.mutants --subject mps --each 10 --jobs 1 --all [--json kills.json]
    python -m tools.mutants --subject mps --each 10 --all --tests tests/mps tests/acceptance

`--all` goes on after the first failure, with the other files, and ends with a table of the test
files: how many mutants each kills, how many no other file kills, the seconds that its tests take,
and whether it is in a small set that kills all of them. `--tests` replaces the subject's tests,
`--code` its code. `--seconds` begins no mutant later than that; a mutant takes a run of all these
tests. Subjects marked `named` in the table are only measured when `--subject` names them.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import math
import os
import random
import shutil
import sys
import tempfile
import time
import tomllib
import warnings
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, Final

from tools.mutant_reports import report, report_of_files
from tools.mutant_runs import (
    OUTPUT,
    file_of,
    in_fork,
    judge,
    killers,
    run_tests,
)
from tools.mutations import Mutant, candidates

TABLE: Final = Path(__file__).with_suffix(".toml")
NOT_COPIED: Final = (".git", ".venv*", ".local", ".hypothesis", "*_cache", "__pycache__")
# Imported before pytest has rewritten their asserts, or bound to threads: each run has its own.
NOT_SHARED: Final = {"pytest_asyncio", "pytest_timeout", "_hypothesis_pytestplugin", "grpc"}


def draw(seed: int, each: int, tree: Path, table: Mapping[str, Any]) -> list[Mutant]:
    """So many of each subject, the same ones each time; only what Python can compile."""

    def compiles(mutant: Mutant) -> bool:
        with suppress(SyntaxError), warnings.catch_warnings(action="ignore"):
            compile(mutant.applied_to((tree / mutant.path).read_bytes()), mutant.path, "exec")
            return True
        return False

    drawn: list[list[Mutant]] = []
    for subject, entry in table.items():
        if missing := [n for n in entry["code"] + entry["tests"] if not (tree / n).exists()]:
            sys.exit(f"{subject}: not in {tree}: {', '.join(missing)}")
        found = candidates(subject, tree, entry["code"])
        random.Random(f"{seed} {subject}").shuffle(found)  # noqa: S311  # a draw, not a secret
        drawn.append(list(islice(filter(compiles, found), each)))
    return [mutant for turn in zip_longest(*drawn) for mutant in turn if mutant is not None]


class Copies:
    """Copies of the tree in which mutants are tried, one for each job, and the results so far."""

    def __init__(
        self, scratch: Path, tree: Path, table: Mapping[str, Any], *, to_the_end: bool
    ) -> None:
        self._scratch = scratch
        self._tree = tree
        self._table = table
        self._to_the_end = to_the_end
        self._results = scratch / ("kills.jsonl" if to_the_end else "results.jsonl")
        self._start_anew_after_changes()

    def _start_anew_after_changes(self) -> None:
        """What was found of another tree says nothing of this one."""
        note, digest = self._scratch / "tree", _digest(self._tree, self._table)
        if note.exists() and note.read_text(encoding="ascii") == digest:
            return
        for copy in self._scratch.glob("[0-9]"):
            shutil.rmtree(copy)
        for old in [*self._scratch.glob("*.jsonl"), *self._scratch.glob("clean-*.json")]:
            old.unlink()
        self._scratch.mkdir(parents=True, exist_ok=True)
        note.write_text(digest, encoding="ascii")

    def results(self) -> dict[Mutant, tuple[str, list[str]]]:
        """`killed`, `timeout` or `survived`, and the test files that killed it where all ran."""
        if not self._results.exists():
            return {}
        noted = map(json.loads, self._results.read_text(encoding="utf-8").splitlines())
        return {
            Mutant(**line["mutant"]): (line["result"], line.get("killers", [])) for line in noted
        }

    def seconds(self) -> dict[str, float]:
        """What the tests of each file take together."""
        taken: dict[str, float] = {}
        for note in self._scratch.glob("clean-*.json"):
            for test, seconds in json.loads(note.read_bytes())["times"].items():
                taken[file_of(test)] = taken.get(file_of(test), 0.0) + seconds
        return taken

    def measure(self, mutants: Sequence[Mutant], jobs: int, until: float) -> None:
        """Judge these, and record each result at once; begin none later than `until`."""
        clean = {s: self._clean(s) for s in sorted({m.subject for m in mutants})}
        _share_libraries([name for noted in clean.values() for name in noted["modules"]])
        for subject, noted in clean.items():
            if not noted.get("checked"):
                result, failed = self._judge(subject, 0, noted["times"])
                if result != "survived":
                    what = ", ".join(failed)
                    sys.exit(f"{subject}: its tests fail without a change {what}\n{self._output()}")
            self._note(subject).write_text(json.dumps({**noted, "checked": True}), encoding="utf-8")

        def work(slot: int) -> int:
            for mutant in mutants[slot::jobs]:
                if time.monotonic() > until:
                    break
                self._try(mutant, slot, clean[mutant.subject]["times"])
            return 0

        workers = [in_fork(partial(work, slot)) for slot in range(jobs)]
        ended = [os.waitpid(worker, 0)[1] for worker in workers]
        if any(ended):
            sys.exit("a worker failed")

    def _copy(self, slot: int) -> Path:
        folder = self._scratch / str(slot)
        if not folder.exists():
            shutil.copytree(self._tree, folder, ignore=shutil.ignore_patterns(*NOT_COPIED))
        return folder

    def _note(self, subject: str) -> Path:
        return self._scratch / f"clean-{subject}.json"

    def _output(self) -> str:
        return (self._copy(0) / OUTPUT).read_text(encoding="utf-8")[-5000:]

    def _clean(self, subject: str) -> dict[str, Any]:
        """What `Watch` notes of a run without a mutant."""
        note = self._note(subject)
        if not note.exists():
            code, noted = run_tests(self._copy(0), self._table[subject]["tests"], {}, 1800)
            if code != 0:
                sys.exit(f"{subject}: its tests fail without a change\n{self._output()}")
            print(f"{sum(noted['times'].values()):6.1f} s  without a change: {subject}", flush=True)
            note.write_text(json.dumps(noted), encoding="utf-8")
        return dict(json.loads(note.read_bytes()))

    def _judge(self, subject: str, slot: int, times: Mapping[str, float]) -> tuple[str, list[str]]:
        tests = self._table[subject]["tests"]
        if self._to_the_end:
            return killers(self._copy(slot), tests, times)
        return judge(self._copy(slot), tests, times), []

    def _try(self, mutant: Mutant, slot: int, times: Mapping[str, float]) -> None:
        original, path = self._tree / mutant.path, self._copy(slot) / mutant.path
        source = mutant.applied_to(original.read_bytes())
        began = time.monotonic()
        try:
            path.write_bytes(source)
            # Python takes what it compiled earlier for a file with this time and size.
            os.utime(path, (zlib.crc32(source), zlib.crc32(source)))
            result, files = self._judge(mutant.subject, slot, times)
        finally:
            shutil.copy2(original, path)
        took = time.monotonic() - began
        with self._results.open("a", encoding="utf-8") as file:
            line = {"result": result, "killers": files, "mutant": asdict(mutant)}
            file.write(json.dumps(line) + "\n")
        print(f"{took:6.1f} s  {result:8}  {mutant.path}:{mutant.line}", flush=True)


def _digest(tree: Path, table: Mapping[str, Any]) -> str:
    """Of all that is copied, and of what is measured."""
    digest = hashlib.sha256(json.dumps(table, sort_keys=True).encode())
    for folder, folders, files in os.walk(tree):
        skipped = shutil.ignore_patterns(*NOT_COPIED)(folder, [*folders, *files])
        folders[:] = sorted(set(folders) - skipped)
        for path in sorted(Path(folder, name) for name in files if name not in skipped):
            digest.update(f"{path.relative_to(tree)}\n".encode())
            if path.is_file():  # a link may lead nowhere
                digest.update(path.read_bytes())
    return digest.hexdigest()


def _share_libraries(names: Sequence[str]) -> None:
    """Import what the tests import, in their order: `_asyncio` before asyncio is half of either."""
    for name in dict.fromkeys(names):
        if name.split(".")[0] not in NOT_SHARED and not name.startswith("_"):
            with suppress(Exception):
                importlib.import_module(name)


def main(arguments: Sequence[str]) -> int:
    """Draw, measure, report; returns the exit code."""
    parser = argparse.ArgumentParser(prog="mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--each", type=int, default=40, help="mutants of a subject (%(default)s)")
    parser.add_argument("--seed", type=int, default=11, help="of the draw (%(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side (%(default)s)")
    parser.add_argument("--tree", type=Path, default=Path(), help="another checkout than this one")
    parser.add_argument("--table", type=Path, default=TABLE, help="subjects, code and tests")
    parser.add_argument("--scratch", type=Path, help="keep copies and results here, and go on")
    parser.add_argument("--at-most", type=int, help="judge no more than so many in this call")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin none later")
    parser.add_argument("--subject", action="append", help="measure this one (may be repeated)")
    parser.add_argument("--code", nargs="+", help="in place of the subject's code")
    parser.add_argument("--tests", nargs="+", help="in place of the subject's tests")
    parser.add_argument("--all", action="store_true", help="which test files kill each mutant")
    parser.add_argument("--json", type=Path, help="write each mutant with its killers here")
    options = parser.parse_args(arguments)
    table = _chosen(tomllib.loads(options.table.read_text(encoding="utf-8")), options)
    tree, until = options.tree.resolve(), time.monotonic() + options.seconds
    mutants = draw(options.seed, options.each, tree, table)
    with tempfile.TemporaryDirectory(prefix="mutants-") as temporary:
        scratch = (options.scratch or Path(temporary)).resolve()
        copies = Copies(scratch, tree, table, to_the_end=options.all)
        known = copies.results()
        left = [m for m in mutants if m not in known][: options.at_most]
        copies.measure(left, options.jobs, until)
        known = {mutant: r for mutant, r in copies.results().items() if mutant in mutants}
        print(report({mutant: known[mutant][0] for mutant in mutants if mutant in known}))
        if options.all:
            print("\n" + report_of_files([f for _, f in known.values()], copies.seconds()))
        if options.json:
            lines = [
                {"result": result, "killers": files, **asdict(mutant)}
                for mutant, (result, files) in known.items()
            ]
            options.json.write_text(json.dumps(lines, indent=1) + "\n", encoding="utf-8")
    return 0


def _chosen(table: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """The subjects to measure, with what the command line says in place of theirs."""
    default = [subject for subject, entry in table.items() if not entry.get("named")]
    subjects = options.subject or default
    if unknown := [subject for subject in subjects if subject not in table]:
        sys.exit(f"no subject {', '.join(unknown)}; there are: {', '.join(table)}")
    changed = {"code": options.code, "tests": options.tests}
    instead = {key: value for key, value in changed.items() if value}
    return {subject: {**table[subject], **instead} for subject in subjects}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
