"""`python -m tests.fuzz` (`make fuzz INPUTS=1000000`): read changed inputs, and print the figures.

Inputs at fault are kept below .local/fuzz, named by parser and number. The exit code is 1 where
there are any.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.fuzz.parsers import all_parsers
from tests.fuzz.runs import Figures, Parser, run

_KEPT = Path(".local/fuzz")
_HEADER = ("parser", "inputs", "accepted", "mean ms", "slowest ms", "most MiB", "faults")


def main() -> int:
    """Run, print a row for each parser, and say what was wrong."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--inputs", type=int, default=10_000, help="over all parsers")
    options.add_argument("--first", type=int, default=0, help="number of the first input of each")
    options.add_argument("--seed", default="1")
    options.add_argument("parsers", nargs="*", help="these alone")
    given = options.parse_args()
    known = all_parsers()
    chosen = [known[name] for name in given.parsers or known]
    numbers = range(given.first, given.first + max(given.inputs // len(chosen), 1))
    faults = 0
    print("| " + " | ".join(_HEADER) + " |\n|" + "---|" * len(_HEADER))
    for parser in chosen:
        with tempfile.TemporaryDirectory(dir=_memory()) as folder:
            found = run(parser, numbers, given.seed, Path(folder))
        print(_row(parser, found), flush=True)
        faults += len(found.faults)
        for fault in found.faults.values():
            _KEPT.mkdir(parents=True, exist_ok=True)
            path = _KEPT / f"{parser.name.replace(' ', '-').replace('/', '-')}-{fault.number}"
            path.write_bytes(fault.text)
            print(f"  {path}: {fault.what}\n{fault.trace}", file=sys.stderr, flush=True)
    return min(faults, 1)


def _row(parser: Parser, found: Figures) -> str:
    mean = 1000 * found.seconds / found.inputs
    cells = (
        *(parser.name, f"{found.inputs:,}", f"{found.accepted:,}", f"{mean:.2f}"),
        *(f"{1000 * found.slowest:.1f}", f"{found.largest / 2**20:.0f}", str(len(found.faults))),
    )
    return "| " + " | ".join(cells) + " |"


def _memory() -> str | None:
    """A folder in memory, where there is one: state files are read from files."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


if __name__ == "__main__":
    sys.exit(main())
