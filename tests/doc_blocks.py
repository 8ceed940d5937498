"""The fenced blocks of the pages, and what the first line of each says of it."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

# What stands behind the three backticks of a block of commands.
RUN = "sh"  # a test types it into a shell with a simulated node
MARKS = {
    RUN: "runs on a simulated node",
    "sh agent": "an agent and what is typed beside it; a long test types it",
    "sh card": "needs a node with a card, or its tools, as root",
    "sh cluster": "needs a cluster",
    "sh docker": "needs a builder of images and a registry",
    "console": "a command with its answer, which a test of its own compares",
}
DOCUMENTS = frozenset({"yaml", "yml", "json", "ini", "text", "mermaid"})

_FENCE = re.compile(r"^ *(?:\d+\. )?```(.*)$")


@dataclass(frozen=True, slots=True)
class Block:
    """`line` is the number of its first line of content; `info` is behind the backticks."""

    line: int
    info: str
    body: str

    @property
    def lines(self) -> list[str]:
        return [line.strip() for line in self.body.splitlines() if line.strip()]


def blocks_of(text: str) -> Iterator[Block]:
    """All fenced blocks in their order; one that does not end is an error."""
    begun: tuple[int, str] | None = None
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        fence = _FENCE.match(line)
        if fence is None:
            continue
        if begun is None:
            begun = (number + 1, fence[1].strip())
        else:
            first, info = begun
            yield Block(first + 1, info, "".join(lines[first:number]))
            begun = None
    assert begun is None, f"the block in line {begun} does not end"


def words_of(command: str) -> tuple[list[str], str | None]:
    """A command's words as a shell splits them, and the file that its output goes to."""
    words = shlex.split(command, comments=True)
    if len(words) > 2 and words[-2] == ">":
        return words[:-2], words[-1]
    return words, None


def folder_with_examples(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Be in the folder, which gets the repository's examples."""
    (folder / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(folder)
