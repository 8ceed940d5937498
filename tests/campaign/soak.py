"""`python -m tests.campaign.soak [HOURS] [SEED]`: whether anything of the agent grows in a day.

24 hours of the machine's time in one process, at the periods that the agent has by default. It is
in a cluster, serves claims on the last GPU, and is scraped every 15 s. Each ten minutes have scenes
of the campaign and of its cluster; then all faults end, all who use anything go, and what is
counted has the same plan behind it each time. The cards and the cluster are in the same process,
and forget what is over. All of Python's memory is malloc's here, and malloc keeps nothing back for
the next request: what it has given out is what is in use, to the byte.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from array import array
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from itertools import cycle
from pathlib import Path

from nodeagent.structs import replace

from tests.campaign.clock import CLOCK  # isort: skip  # before all of the agent
from aiohttp import web_app  # isort: skip

import nodeagent.cluster.kubelet  # noqa: F401  # before the stand-in kubelet's gRPC, as in the agent
from bench.soak import slope_of
from bench.soak_agent import memory
from bench.tables import show
from tests.campaign import pages, truth
from tests.campaign.drive import Player
from tests.campaign.episode import BadPlan, EndFaults, JumpClock, Kill, Pause, Plan, Reboot, Restart
from tests.campaign.invariants import LEAK, NEVER
from tests.campaign.layouts import Day
from tests.campaign.machine import Machine
from tests.campaign.processes import programs
from tests.campaign.real.cluster import FAULTS, KUBELET, LISTING, Cluster
from tests.campaign.scenes import SCENES, WITH_MPS
from tests.campaign.witness import IN_SYNC
from tests.simulated_cluster.claim_status import ClaimStatusRules

HOURS = 24.0
BOARDS = "h100-80gb:3"
ROUND = 600.0  # seconds between two counts
_BUSY = 200.0  # of them, in which something happens
_SCRAPE = 15.0
_PAGES = ("/v1/status", "/v1/mps", "/v1/plan", "/v1/events", "/healthz", "/readyz", "/")
_REST = Plan(({"3g.40gb": 2}, {}), (1,))
_NOT_HERE = Kill | Restart | Reboot | Pause | JumpClock  # it is one life; gRPC's clock is another
_MAX_GROWTH = {"descriptors": 0.5, "tasks": 0.5, "threads": 0.5}  # more in an hour, which are noise
_IN_USE = "malloc, given out, KiB"
_MAX_KIB = 8.0  # of it; a hundred bytes that each scrape leaves are 23
_FULL = 12.0  # hours after which nearly all that is bounded is full
_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",  # sets are in another order each time
    "PYTHONMALLOC": "malloc",
    "GRPC_VERBOSITY": "ERROR",
    "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.malloc.mmap_threshold=131072",
}
_SPOILT = (*FAULTS, "cut", "restart", "expire")
_DEFAULTS = {
    "driver.observe_deadline": "10s",
    "driver.step_deadline": "60s",
    "resync.interval": "60s",
    "sample.interval": "5s",
    "sample.slow_interval": "60s",
}


class _Machine(Machine):
    """In a cluster that is in the same event loop. `answers` counts what scrapes got."""

    arriving = 0.0003

    def __init__(self, folder: Path) -> None:
        self.cluster = _Cluster(folder, self.do)
        self.answers = Counter[str]()
        super().__init__(
            folder,
            BOARDS,
            strict=False,
            has_mps=True,
            settings={
                "plan.source": "annotation",
                "kubernetes.use": "auto",
                "kubernetes.kubeconfig": folder / "kubeconfig",
                "kubelet.use": "always",
                "kubelet.socket": folder / LISTING / "kubelet.sock",
                "kubelet.dir": folder / KUBELET,
                "dra.mode": "dynamic",
                **_DEFAULTS,
            },
        )

    async def begin(self) -> None:
        await self.cluster.start()
        self._scraper = asyncio.create_task(self._scrape())

    def stop(self) -> None:
        self.do(self._end())
        super().stop()

    async def _end(self) -> None:
        self._scraper.cancel()
        await self.cluster.stop()

    async def _scrape(self) -> None:
        """What Prometheus asks, and one of the pages that people do."""
        for page in cycle(_PAGES):
            await asyncio.sleep(_SCRAPE)
            for path in ("/metrics", page):
                try:
                    status, _ = await pages.ask(self.folder / "run" / "agent.sock", path)
                    self.answers[status] += 1
                except OSError:  # its folder is gone, or the disk full
                    self.answers["none"] += 1


class _Cluster(Cluster):
    """Forgets what is over, as a cluster does."""

    scan = 1.0

    def forget(self) -> None:
        self._api.requests.clear()
        self._api.drop_events()
        self._api.expire()
        self._api.claims = ClaimStatusRules()
        plugins = self._kubelet.plugins
        calls = (self._kubelet.calls, self._listing.calls)
        for said in (*calls, plugins.refusals, plugins.failures):
            said.clear()
        web_app._cached_build_middleware.cache_clear()  # of servers that were restarted
        for number in range(self._finished + 1, self._pods + 1):
            with suppress(KeyError):
                self._listing.finish(f"pod-{number}")
        self._finished = self._pods

    _finished = 0


class _Player(Player):
    """Writes plans to the Node. `prepared`: how many pods ran with what they claimed."""

    def __init__(self, machine: _Machine, rng: random.Random) -> None:
        super().__init__(machine)
        self._soaked = machine
        self._rng = rng
        self._day = Day(rng, "h100-80gb:2", 2, has_mps=True)
        self.prepared = 0
        self.actions = Counter[str]()

    def play_round(self, until: float) -> None:
        machine, rng = self._soaked, self._rng
        busy = until - ROUND + _BUSY
        scenes, weights = zip(*SCENES, *WITH_MPS, strict=True)
        prepared = set[str]()  # of the pods of this round
        while CLOCK.now < busy:
            for step in rng.choices(scenes, weights)[0](self._day):
                if not isinstance(step.action, _NOT_HERE):
                    self.actions[type(step.action).__name__] += 1
                    self.act(step.action)
                    machine.run(step.seconds)
            self._act_in_cluster()
            machine.run(rng.uniform(0.0, 20.0))
            prepared |= machine.cluster.prepared().keys()
        self.prepared += len(prepared)
        self._rest(until)

    def _act_in_cluster(self) -> None:
        cluster, rng = self._soaked.cluster, self._rng
        what = rng.choice(("pod", "pod", "delete", "api", "kubelet"))
        self.actions[f"({what})"] += 1
        match what:
            case "pod":
                cluster.add_pod(rng.randrange(4))
            case "delete":
                cluster.delete_pod(rng.randrange(4))
            case "api":
                cluster.spoil(rng.choice(_SPOILT), rng.choice((1, 3, 10)))
            case _:
                cluster.spoil_kubelet(rng.choice(("gone", "restart", "hold")))

    def _rest(self, until: float) -> None:
        """All faults end, and all who use anything; the plan is always the same."""
        machine, node, border = self._soaked, self._soaked.node, self._soaked.border
        border.arrivals.clear()
        node.release()
        self.act(EndFaults())
        machine.cluster.recover()
        for card in node.cards:
            if card.state.failure:
                node.reset(card.index)
        machine.cluster.delete_pods()
        self._write(_REST)
        machine.run(until - CLOCK.now)
        wrong = truth.differences(node, machine.folder, _REST, modes_kept=False)
        if wrong or machine.witness.phase != IN_SYNC:
            machine.witness.violate(NEVER, f"{machine.witness.phase}: {'; '.join(wrong)}")
        machine.cluster.forget()
        border.forget()
        node.journal.clear()

    def _write(self, plan: Plan | BadPlan) -> None:
        if isinstance(plan, Plan):  # daemons are processes in real time: one is enough
            plan = replace(plan, mps=tuple(gpu for gpu in plan.mps if gpu))
        self._soaked.cluster.write_plan(plan.text)


async def _count() -> dict[str, int]:
    """What there is of it now, in this process."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what is resident is in use, but for the rest of a page
    found = memory()
    del found["blocks"]  # there are none of Python's own
    return {
        **found,
        "descriptors": len(truth.descriptors()),
        "tasks": len(asyncio.all_tasks()),
        "threads": threading.active_count(),
    }


def main(hours: float, seed: int) -> int:
    """Print the growth in an hour; 1 where anything was wrong."""
    programs()  # removed when this process ends
    CLOCK.begin(seed)
    began = time.perf_counter()
    folder = Path(tempfile.mkdtemp(prefix="soak-", dir="/dev/shm"))
    machine = _Machine(folder)
    player = _Player(machine, random.Random(seed))
    counts: dict[str, array[int]] = {}
    try:
        machine.start()
        begin = CLOCK.now
        for number in range(1, round(hours * 3600 / ROUND) + 1):
            player.play_round(begin + number * ROUND)
            found = machine.do(_count())
            for name, count in found.items():
                counts.setdefault(name, array("q")).append(count)
            print(f"{number * ROUND / 3600:.2f} h", found, file=sys.stderr, flush=True)
        machine.stop()
    finally:
        machine.close()
        shutil.rmtree(folder, ignore_errors=True)
    grown = _show(counts, time.perf_counter() - began)
    show("What happened", ["what", "times"], sorted(map(list, player.actions.items())))
    show("Answers", ["status", "times"], sorted(map(list, machine.answers.items())))
    # What is left in the end is gRPC's, whose last objects go with the process.
    violations = [one for one in machine.witness.violations if one.kind != LEAK]
    print(f"pods that ran with their claims: {player.prepared}")
    print(f"violations: {len(violations)}", *violations, sep="\n")
    print("grown:", ", ".join(grown) or "nothing")
    return 1 if violations or grown else 0


def _show(counts: Mapping[str, array[int]], seconds: float) -> list[str]:
    """By least squares over the second half. What surely grew by more than it may; memory only
    where all that is bounded was full before.
    """
    hours = [number * ROUND / 3600 for number in range(1, len(counts["tasks"]) + 1)]
    half = len(hours) // 2
    slopes = {
        name: slope_of(list(zip(hours, found, strict=True))[half:])
        for name, found in counts.items()
    }
    show(
        f"The agent and its fakes from hour {hours[half]:.1f} to {hours[-1]:.1f}, played in "
        f"{seconds:.0f} s",
        ["what", "then", "in the end", "growth in an hour ± standard error"],
        [[name, counts[name][half], counts[name][-1], str(slopes[name])] for name in counts],
    )
    most = _MAX_GROWTH | ({_IN_USE: _MAX_KIB} if hours[half] >= _FULL else {})
    return [name for name in most if slopes[name].value - 2 * slopes[name].error > most[name]]


if __name__ == "__main__":
    if not _ENVIRONMENT.items() <= os.environ.items():  # read at the start of a process
        os.environ.update(_ENVIRONMENT)
        os.execv(sys.executable, [sys.executable, "-m", "tests.campaign.soak", *sys.argv[1:]])
    asked = argparse.ArgumentParser("python -m tests.campaign.soak", description=__doc__)
    asked.add_argument("hours", nargs="?", type=float, default=HOURS)
    asked.add_argument("seed", nargs="?", type=int, default=1)
    options = asked.parse_args()
    if options.hours < 1:
        asked.error("a line through the second half takes an hour at least")
    sys.exit(main(options.hours, options.seed))
