"""Plays many days, one after another, and prints what came of them, whoever plays them."""

import argparse
import math
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import connection
from typing import Any

from tests.campaign.episode import Episode
from tests.campaign.invariants import Violation
from tests.campaign.processes import adopt_orphans, end_with_parent
from tests.campaign.shrink import shrink

Player = Callable[[Episode], "Outcome"]


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
    made.add_argument("--seconds", type=float, default=math.inf, help="begin no day after so many")
    made.add_argument("--faults", action="store_true", help="with faults in the program")
    made.add_argument(
        "--workers", type=int, default=os.cpu_count(), help="processes that play side by side"
    )
    return made


def seeds(given: list[str]) -> Iterator[int]:
    for one in given:
        first, dash, last = one.partition("-")
        yield from range(int(first), int(last if dash else first) + 1)


def play_all(days: Sequence[Episode], play: Player, options: argparse.Namespace) -> int:
    """Play them, in several processes side by side; an exit code."""
    began, worked = time.perf_counter(), _processor_time()
    play_one = partial(_play_and_report, play, as_it_is=options.as_it_is)
    outcomes = _side_by_side(days, play_one, options)
    _table(outcomes, time.perf_counter() - began, _processor_time() - worked)
    return int(any(outcome.violations for outcome in outcomes))


def _side_by_side(
    days: Sequence[Episode], play: Player, options: argparse.Namespace
) -> list[Outcome]:
    """Their outcomes, in the order of the days. The processes are forked, as all is imported
    already, and each is by itself the parent of what its days start.
    """
    context = multiprocessing.get_context("fork")
    next_day = context.Value("i", 0)
    workers, readers, outcomes = [], list[connection.Connection](), dict[int, Outcome]()
    for _ in range(min(options.workers, len(days))):
        reader, writer = context.Pipe(duplex=False)
        work = (days, play, next_day, writer, time.perf_counter() + options.seconds)
        workers.append(context.Process(target=_work, args=work))
        workers[-1].start()
        writer.close()
        readers.append(reader)
    while readers:
        for ready in connection.wait(readers):
            assert isinstance(ready, connection.Connection)
            try:
                number, outcome = ready.recv()
            except EOFError:
                readers.remove(ready)
                continue
            outcomes[number] = outcome
            if outcome.violations and options.until_found:
                next_day.value = len(days)
    for worker in workers:
        worker.join()
        if worker.exitcode:
            sys.exit(worker.exitcode)
    return [outcomes[number] for number in sorted(outcomes)]


def _work(
    days: Sequence[Episode],
    play: Player,
    next_day: Any,
    writer: connection.Connection,
    until: float,
) -> None:
    """In a worker: play days until there is none left, or that time has come."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # with all that a day started
    end_with_parent()
    adopt_orphans()
    while True:
        with next_day.get_lock():
            number = next_day.value
            next_day.value += 1
        if number >= len(days) or time.perf_counter() > until:
            return
        writer.send((number, play(days[number])))


def _processor_time() -> float:
    """Seconds, of this process and of those that it started and that ended."""
    return sum(os.times()[:4])


def _play_and_report(play: Player, day: Episode, *, as_it_is: bool) -> Outcome:
    """Print what was violated, and the shortest day on which it is."""
    outcome = play(day)
    if outcome.violations:
        kind = outcome.violations[0].kind

        def fails(shorter: Episode) -> bool:
            return any(violation.kind == kind for violation in play(shorter).violations)

        shortest = day if as_it_is else shrink(day, fails)
        print(f"seed {day.seed}: {outcome.violations[0]}\n{shortest}", flush=True)
    return outcome


def _table(outcomes: list[Outcome], seconds: float, worked: float) -> None:
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
