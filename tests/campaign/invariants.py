"""What has to hold on every day, whatever happens."""

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    """`kind` is what the same fault has in common on every day; `what` are the facts."""

    kind: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


IN_USE = "attempted to take away what is in use"
NOT_SO = "reported InSync and it is not so"
NOT_SHOWN = "pages show what is not so"
HALF = "left half way after one failure"
HELD_UP = "kept waiting by another GPU"
REPLACED = "a daemon that was well was replaced"
NEVER = "did not converge"
NO_END = "did not end"
LEAK = "left behind"
TRACEBACK = "a fault of its own"
CRASH = "the agent ended by itself"
SPINS = "never waits"
CLAIM = "a pod runs without what its claim is"
SECRET = "showed a secret"


def of_attempts(attempts: list[str]) -> list[Violation]:
    """Each attempt to take a device from a process that was there at the last look."""
    return [Violation(IN_USE, attempt) for attempt in attempts]


def of_log(lines: list[str]) -> list[Violation]:
    """What no reader of the log should see: how the program's own code failed."""
    found = []
    for line in lines:
        if "Traceback" in line or '"exception"' in line:
            entry = json.loads(line) if line.startswith("{") else {"message": line}
            trace = str(entry.get("exception", "")).strip().splitlines()[-1:]
            found.append(Violation(TRACEBACK, f"{entry['message']}: {''.join(trace)}"))
    return found


def of_text(name: str, text: str) -> list[Violation]:
    return [Violation(TRACEBACK, f"in {name}")] if "Traceback" in text else []
