"""`python -m tests.campaign SEEDS`: plays random days and prints what came of them.

SEEDS are numbers and ranges, such as `7` or `1-1000`. A day with a violation is printed, made as
short as it can be; the exit code is 1 then. With `--faults` they are played with each of ten faults
in a copy of the program, until it is found; the exit code is 1 if fewer than nine are.
"""

from __future__ import annotations

import gc
import os
import sys
from itertools import count

from tests.campaign import faults
from tests.campaign.clock import CLOCK  # before all of the agent
from tests.campaign.days import episode
from tests.campaign.drive import play
from tests.campaign.episode import Episode
from tests.campaign.kept import KEPT
from tests.campaign.outcomes import Outcome, parser, play_all, seeds
from tests.campaign.processes import adopt_orphans

_BETWEEN_COLLECTIONS = 20  # episodes


def main(arguments: list[str]) -> int:
    """Play them all."""
    asked = parser("python -m tests.campaign", __doc__)
    asked.add_argument("--kept", action="store_true", help="those that once failed, first")
    asked.add_argument("--faults", action="store_true", help="with faults in the program")
    options = asked.parse_args(arguments)
    if options.faults:
        return faults.play_all(options.seeds or ["1-200"])
    days = [*(KEPT if options.kept else ()), *map(episode, seeds(options.seeds))]
    gc.disable()  # what dies with an episode is collected after some of them
    numbers = count(1)

    def collecting(day: Episode) -> Outcome:
        outcome = play(day)
        if next(numbers) % _BETWEEN_COLLECTIONS == 0:
            gc.collect()
        return outcome

    return play_all(days, collecting, options)


if __name__ == "__main__":
    assert CLOCK.now
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets are in another order each time
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.campaign", *sys.argv[1:]])
    adopt_orphans()
    sys.exit(main(sys.argv[1:]))
