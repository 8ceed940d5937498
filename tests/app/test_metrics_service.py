import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from nodeagent.health.findings import Moment
from nodeagent.health.state import GpuHistory, HealthState, XidCount
from nodeagent.plan.problems import Code as ProblemCode
from nodeagent.simulation import SimulatedNode
from nodeagent.structs import replace
from tests.acceptance.metrics_rig import SOON, Watched, parsed, reported, running
from tests.machine_load import stretched, until
from tests.rig import driving


@asynccontextmanager
async def watching(
    boards: str = "t4:1", **settings: Any
) -> AsyncIterator[tuple[Watched, SimulatedNode]]:
    async with driving(boards) as (driver, node):
        observed = await driver.observe()
        watched = Watched(driver, **settings)
        watched.observed(observed)
        async with running(watched):
            yield watched, node


async def _exported(watched: Watched, text: str) -> None:
    await until(lambda: text in watched.text())


async def test_a_changed_file_of_counters_acts_at_once(tmp_path: Path) -> None:
    path = tmp_path / "counters.csv"
    path.write_text("DCGM_FI_DEV_GPU_TEMP, gauge, t\nDCGM_FI_DEV_POWER_USAG, gauge, p\n")
    async with watching(metrics_counters=str(path)) as (watched, _):
        await _exported(watched, "DCGM_FI_DEV_GPU_TEMP{")
        (problem,) = watched.part.problems
        assert "did you mean DCGM_FI_DEV_POWER_USAGE?" in problem.message
        assert "\nnodeagent_counters_ignored 1\n" in watched.text()
        path.write_text("DCGM_FI_DEV_SM_CLOCK, gauge, c\nDCGM_FI_DEV_GPU_TEMP, gauge, t\n")
        seen = []
        async with asyncio.timeout(stretched(SOON)):
            while "DCGM_FI_DEV_SM_CLOCK{" not in (text := watched.text()):
                seen.append("DCGM_FI_DEV_GPU_TEMP{" in text)
                await asyncio.sleep(0.002)
        assert all(seen)
        assert not watched.part.problems
        path.write_text("nothing of use\n")
        await until(lambda: watched.part.problems)
        assert watched.part.problems[0].code is ProblemCode.METRICS
        assert "DCGM_FI_DEV_SM_CLOCK{" in watched.text()


async def test_a_large_file_of_counters_holds_up_nothing(tmp_path: Path) -> None:
    path = tmp_path / "counters.csv"
    wrong = "".join(f"DCGM_FI_DEV_NOT_{n}, gauge, x\n" for n in range(LINES))
    path.write_text("DCGM_FI_DEV_GPU_TEMP, gauge, t\n" + wrong)
    with longest_turn() as calls:
        async with watching(metrics_counters=str(path)) as (watched, _):
            await until(lambda: watched.part.problems)
            assert f"\nnodeagent_counters_ignored {LINES}\n" in watched.text()
            path.write_text("DCGM_FI_DEV_GPU_TEMP, gauge, t\n" + 2 * wrong)
            lines = f"{2 * LINES + 2:,} lines"
            await until(lambda: lines in watched.part.problems[0].message)
            assert f"\nnodeagent_counters_ignored {LINES}\n" in watched.text()
    assert max(calls) < LINES


LINES = 4000


@contextmanager
def longest_turn() -> Iterator[list[int]]:
    """The calls that each callback of this thread's event loop makes; no measure of time."""
    calls = [0]

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is asyncio.Handle._run.__code__:
            calls.append(0)
        calls[-1] += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(None)


async def test_without_its_file_the_default_fields_are_exported(tmp_path: Path) -> None:
    async with watching(metrics_counters=str(tmp_path / "missing.csv")) as (watched, _):
        await _exported(watched, "DCGM_FI_DEV_GPU_TEMP{")
        assert "metrics.counters" in watched.part.problems[0].remedy


async def test_a_driver_that_hangs_holds_up_no_scrape() -> None:
    async with watching("t4:2", sample_deadline="1s") as (watched, node):
        await watched.sampled(2)
        first, second = (card.identity.uuid for card in node.cards)
        node.inject("nvmlDeviceGetTemperature*", gpu=0, hang=True, times=None)
        failed = f'nodeagent_reader_success{{reader="fast",gpu="0",UUID="{first}"}} 0'
        await _exported(watched, failed)
        began = time.monotonic()
        series = [parsed(watched.text()) for _ in range(60)][-1]
        assert time.monotonic() - began < 60  # each that waits for its deadline adds 1 s
        assert len(reported(series, "DCGM_FI_DEV_GPU_TEMP", UUID=first)) == 1
        ages = [
            reported(series, "nodeagent_sample_age_seconds", reader="fast", UUID=uuid)[0]
            for uuid in (first, second)
        ]
        assert ages[0] > ages[1]
        assert reported(series, "nodeagent_reader_success", UUID=second) == [1, 1]
        node.clear_faults()


async def test_the_history_has_a_gap_where_a_gpu_does_not_answer() -> None:
    async with watching("t4:2", sample_deadline="1s") as (watched, node):
        watched.part.history.step = 0.1
        first, second = (card.identity.uuid for card in node.cards)

        def known(uuid: str, count: int) -> list[bool]:
            now = asyncio.get_running_loop().time()
            found = watched.part.history.shape(now, datetime.now(UTC), uuid)
            values = found.gpus[uuid].temperature[-count:-1] if found else []
            return [value is not None for value in values]

        await until(lambda: all(map(any, (known(first, 5), known(second, 5)))))
        node.inject("nvmlDeviceGetTemperature*", gpu=0, hang=True, times=None)
        await until(lambda: known(first, 30) == [False] * 29 and all(known(second, 3)))
        node.clear_faults()
        await until(lambda: all(known(first, 3)) and not all(known(first, 90)))


async def test_names_and_labels_as_they_are_set() -> None:
    names = {"metrics_names": "renamed", "metrics_host_label": "hostname"}
    async with watching(**names) as (watched, _):
        await _exported(watched, "DCGM_FI_DEV_BOARD_POWER_WATTS{")
        assert ',hostname="gpu-node-0",' in watched.text()
    async with watching(metrics_host_label="none") as (watched, _):
        await _exported(watched, "DCGM_FI_DEV_POWER_USAGE{")
        assert "ostname=" not in watched.text()


async def test_what_dcgm_exporter_makes_of_readings_is_there_where_it_is_selected(
    tmp_path: Path,
) -> None:
    path = tmp_path / "counters.csv"
    names = ("XID_ERRORS_COUNT", "CLOCK_EVENTS_COUNT", "GPU_HEALTH_STATUS")
    path.write_text("".join(f"DCGM_EXP_{name}, gauge, x\n" for name in names))
    async with watching(metrics_counters=str(path)) as (watched, node):
        uuid = node.cards[0].identity.uuid
        window = {"window_size_in_ms": "300000"}

        def found(name: str, **labels: str) -> list[float]:
            return reported(parsed(watched.text()), f"DCGM_EXP_{name}", UUID=uuid, **labels)

        for count in (7, 9):  # those from before the agent's start do not count
            health = HealthState(
                gpus={uuid: GpuHistory(0, checked=frozenset({"pcie"}))},
                xids=(XidCount(uuid, 31, None, count, Moment(1.0, 1.0)),),
            )
            watched.state = replace(watched.state, health=health)
            await watched.sampled(2)
        await until(lambda: found("XID_ERRORS_COUNT", xid="31", **window) == [2])
        await until(lambda: found("CLOCK_EVENTS_COUNT", clock_event="gpu_idle", **window) > [1])
        assert found("GPU_HEALTH_STATUS", health_watch="pcie") == [0]
