"""The stand-in for `nvidia-cuda-mps-control`: the front-end, or what its flags make of it."""

from __future__ import annotations

import sys


def main(*, version: str, installation: str) -> int:
    """Returns the exit status. `installation` is the folder that knobs are looked up in."""
    # The front-end is started for each question: it loads nothing that only a daemon needs.
    if len(sys.argv) == 1:
        from nodeagent.simulation.mps import front_end

        return front_end.run()
    from nodeagent.simulation.mps import control_flags

    return control_flags.run(version=version, installation=installation)
