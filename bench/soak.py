"""`python -m bench.soak [ROUNDS]`: whether the agent's memory grows with its rounds.

The real agent on a simulated node, with MIG and MPS, at a pace at which it always works: samples,
reconciliations, looks at daemons, health. Beside it scrapes and questions for the status come, the
layout changes, processes come and go, and XIDs arrive. The table has the slope of a line through
the counts of the second half, when every ring and window is full, and of the last quarter: what
only fills gaps grows less and less, what leaks grows on. A leak shows in the objects and blocks of
Python, or in what malloc has given out; the rest is memory that is held for the next peak.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from statistics import fmean

from bench.tables import show

ROUNDS = 10_000
WARM = 0.5  # the part of the rounds after which rings are full and threads are there
LATE = 0.75
INTERVAL = 2.0  # seconds between two counts
PLAN = """\
version: v1
gpus:
- {{devices: [0], mig: {mig}}}
- {{devices: [1], mig: disabled, mps: {{replicas: 2, user: {user}}}}}
"""
LAYOUTS = ("{1g.10gb: 7}", "{3g.40gb: 1, 1g.10gb: 4}", "{2g.20gb: 3}", "{3g.40gb: 2}")


@dataclass(frozen=True, slots=True)
class Slope:
    """By how much something grows in a round, with the standard error of that."""

    value: float
    error: float

    def __str__(self) -> str:
        return f"{self.value:+.3f} ± {self.error:.3f}"


def slope_of(points: Sequence[tuple[float, float]]) -> Slope:
    """The line of least squares through at least three points (x, y)."""
    middle, height = fmean(x for x, _ in points), fmean(y for _, y in points)
    width = sum((x - middle) ** 2 for x, _ in points)
    value = sum((x - middle) * (y - height) for x, y in points) / width
    rest = sum((y - height - value * (x - middle)) ** 2 for x, y in points)
    return Slope(value, (rest / (len(points) - 2) / width) ** 0.5)


def counts(
    rounds: int, *, every: float = INTERVAL, changing: bool = True
) -> Iterator[dict[str, int]]:
    """What `bench.soak_agent` counts, until it has done so many rounds."""
    with _agent(every, changing=changing) as process:
        for line in process.stdout or ():
            found: dict[str, int] = json.loads(line)
            yield found
            if found["rounds"] >= rounds:
                return
    raise RuntimeError(f"the agent ended with {process.returncode}")


def slopes(found: Sequence[Mapping[str, int]], *, begin: float = WARM) -> dict[str, Slope]:
    """By what is counted, over the rounds, without that part of them at the start."""
    warm = [one for one in found if one["rounds"] >= begin * found[-1]["rounds"]]
    names = [name for name in found[0] if name != "rounds"]
    return {name: slope_of([(one["rounds"], one[name]) for one in warm]) for name in names}


@contextmanager
def _agent(every: float, *, changing: bool) -> Iterator[subprocess.Popen[str]]:
    # An address of this process: a free port of 127.0.0.1 may be taken before the agent has it.
    listen = f"127.{os.getpid() >> 16}.{os.getpid() >> 8 & 255}.{os.getpid() & 255}:9417"
    with tempfile.TemporaryDirectory(prefix="na-") as name:
        here = Path(name)
        plan = here / "plan.yaml"
        plan.write_text(PLAN.format(mig=LAYOUTS[0], user=os.geteuid()))
        settings = {
            "API_LISTEN": listen,
            "RUN_DIR": str(here / "run"),
            "STATE_DIR": str(here / "state"),
            "SAMPLE_INTERVAL": "10ms",
            "SAMPLE_SLOW_INTERVAL": "50ms",
            "RESYNC_INTERVAL": "100ms",
            "LOG_LEVEL": "error",
            "MPS_CHECK_INTERVAL": "200ms",
        }
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "bench.soak_agent", str(every), "run"),
                *("--simulate", "h100-80gb:3", "--plan", str(plan)),
            ],
            env=os.environ | {f"NODEAGENT_{key}": value for key, value in settings.items()},
            stdout=subprocess.PIPE,
            text=True,
        )
        over = threading.Event()
        use = threading.Thread(target=_use, args=(listen, plan if changing else None, over))
        use.start()
        try:
            yield process
        finally:
            over.set()
            use.join()
            process.terminate()
            process.communicate()


def _use(listen: str, plan: Path | None, over: threading.Event) -> None:
    """Scrape, ask, and change the layout five times a second."""
    layouts, changed = cycle(LAYOUTS[::-1]), time.monotonic()
    while not over.wait(0.05):
        with suppress(OSError):
            for path in ("/metrics", "/v1/status", "/"):
                with urllib.request.urlopen(f"http://{listen}{path}", timeout=5) as answer:
                    answer.read()
        if plan is not None and time.monotonic() - changed >= 0.2:
            changed = time.monotonic()
            plan.write_text(PLAN.format(mig=next(layouts), user=os.geteuid()))


def run(rounds: int = ROUNDS) -> None:
    """Print the growth in a round."""
    found = list(counts(rounds))
    grown, late = slopes(found), slopes(found, begin=LATE)
    last = found[-1]
    first = next(one for one in found if one["rounds"] >= WARM * last["rounds"])
    show(
        f"Memory of the agent over {last['rounds']} rounds, from round {first['rounds']} on",
        ["what", "then", "in the end", "growth in a round ± standard error", "in the last quarter"],
        [
            [name, first[name], last[name], str(slope), str(late[name])]
            for name, slope in grown.items()
        ],
    )


if __name__ == "__main__":
    run(*map(int, sys.argv[1:]))
