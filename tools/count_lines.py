"""Prints how many files and lines of Python there are, as `git ls-files` lists them.

Code that the protocol buffer compiler made is counted by itself, and in no other row.
"""

import statistics
import subprocess
from collections.abc import Iterable
from pathlib import Path

_ROWS = ("product", "simulator", "tests", "tools and bench", "generated")


def main() -> None:
    """Count the files of the working tree; one that is deleted and not yet committed is skipped."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],  # noqa: S607  git of PATH
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    rows: dict[str, dict[str, int]] = {row: {} for row in _ROWS}
    for name in filter(lambda name: Path(name).exists(), listed):
        rows[_row(name)][name] = len(Path(name).read_bytes().splitlines())
    print(f"{'all *.py':<16}{'lines':>9}{'files':>8}{'median':>8}{'largest':>9}")
    for row, sizes in rows.items():
        print(_line(row, sizes.values()), max(sizes, key=sizes.__getitem__, default=""))
    print(_line("together", [size for sizes in rows.values() for size in sizes.values()]))


def _row(name: str) -> str:
    if name.endswith("_pb2.py"):
        return "generated"
    if name.startswith("nodeagent/simulation/"):
        return "simulator"
    top = name.partition("/")[0]
    return {"nodeagent": "product", "tests": "tests"}.get(top, "tools and bench")


def _line(row: str, sizes: Iterable[int]) -> str:
    sizes = list(sizes) or [0]
    middle = round(statistics.median(sizes))
    return f"{row:<16}{sum(sizes):>9,}{len(sizes):>8,}{middle:>8,}{max(sizes):>9,}"


if __name__ == "__main__":
    main()
