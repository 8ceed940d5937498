"""The running agent on eight H100 whose driver takes its time: seconds and driver calls.

Each call takes 50 ms; or reads take 1 ms, a GPU instance 150 ms and a compute instance 50 ms to
create or destroy, as on hardware.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

from bench.agent import Running
from bench.commands import PLAN
from bench.processes import installed
from bench.recut import COSTS as HARDWARE
from bench.tables import show
from nodeagent.cli import main
from nodeagent.simulation import SimulatedNode, simulated

COSTS: Mapping[str, Mapping[str, float]] = {"50 ms each": {"*": 0.05}, "as hardware": HARDWARE}
CALM = 10.0  # seconds before a change, after which a full look and a sample are over
CUT = PLAN.replace("{1g.10gb: 7}", "{3g.40gb: 1, 2g.20gb: 1, 1g.10gb: 2}")
FIRST = PLAN.replace("all", "[0]")
ONE, TWO = (FIRST.replace("7", str(count)) for count in (1, 2))


def run() -> None:
    """From the process' start or the plan's change to InSync as the API reports it."""
    rows: list[list[object]] = []
    with installed():
        for costs in COSTS:
            for what, seconds, calls in _changes(costs):
                rows.append([f"{what}; {costs}", seconds, calls])
    show(
        "The agent on h100-80gb:8 with a slow driver",
        ["what", "seconds to InSync", "calls to the GPU with most"],
        rows,
    )


def _changes(costs: str) -> Iterator[tuple[str, float, int]]:
    with tempfile.TemporaryDirectory() as folder:
        state = str(Path(folder) / "node.json")
        program = ("bench.slow_driver", costs, state)
        with closing(Running(program)) as agent:
            yield "start, MIG off, 56 instances to make", *_in_sync(agent)
            for what, plan in (
                ("7x1g.10gb to 3g+2g+1g+1g on each GPU", CUT),
                ("and back", PLAN),
                ("7x1g.10gb to one on a GPU", ONE),
                ("one 1g.10gb more on it", TWO),
            ):
                time.sleep(CALM)
                agent.plan(plan)
                yield what, *_in_sync(agent)
        with closing(Running(program, plan=TWO)) as agent:
            yield "start in sync", *_in_sync(agent)


def _in_sync(agent: Running) -> tuple[float, int]:
    seconds = agent.wait_until_in_sync()
    calls: Mapping[str, list[float]] = json.loads(agent.ask())
    began = time.monotonic() - (time.perf_counter() - agent.began)
    counts = Counter(gpu for gpu, times in calls.items() for at in times if at > began)
    return seconds, max(counts.values())


def _answer(node: SimulatedNode) -> None:
    """For each line that comes in, when each GPU's thread made its last calls."""
    for _ in sys.stdin:
        calls: dict[str, list[float]] = {}
        for call in node.journal.calls:
            if call.gpu is not None and "NvLink" not in call.name:
                calls.setdefault(str(call.gpu), []).append(call.started)
        print(json.dumps(calls), flush=True)


if __name__ == "__main__":
    costs, state, *arguments = sys.argv[1:]
    with simulated("h100-80gb:8", state=Path(state), latency=COSTS[costs]) as node:
        threading.Thread(target=_answer, args=[node], daemon=True).start()
        main(["run", *arguments])
