"""How often daemons are asked, and how long things may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds, and bytes of a log.

    `answer`: for a daemon to answer. `check`: between two questions to a daemon when nothing
    happens, `check_served` while it has a server, somebody waits or it drains. `grace`: between
    the steps of ending an orphan. `start`: how long a caller waits for Ready.
    """

    answer: float
    check: float
    grace: float
    log_size: int
    check_served: float = 5.0
    start: float = 60.0

    def until_next_look(self, *, served: bool) -> float:
        return min(self.check, self.check_served) if served else self.check
