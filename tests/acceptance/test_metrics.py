import asyncio
import gzip
import re
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from nodeagent.app.metrics_service import MetricsService
from nodeagent.app.use_service import use_file
from nodeagent.cluster.kubelet.device_users import KubeletUsage
from nodeagent.cluster.kubelet.processes import Owner, ProcessPods
from nodeagent.gpu.driver import Driver
from nodeagent.plan.plan import NodeOutcome
from nodeagent.plan.steps import SetMigMode, Step
from nodeagent.simulation import SimulatedNode, simulated
from nodeagent.simulation.admission import memory_of
from nodeagent.views.node_state import NodeState, Phase
from tests.acceptance.metrics_rig import SOON, Watched, divide, parsed, reported, running
from tests.machine_load import stretched, until
from tests.monitoring.promtool import with_promtool
from tests.rig import Rig, driving, open_driver
from tests.rig import running as reconciling
from tests.simulated_cluster.kubelet import Kubelet

MIB = 1 << 20
DATA = Path(__file__).parents[1] / "data/metrics"
BOARDS = {
    "simulated_h100_mig": "h100-80gb:1",
    "simulated_a100": "a100-40gb:2",
    "simulated_t4": "t4:1",
}

# What names and labels that are not ours make promtool say.
_OF_DCGM = (
    'counter metrics should have "_total" suffix',
    "label names should be written in 'snake_case' not 'camelCase'",
    "metric name should not include type 'counter'",
    'non-counter metrics should not have "_total" suffix',
)
# These depend on one moment's load, and differ between machines.
_VARIES = re.compile(r"^(nodeagent_build_info|nodeagent_reader|nodeagent_sample|process_)")


async def _text(board: str) -> str:
    """What an idle node exports; an H100 is divided."""
    async with driving(board) as (driver, _):
        if board.startswith("h100"):
            await divide(driver, (("3g.40gb", 1), ("1g.10gb", 2)))
        watched = Watched(driver)
        watched.observed(await driver.observe())
        async with running(watched):
            await watched.sampled(4)
            return watched.text()


def _lasting(text: str) -> str:
    lines = text.splitlines(keepends=True)
    names = (re.sub(r"^# (HELP|TYPE) ", "", line) for line in lines)
    return "".join(line for line, name in zip(lines, names, strict=True) if not _VARIES.match(name))


@pytest.mark.parametrize("name", BOARDS)
async def test_the_text_of_each_board_is_as_it_was(name: str) -> None:
    assert _lasting(await _text(BOARDS[name])) == (DATA / f"{name}.prom").read_text("utf-8")


@with_promtool
@pytest.mark.parametrize("name", BOARDS)
async def test_promtool_finds_nothing_that_dcgm_did_not_choose(name: str) -> None:
    """Prometheus reads all of it; of the names only those that dcgm-exporter has are odd to it."""
    text = (await _text(BOARDS[name])).encode()
    done = await asyncio.to_thread(
        subprocess.run,
        ["promtool", "check", "metrics"],
        input=text,
        capture_output=True,
        check=False,
    )
    assert done.returncode in {0, 3}  # 3: only matters of taste
    odd = [line for line in done.stderr.decode().splitlines() if not line.endswith(_OF_DCGM)]
    assert not odd
    assert "nodeagent_" not in done.stderr.decode()


async def test_figures_of_the_driver_are_read_back_in_dcgms_units() -> None:
    async with driving("h100-80gb:2") as (driver, node):
        observed = await divide(driver, (("1g.10gb", 7),), only=0)
        device = observed.gpus[0].instances[0].compute[0].uuid
        node.set_figures(0, {"power.usage": 123_456, "temperature.gpu": 71})
        node.set_figures(1, {"utilization.gpu": 42, "gpm.20": 2.5, "energy": 987_654_321})
        node.set_figures(device, {"gpm.2": 37.5})
        node.occupy(device, memory=1000 * MIB)
        node.occupy(1, memory=3000 * MIB)
        watched = Watched(driver)
        watched.observed(observed)
        async with running(watched):
            await watched.sampled(4)
            series = parsed(watched.text())
        used = memory_of(node.card(1))[1]
    first, second = (gpu.uuid for gpu in observed.gpus)
    number = str(observed.gpus[0].instances[0].id)
    for name, labels, expected in (
        ("DCGM_FI_DEV_POWER_USAGE", {"UUID": first}, [123.456]),
        ("DCGM_FI_DEV_GPU_TEMP", {"UUID": first}, [71]),
        ("DCGM_FI_PROF_PCIE_TX_BYTES", {"UUID": second}, [2.5 * MIB]),
        ("DCGM_FI_DEV_GPU_UTIL", {"UUID": second}, [42]),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", {"UUID": second}, [987_654_321]),
        ("DCGM_FI_PROF_SM_ACTIVE", {"UUID": first, "GPU_I_ID": number}, [0.375]),
        ("DCGM_FI_DEV_FB_USED", {"UUID": second}, [used // MIB]),
        ("nodeagent_mig_instances", {"UUID": first, "GPU_I_PROFILE": "1g.10gb"}, [7]),
    ):
        assert reported(series, name, **labels) == expected, name
    assert reported(series, "DCGM_FI_DEV_FB_USED", UUID=first, GPU_I_ID=number)[0] >= 1000


# --- two on one GPU -------------------------------------------------------------------------------

UIDS = {"a": "0000000a-0000-4000-8000-000000000000", "b": "0000000b-0000-4000-8000-000000000000"}


def _process(folder: Path, pid: int, pod: str) -> None:
    (folder / f"log/pods/team_{pod}_{UIDS[pod]}/main").mkdir(parents=True, exist_ok=True)
    (folder / f"proc/{pid}").mkdir(parents=True)
    cgroup = f"0::/kubepods/burstable/pod{UIDS[pod]}/{'c' * 64}\n"
    (folder / f"proc/{pid}/cgroup").write_text(cgroup)


@asynccontextmanager
async def _shared(
    folder: Path, node: SimulatedNode, kind: str
) -> AsyncIterator[tuple[Driver, Watched]]:
    """One T4 that the kubelet gave to two pods, each with processes on it."""
    for pid, pod, memory in ((101, "a", 1000), (102, "a", 200), (201, "b", 3000)):
        _process(folder, pid, pod)
        node.occupy(0, pid, memory=memory * MIB, kind=kind)
    pods = ProcessPods(proc_root=folder / "proc", log_root=folder / "log")
    uuid = node.card(0).identity.uuid
    async with Kubelet(folder) as kubelet:
        for replica, pod in enumerate("ab"):
            kubelet.allocate(pod, [f"{uuid}::{replica}"], namespace="team")
        usage = KubeletUsage(kubelet.socket, deadline=30, processes=pods)
        driver = Driver(observe_deadline=30, step_deadline=30, sources=[usage])
        async with driver:
            watched = Watched(driver)
            watched.observed(await driver.observe())
            async with running(watched):
                await watched.sampled(2)
                yield driver, watched


@pytest.mark.parametrize("kind", ["mps", "compute"])
async def test_pods_that_share_a_gpu_see_their_own_memory(tmp_path: Path, kind: str) -> None:
    with simulated("t4:1") as node:
        async with _shared(tmp_path, node, kind) as (driver, watched):
            series = parsed(watched.text())
            used = memory_of(node.card(0))[1] // MIB
            assert reported(series, "DCGM_FI_DEV_FB_USED", namespace="team", pod="a") == [1200]
            assert reported(series, "DCGM_FI_DEV_FB_USED", namespace="team", pod="b") == [3000]
            assert sum(reported(series, "DCGM_FI_DEV_FB_USED")) == used
            assert len(reported(series, "DCGM_FI_DEV_FB_USED")) == 3
            # What cannot be divided is exported once, and for neither of them.
            assert len(reported(series, "DCGM_FI_DEV_POWER_USAGE")) == 1
            assert not reported(series, "DCGM_FI_DEV_POWER_USAGE", pod="a")
            held = reported(series, "nodeagent_held_seconds_total", pod="a")
            assert held == pytest.approx(reported(series, "nodeagent_held_seconds_total", pod="b"))
            node.release(pid=201)
            watched.observed(await driver.observe())
            await watched.sampled(1)
            series = parsed(watched.text())
            assert reported(series, "DCGM_FI_DEV_FB_USED", pod="b") == []
            assert sum(reported(series, "DCGM_FI_DEV_FB_USED")) == memory_of(node.card(0))[1] // MIB


async def test_pods_that_share_a_gpu_see_their_own_utilization(tmp_path: Path) -> None:
    """The driver reports it of processes outside MIG; what is left has no owner."""
    with simulated("t4:1") as node:
        node.set_figures(0, {"utilization.gpu": 90})
        async with _shared(tmp_path, node, "compute") as (_, watched):
            node.set_figures(0, {"process.101.sm": 30, "process.102.sm": 15, "process.201.sm": 40})
            await watched.sampling.list_processes()
            async with asyncio.timeout(
                stretched(SOON)
            ):  # a round that had begun before may come first
                while not reported(parsed(watched.text()), "DCGM_FI_DEV_GPU_UTIL", pod="a"):
                    await watched.sampled(1)
            series = parsed(watched.text())
            assert reported(series, "DCGM_FI_DEV_GPU_UTIL", pod="a") == [45]
            assert reported(series, "DCGM_FI_DEV_GPU_UTIL", pod="b") == [40]
            assert sum(reported(series, "DCGM_FI_DEV_GPU_UTIL")) == 90


async def test_what_is_held_goes_on_once_owners_are_known(tmp_path: Path) -> None:
    """A new agent does not take those for gone whose owners it has not looked up yet."""
    async with driving("t4:1") as (driver, node):
        node.occupy(0, pid=77)

        async def recorded() -> tuple[float, float]:
            looked_up, records = threading.Event(), use_file(tmp_path / "use.json")

            def owners(pids: Collection[int]) -> Mapping[int, Owner]:
                looked_up.wait(SOON)
                return dict.fromkeys(pids, Owner(user="7"))

            made = partial(MetricsService, owners=owners, use_file=records.path)
            watched = Watched(driver, made=made)
            watched.observed(await driver.observe())
            async with running(watched):
                await watched.sampled(3)
                looked_up.set()
                await until(lambda: 'user="7"' in watched.text())
                await watched.sampled(2)
            kept = records.load()
            assert kept is not None
            return sum(digest.held for _, digest in kept.newer), kept.seen

        first, second = await recorded(), await recorded()
        assert second[0] - first[0] == pytest.approx(second[1] - first[1])


async def _write_kept() -> None:
    for name, board in BOARDS.items():
        (DATA / f"{name}.prom").write_text(_lasting(await _text(board)), "utf-8")


if __name__ == "__main__":
    asyncio.run(_write_kept())


# --- scrapes while layouts change -----------------------------------------------------------------


LAYOUTS = ("{1g.10gb: 7}", "{3g.40gb: 1, 1g.10gb: 4}", "{2g.20gb: 3, 1g.10gb: 1}", "{3g.40gb: 2}")


@dataclass(slots=True)
class _Life:
    """When an instance was there, from `born` to `died` (monotonic)."""

    gpu: str
    id: int
    born: float
    died: float = float("inf")


class Truth:
    """Which instances there were when, as the simulated cards had them after each step."""

    def __init__(self, node: SimulatedNode, driver: Driver) -> None:
        self._node = node
        self._there: dict[tuple[str, int, int], _Life] = {}
        self.lives: list[_Life] = []
        driver.applied.subscribe(self._look)

    def _look(self, _: Step | None) -> None:
        now = time.monotonic()
        found = {
            (card.identity.uuid, instance.id, instance.serial)
            for card in self._node.cards
            for instance in card.state.instances
        }
        for key in [key for key in self._there if key not in found]:
            self._there.pop(key).died = now
        for key in found - self._there.keys():
            life = self._there[key] = _Life(key[0], key[1], now)
            self.lives.append(life)

    def was_there(self, gpu: str, number: int, since: float) -> bool:
        return any(
            life.gpu == gpu and life.id == number and life.died >= since for life in self.lives
        )


def _rig(folder: Path, driver: Driver, watched: list[Watched]) -> Rig:
    def published(_: NodeState) -> None:
        for one in watched:
            one.part.exporter.changed()

    def round_over(outcome: NodeOutcome | None, seconds: float) -> None:
        for one in watched:
            one.part.exporter.work.add_round(outcome, seconds)

    return Rig(folder, driver=driver, on_state=published, on_round=round_over)


class Scraper:
    """Scrapes again and again, and notes what is wrong with a scrape."""

    def __init__(self, watched: Watched, truth: Truth) -> None:
        self.count = 0
        self.wrong: list[str] = []
        self._watched = watched
        self._truth = truth
        self._counters: dict[str, float] = {}

    async def run(self, times: int) -> None:
        for number in range(times):
            asked = time.monotonic()
            zipped = self._watched.part.scrape(bool(number % 2))
            text = (gzip.decompress(zipped) if number % 2 else zipped).decode()
            self.count += 1
            self._check(text, asked)
            await asyncio.sleep(0.004)

    def _check(self, text: str, asked: float) -> None:
        # Read line by line: Prometheus' parser takes ten times as long, and proves no more here.
        lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
        gpus = sum(1 for key, _, _ in lines if key.startswith("DCGM_FI_DEV_POWER_USAGE{"))
        if gpus != 2:
            self.wrong.append(f"scrape {self.count} has the power of {gpus} GPUs")
        values = {key: float(value) for key, _, value in lines}
        for gpu, number in set(_INSTANCE.findall(text)):
            age, took = (_of_reader(values, name, gpu) for name in (_AGE, _DURATION))
            # A look reads which instances there are after it began, so earlier is too early.
            if not self._truth.was_there(gpu, int(number), asked - age - took):
                self.wrong.append(f"scrape {self.count} reports {gpu} {number}, which was gone")
        counted = _counters(text)
        for key, value in values.items():
            if key.partition("{")[0] in counted:
                if value < self._counters.get(key, 0.0):
                    self.wrong.append(f"scrape {self.count}: {key} went back to {value}")
                self._counters[key] = value


_INSTANCE = re.compile(r'UUID="([^"]+)".*GPU_I_ID="([0-9]+)"')
_AGE, _DURATION = "nodeagent_sample_age_seconds", "nodeagent_reader_duration_seconds"


def _of_reader(values: Mapping[str, float], name: str, gpu: str) -> float:
    begins, ends = f'{name}{{reader="fast",', f'UUID="{gpu}"}}'
    return next(v for key, v in values.items() if key.startswith(begins) and key.endswith(ends))


def _counters(text: str) -> set[str]:
    def names() -> Iterator[str]:
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                _, _, name, kind = line.split()
                if kind == "counter" and name != "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL":
                    yield name  # that one is a rate, whatever dcgm-exporter calls it
                if kind == "histogram":
                    yield from (f"{name}_count", f"{name}_sum")

    return set(names())


@pytest.mark.parametrize(
    ("scrapes", "changes"), [(30, 6), pytest.param(500, 100, marks=pytest.mark.full)]
)
async def test_scrapes_during_changes(tmp_path: Path, scrapes: int, changes: int) -> None:
    with simulated("h100-80gb:2") as node:
        driver = open_driver()
        watching: list[Watched] = []
        rig = _rig(tmp_path, driver, watching)
        rig.offer(LAYOUTS[0])
        async with reconciling(rig):
            await asyncio.wait_for(rig.control.settled.wait(), stretched(60))
            truth = Truth(node, driver)
            watched = Watched(driver, current=lambda: rig.state)
            watching.append(watched)
            async with running(watched):
                await watched.sampled(2)
                scraper = Scraper(watched, truth)
                truth._look(SetMigMode("", True, ""))
                scraping = asyncio.create_task(scraper.run(scrapes))
                applied = 0
                while applied < changes or not scraping.done():
                    applied += 1
                    await _apply(rig, LAYOUTS[applied % len(LAYOUTS)])
                await scraping
            assert scraper.count == scrapes
            assert applied >= changes
            assert not scraper.wrong, scraper.wrong[:5]
            assert len(truth.lives) > changes  # else nothing was tried


async def _apply(rig: Rig, layout: str) -> None:
    await rig.rest()
    before = rig.state.rounds
    rig.offer(layout)
    await until(lambda: rig.state.rounds != before and rig.state.phase is Phase.IN_SYNC)
