"""`python -m tests.campaign.real SEEDS`: plays random days with real processes, in real time.

As `python -m tests.campaign`, where the agent and all else run in one process; a day is judged from
outside: by what the agent answers, the simulated cards' file, and /proc.
"""

from __future__ import annotations

import signal
import sys
from typing import NoReturn

from tests.campaign.outcomes import parser, play_all, seeds
from tests.campaign.processes import adopt_orphans
from tests.campaign.real.days import episode
from tests.campaign.real.drive import play


def end(*_: object) -> NoReturn:
    """At SIGTERM: with all that a day started."""
    sys.exit(1)


if __name__ == "__main__":
    adopt_orphans()
    signal.signal(signal.SIGTERM, end)
    options = parser("python -m tests.campaign.real", __doc__).parse_args()
    sys.exit(play_all(map(episode, seeds(options.seeds)), play, options))
