"""Plays many days, one after another, and prints what came of them, whoever plays them."""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from tests.campaign.episode import Episode
from tests.campaign.invariants import Violation
from tests.campaign.shrink import shrink


@dataclass(slots=True)
class Outcome:
    """How an episode went. `converged`: seconds that it took in the end."""

    episode: Episode
    violations: list[Violation] = field(default_factory=list)
    actions: Counter[str] = field(default_factory=Counter)
    converged: float = 0.0


def parser(prog: str, description: str | None) -> argparse.ArgumentParser:
    """What a program is asked that plays days."""
    made = argparse.ArgumentParser(prog=prog, description=description)
    made.add_argument("seeds", nargs="*", help="numbers and ranges, such as 1-1000")
    made.add_argument("--as-it-is", action="store_true", help="shorten no day that fails")
    made.add_argument("--until-found", action="store_true", help="end with the first violation")
    return made


def seeds(given: list[str]) -> Iterator[int]:
    """The numbers that are meant."""
    for one in given:
        first, dash, last = one.partition("-")
        yield from range(int(first), int(last if dash else first) + 1)


def play_all(
    days: Iterable[Episode], play: Callable[[Episode], Outcome], options: argparse.Namespace
) -> int:
    """Play them; an exit code."""
    began, worked = time.perf_counter(), _processor_time()
    outcomes = []
    for day in days:
        outcome = play(day)
        outcomes.append(outcome)
        if outcome.violations:
            _report(outcome, play, as_it_is=options.as_it_is)
            if options.until_found:
                break
    _table(outcomes, time.perf_counter() - began, _processor_time() - worked)
    return int(any(outcome.violations for outcome in outcomes))


def _processor_time() -> float:
    """Seconds, of this process and of those that it started and that ended."""
    return sum(os.times()[:4])


def _report(outcome: Outcome, play: Callable[[Episode], Outcome], *, as_it_is: bool) -> None:
    """Print what was violated, and the shortest day on which it is."""
    day, kind = outcome.episode, outcome.violations[0].kind

    def fails(shorter: Episode) -> bool:
        return any(violation.kind == kind for violation in play(shorter).violations)

    print(f"seed {day.seed}: {outcome.violations[0]}", flush=True)
    print(day if as_it_is else shrink(day, fails), flush=True)


def _table(outcomes: list[Outcome], seconds: float, worked: float) -> None:
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
