"""How much longer work takes while others want the processors of this machine, too."""

import os


def stretched(seconds: float) -> float:
    """How long that much work may take, by the load of the last minutes: a limit in seconds counts
    what the machine could do.
    """
    last_minute, last_five, _ = os.getloadavg()
    return seconds * max(1.0, max(last_minute, last_five) / len(os.sched_getaffinity(0)))
