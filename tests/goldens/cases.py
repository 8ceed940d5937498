"""The cases: what is recorded, as the tables in `cases/` say."""

from __future__ import annotations

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

    @property
    def path(self) -> Path:
        return RECORDED / f"{self.name}.txt"

    def record(self) -> str:
        """Run it, and give what is to be recorded."""
        with tempfile.TemporaryDirectory(prefix="na-", dir="/tmp") as name:
            folder = Path(name)
            folder.chmod(0o755)  # daemons of other users have to pass
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
        mixed, profiles = _layout(facts["mixed"]), facts["profiles"]
        commands = []
        for command in table["commands"]:
            each = map(_layout, ({p: n} for p, n in profiles.items()))
            for layout in each if "PROFILE" in command else [""]:
                filled = command.replace("BOARD", board).replace("MIXED", mixed)
                commands.append(filled.replace("PROFILE", layout))
        yield Case(f"boards/{board}", f"One GPU: {board}.", tuple(commands))


def _layout(counts: dict[str, int]) -> str:
    return ", ".join(f"{profile}: {count}" for profile, count in counts.items())


def _states() -> Iterator[Case]:
    for name, entry in _table("states").items():
        yield Case(f"states/{name}", entry["about"], tuple(entry["run"]), entry.get("files", {}))
