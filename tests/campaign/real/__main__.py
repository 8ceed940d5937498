"""`python -m tests.campaign.real SEEDS`: plays random days with real processes, in real time.

As `python -m tests.campaign`, where the agent and all else run in one process; a day is judged from
outside: by what the agent answers, the simulated cards' file, and /proc. With `--earlier COMMIT`,
which can be given several times, agents of that commit take over during each day, and today's
agent from them.
"""

from __future__ import annotations

import os
import sys
from functools import partial

from tests.campaign import faults
from tests.campaign.outcomes import parser, play_all, seeds
from tests.campaign.processes import programs
from tests.campaign.real.days import episode
from tests.campaign.real.drive import play
from tests.campaign.real.releases import release
from tests.campaign.real.surroundings import clock_library

PLAYER = "tests.campaign.real"
# Programs of another user are forked beside gRPC's threads, and end at once in gRPC's handlers.
_ENVIRONMENT = {"GRPC_ENABLE_FORK_SUPPORT": "0", "GRPC_VERBOSITY": "ERROR"}


def main() -> int:
    """Play them all."""
    asked = parser(f"python -m {PLAYER}", __doc__)
    asked.add_argument(
        "--earlier", action="append", default=[], help="a commit, or a folder with its package"
    )
    options = asked.parse_args()
    if options.faults:
        return faults.play_all(PLAYER, options.seeds, options.workers, faults.REAL_FAULTS)
    programs(), clock_library()  # they are removed when this process ends
    releases = [*map(release, options.earlier)]
    days = [episode(seed, exchanged=bool(releases)) for seed in seeds(options.seeds)]
    return play_all(days, partial(play, releases=releases), options)


if __name__ == "__main__":
    if not _ENVIRONMENT.items() <= os.environ.items():  # read as gRPC is imported
        os.environ.update(_ENVIRONMENT)
        os.execv(sys.executable, [sys.executable, "-m", PLAYER, *sys.argv[1:]])
    sys.exit(main())
