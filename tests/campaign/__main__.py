"""`python -m tests.campaign SEEDS`: plays random days and prints what came of them.

SEEDS are numbers and ranges, such as `7` or `1-1000`. A day with a violation is printed, made as
short as it can be; the exit code is 1 then.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator

from tests.campaign.clock import CLOCK  # before all of the agent
from tests.campaign.drive import Outcome, play
from tests.campaign.episode import Episode, episode
from tests.campaign.kept import KEPT
from tests.campaign.processes import adopt_orphans
from tests.campaign.shrink import shrink

_BETWEEN_COLLECTIONS = 20  # episodes


def seeds(given: list[str]) -> Iterator[int]:
    """The numbers that are meant."""
    for one in given:
        first, dash, last = one.partition("-")
        yield from range(int(first), int(last if dash else first) + 1)


def main(arguments: list[str]) -> int:
    """Play them all."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("seeds", nargs="*", help="numbers and ranges, such as 1-1000")
    parser.add_argument("--kept", action="store_true", help="those that once failed, first")
    parser.add_argument("--as-it-is", action="store_true", help="shorten no day that fails")
    parser.add_argument("--until-found", action="store_true", help="end with the first violation")
    options = parser.parse_args(arguments)
    days = [*(KEPT if options.kept else ()), *map(episode, seeds(options.seeds))]
    gc.disable()  # what dies with an episode is collected after some of them
    began, worked = time.perf_counter(), time.process_time()
    outcomes = []
    for number, day in enumerate(days, 1):
        outcome = play(day)
        outcomes.append(outcome)
        if outcome.violations:
            report(outcome, as_it_is=options.as_it_is)
            if options.until_found:
                break
        if number % _BETWEEN_COLLECTIONS == 0:
            gc.collect()
    table(outcomes, time.perf_counter() - began, time.process_time() - worked)
    return int(any(outcome.violations for outcome in outcomes))


def report(outcome: Outcome, *, as_it_is: bool) -> None:
    """Print what was violated, and the shortest day on which it is."""
    day, kind = outcome.episode, outcome.violations[0].kind

    def fails(shorter: Episode) -> bool:
        return any(violation.kind == kind for violation in play(shorter).violations)

    print(f"seed {day.seed}: {outcome.violations[0]}", flush=True)
    print(day if as_it_is else shrink(day, fails), flush=True)


def table(outcomes: list[Outcome], seconds: float, worked: float) -> None:
    """Print what was done, and how it went."""
    actions = sum((outcome.actions for outcome in outcomes), Counter[str]())
    failed = [outcome for outcome in outcomes if outcome.violations]
    slowest = max(outcomes, key=lambda outcome: outcome.converged)
    count = max(1, len(outcomes))
    rows = [
        ("episodes", str(len(outcomes))),
        *((f"  {name}", str(number)) for name, number in sorted(actions.items())),
        ("violations", str(len(failed))),
        *((f"  seed {one.episode.seed}", str(one.violations[0])) for one in failed),
        ("slowest convergence", f"{slowest.converged:.1f} s (seed {slowest.episode.seed})"),
        ("processor time an episode", f"{worked / count:.3f} s"),
        ("episodes an hour", f"{3600 * count / seconds:.0f}"),
    ]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")


if __name__ == "__main__":
    assert CLOCK.now
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets are in another order each time
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.campaign", *sys.argv[1:]])
    adopt_orphans()
    sys.exit(main(sys.argv[1:]))
