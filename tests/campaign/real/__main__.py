"""`python -m tests.campaign.real SEEDS`: plays random days with real processes, in real time.

As `python -m tests.campaign`, where the agent and all else run in one process; a day is judged from
outside: by what the agent answers, the simulated cards' file, and /proc.
"""

from __future__ import annotations

import sys

from tests.campaign import faults
from tests.campaign.outcomes import parser, play_all, seeds
from tests.campaign.processes import programs
from tests.campaign.real.days import episode
from tests.campaign.real.drive import play
from tests.campaign.real.surroundings import clock_library

PLAYER = "tests.campaign.real"


def main() -> int:
    """Play them all."""
    options = parser(f"python -m {PLAYER}", __doc__).parse_args()
    if options.faults:
        return faults.play_all(PLAYER, options.seeds, options.workers, faults.REAL_FAULTS)
    programs(), clock_library()  # they are removed when this process ends
    return play_all([*map(episode, seeds(options.seeds))], play, options)


if __name__ == "__main__":
    sys.exit(main())
