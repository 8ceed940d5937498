"""`python -m tests.campaign.real SEEDS`: plays random days with real processes, in real time.

As `python -m tests.campaign`, where the agent and all else run in one process; a day is judged from
outside: by what the agent answers, the simulated cards' file, and /proc.
"""

import os
import sys

from tests.campaign import faults
from tests.campaign.outcomes import parser, play_all, seeds
from tests.campaign.processes import programs
from tests.campaign.real.days import episode
from tests.campaign.real.drive import play
from tests.campaign.real.surroundings import clock_library

PLAYER = "tests.campaign.real"
# Programs of another user are forked beside gRPC's threads, and end at once in gRPC's handlers.
_ENVIRONMENT = {"GRPC_ENABLE_FORK_SUPPORT": "0", "GRPC_VERBOSITY": "ERROR"}


def main() -> int:
    options = parser(f"python -m {PLAYER}", __doc__).parse_args()
    if options.faults:
        return faults.play_all(PLAYER, options.seeds, options.workers, faults.REAL_FAULTS)
    programs(), clock_library()  # they are removed when this process ends
    return play_all([*map(episode, seeds(options.seeds))], play, options)


if __name__ == "__main__":
    if not _ENVIRONMENT.items() <= os.environ.items():  # read as gRPC is imported
        os.environ.update(_ENVIRONMENT)
        os.execv(sys.executable, [sys.executable, "-m", PLAYER, *sys.argv[1:]])
    sys.exit(main())
