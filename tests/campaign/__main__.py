"""`python -m tests.campaign SEEDS`: plays random days and prints what came of them.

SEEDS are numbers and ranges, such as `7` or `1-1000`. A day with a violation is printed, made as
short as it can be; the exit code is 1 then. With `--faults` they are played with each of some
faults in a copy of the program, until it is found; the exit code is 1 if fewer than nine in ten
are.
"""

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
from tests.campaign.processes import programs

_BETWEEN_COLLECTIONS = 20  # episodes
_played = count(1)


def main(arguments: list[str]) -> int:
    asked = parser("python -m tests.campaign", __doc__)
    asked.add_argument("--kept", action="store_true", help="those that once failed, first")
    options = asked.parse_args(arguments)
    if options.faults:
        return faults.play_all(
            "tests.campaign", options.seeds or ["1-200"], options.workers, faults.FAULTS
        )
    days = [*(KEPT if options.kept else ()), *map(episode, seeds(options.seeds))]
    programs()  # they are removed when this process ends, not when one that it forks does
    gc.disable()  # what dies with an episode is collected after some of them
    return play_all(days, _play, options)


def _play(day: Episode) -> Outcome:
    outcome = play(day)
    if next(_played) % _BETWEEN_COLLECTIONS == 0:
        gc.collect()
    return outcome


if __name__ == "__main__":
    assert CLOCK.now
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets are in another order each time
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.campaign", *sys.argv[1:]])
    sys.exit(main(sys.argv[1:]))
