"""The cases: what is recorded, as the tables in `cases/` say."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.goldens.rules import settled
from tests.goldens.session import Session

HERE = Path(__file__).parent
RECORDED = HERE / "recorded"


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

    def record(self) -> str:
        """Run it, and give what is to be recorded."""
        with tempfile.TemporaryDirectory(prefix="na-", dir="/tmp") as name:
            folder = Path(name)
            folder.chmod(0o755)  # daemons of other users have to pass
            (folder / "examples").symlink_to(HERE.parents[1] / "examples")
            parts = [f"# {self.about}\n\n"]
            for file, text in self.files.items():
                (folder / file).write_text(text, encoding="utf-8")
                parts.append(f"$ cat {file}\n{text}\n")
            session = Session(folder)
            parts.extend(session.transcript(command) for command in self.commands)
            return settled("".join(parts), folder).rstrip("\n") + "\n"


def cases() -> list[Case]:
    """All of them."""
    return [*_boards(), *_states()]


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


def _states() -> Iterator[Case]:
    for name, entry in _table("states").items():
        commands = tuple(entry["run"].splitlines())
        files, python = entry.get("files", {}), entry.get("python", "")
        yield Case(f"states/{name}", entry["about"], commands, files, python)
