"""`python -m bench [NAME ...]`: all tables but those that take minutes, or those named."""

from __future__ import annotations

import sys
from importlib import import_module

NAMES = (
    *(
        "planning_time",
        "side_by_side",
        "recut",
        "slow_driver",
        "commands",
        "agent",
        "api_load",
        "disturbance",
        "mps",
    ),
    *("cluster", "cluster_traffic", "cluster_restart", "metrics", "use", "claims", "calls"),
    "fragmentation",
)
LONG = ("soak",)


def main() -> int:
    """Print the tables; 2 when a name is unknown."""
    chosen = sys.argv[1:] or NAMES
    there = (*NAMES, *LONG)
    unknown = [name for name in chosen if name not in there]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(there)}", file=sys.stderr)
        return 2
    for name in chosen:
        import_module(f"bench.{name}").run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
