"""The cases: what is recorded, as the tables in `cases/` say."""

import difflib
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from tests.folders import open_folder
from tests.goldens.agent import SOON, Stage, stage
from tests.goldens.rules import settled
from tests.goldens.session import Session, alternatives
from tests.machine_load import stretched

HERE = Path(__file__).parent
RECORDED = HERE / "recorded"
STAYS = 2.5  # seconds for which an answer that is recorded has not changed
LATE = 10.0  # seconds after which one that has not changed will not become what was recorded


@dataclass(frozen=True)
class Case:
    """One recorded file: commands in a folder with these files."""

    name: str  # of the recorded file, such as boards/t4
    about: str
    commands: tuple[str, ...]
    files: dict[str, str] = field(default_factory=dict)
    python: str = ""  # with any other version it cannot be compared

    @property
    def path(self) -> Path:
        return RECORDED / f"{self.name}.txt"

    @property
    def comparable(self) -> bool:
        return self.python in {"", f"{sys.version_info.major}.{sys.version_info.minor}"}

    def record(self, recorded: str = "") -> str:
        """Run it, and give what is to be recorded; an agent gets the time to do as recorded."""
        with open_folder() as folder:
            (folder / "examples").symlink_to(HERE.parents[1] / "examples")
            parts = [f"# {self.about}\n\n"]
            for file, text in self.files.items():
                (folder / file).write_text(text, encoding="utf-8")
                parts.append(f"$ cat {file}\n{text}\n")
            with stage(folder, Session(folder)) as acting:
                patience = Patience(recorded, skip=len(self.files))
                for line in chain.from_iterable(map(alternatives, self.commands)):
                    ask = partial(_asked, acting, line, folder)
                    parts += [patience.answer(ask, again=acting.repeats(line))]
            return settled("".join(parts), folder).rstrip("\n") + "\n"


class Patience:
    """Waits for an agent's answers: to be as recorded, or where that is not known, to stay."""

    def __init__(self, recorded: str, *, skip: int) -> None:
        blocks = re.split(r"(?m)^(?=\$ )", recorded)
        self._expected = iter(blocks[1 + skip :])

    def answer(self, ask: Callable[[], str], *, again: bool) -> str:
        """The next one; fails where it is another than recorded, and stays so."""
        expected = next(self._expected, "").strip()
        begun = time.monotonic()
        last, same = ask(), time.monotonic()
        while again and last.strip() != expected:
            now, patience = time.monotonic(), stretched(LATE) if expected else STAYS
            if now - same > patience or now - begun > stretched(SOON):
                assert not expected, difference(expected, last.strip())
                break
            time.sleep(0.1)
            before, last = last, ask()
            if last != before:
                same = time.monotonic()
        return last


def difference(recorded: str, found: str) -> str:
    """Empty where there is none."""
    lines = [*difflib.unified_diff(recorded.splitlines(), found.splitlines(), lineterm="")]
    hint = "if it shall be so: make goldens, and commit that"
    return "\n".join(("", "recorded, and now:", *lines[2:], "", hint)) if lines else ""


def _asked(acting: Stage, line: str, folder: Path) -> str:
    return settled(acting.do(line), folder)


def cases() -> list[Case]:
    return [*_boards(), *_scripts("states"), *_scripts("agents")]


def _table(name: str) -> Any:
    return yaml.safe_load((HERE / "cases" / f"{name}.yaml").read_text(encoding="utf-8"))


def _boards() -> Iterator[Case]:
    table = _table("boards")
    for board, facts in table["boards"].items():
        profiles = [_layout({profile: n}) for profile, n in facts["profiles"].items()]
        words = {
            "BOARD": board,
            "MIXED": _layout(facts["mixed"]),
            "EACH": str(len(profiles) or 1),
            "PROFILES": ", ".join(
                f"{{devices: [{gpu}], mig: {{{layout}}}}}" for gpu, layout in enumerate(profiles)
            ),
        }
        commands = tuple(_filled(command, words) for command in table["run"].splitlines())
        yield Case(f"boards/{board}", f"GPUs of one kind: {board}.", commands)


def _layout(counts: dict[str, int]) -> str:
    return ", ".join(f"{profile}: {count}" for profile, count in counts.items())


def _filled(command: str, words: dict[str, str]) -> str:
    for name, word in words.items():
        command = re.sub(rf"\b{name}\b", word, command)
    return command


def _scripts(table: str) -> Iterator[Case]:
    for name, entry in _table(table).items():
        commands = tuple(entry["run"].splitlines())
        files, python = entry.get("files", {}), entry.get("python", "")
        yield Case(f"{table}/{name}", entry["about"], commands, files, python)
