import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from nodeagent.plan.problems import Code as ProblemCode
from nodeagent.simulation import SimulatedNode, simulated
from tests.acceptance.metrics_rig import SOON, Watched, parsed, reported, running
from tests.cluster.client.rig import until
from tests.machine_load import stretched
from tests.rig import open_driver


@asynccontextmanager
async def watching(
    boards: str = "t4:1", **settings: Any
) -> AsyncIterator[tuple[Watched, SimulatedNode]]:
    """The metrics of a simulated node, while they are served."""
    with simulated(boards) as node:
        async with open_driver() as driver:
            await driver.observe()
            watched = Watched(driver, **settings)
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


async def test_names_and_labels_as_they_are_set() -> None:
    names = {"metrics_names": "renamed", "metrics_host_label": "hostname"}
    async with watching(**names) as (watched, _):
        await _exported(watched, "DCGM_FI_DEV_BOARD_POWER_WATTS{")
        assert ',hostname="gpu-node-0",' in watched.text()
    async with watching(metrics_host_label="none") as (watched, _):
        await _exported(watched, "DCGM_FI_DEV_POWER_USAGE{")
        assert "ostname=" not in watched.text()
