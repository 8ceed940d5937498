import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from nodeagent.errors import DriverError
from nodeagent.gpu.driver import Driver
from nodeagent.simulation import SimulatedNode, Switches, simulated
from nodeagent.simulation.codes import Code
from nodeagent.telemetry.process_reader import ProcessReader, process_samples
from nodeagent.telemetry.samples import ProcessReading, ProcessSample
from tests.acceptance.metrics_rig import divide
from tests.rig import driving, open_driver

MIB = 1 << 20


async def _look(driver: Driver, reader: ProcessReader | None = None) -> ProcessSample:
    reader = reader or ProcessReader()
    return await driver.pool.visit(0, reader.read, what="listing processes", deadline=5)


@asynccontextmanager
async def _busy(*, zero: bool = False) -> AsyncIterator[tuple[Driver, SimulatedNode]]:
    with simulated("t4:1", switches=Switches(zero_outside_mig=zero)) as node:
        node.occupy(0, 101, memory=100 * MIB)
        node.occupy(0, 102, memory=None, kind="graphics")
        node.occupy(0, 103, memory=300 * MIB, kind="mps")
        node.set_figures(0, {"process.101.sm": 30, "process.103.sm": 15})
        async with open_driver() as driver:
            await driver.observe()
            yield driver, node


@pytest.mark.parametrize("zero", [False, True])
async def test_all_kinds_of_processes_with_memory_and_time(zero: bool) -> None:
    async with _busy(zero=zero) as (driver, _):
        look = await _look(driver)
    assert look.running == {
        None: (
            ProcessReading(101, 100 * MIB, 30.0),
            ProcessReading(102),
            ProcessReading(103, 300 * MIB, 15.0),
        )
    }


async def test_a_clock_that_was_set_back_hides_no_work() -> None:
    """The driver's samples have the time of day, and so has the last one that was read."""
    async with _busy() as (driver, _):
        in_an_hour = time.time_ns() // 1000 + 3600 * 1_000_000
        reader = ProcessReader(in_an_hour)
        await _look(driver, reader)
        look = await _look(driver, reader)
    assert [process.multiprocessors for process in look.running[None]] == [30.0, None, 15.0]


async def test_instances_have_their_own() -> None:
    async with driving("h100-80gb:1") as (driver, node):
        observed = await divide(driver, (("1g.10gb", 7),))
        first, second = observed.gpus[0].instances[:2]
        node.occupy(first.compute[0].uuid, 101, memory=MIB)
        node.occupy(second.compute[0].uuid, 102, memory=2 * MIB)
        look = await _look(driver)
    assert look.gpu == observed.gpus[0].uuid
    assert look.running == {
        first.id: (ProcessReading(101, MIB),),
        second.id: (ProcessReading(102, 2 * MIB),),
    }


async def test_what_a_card_does_not_have_is_not_asked_again() -> None:
    async with _busy() as (driver, node):
        node.inject("nvmlDeviceGetMPSCompute*", error=Code.NOT_SUPPORTED, times=None)
        node.inject("nvmlDeviceGetProcessUtilization", error=Code.NOT_SUPPORTED, times=None)
        reader = ProcessReader()
        await _look(driver, reader)
        node.journal.clear()
        look = await _look(driver, reader)
        names = set(node.journal.counts)
    assert look.running == {None: (ProcessReading(101, 100 * MIB), ProcessReading(102))}
    assert not {name for name in names if "Utilization" in name}


async def test_a_list_that_fails_leaves_the_others() -> None:
    async with _busy() as (driver, node):
        reader = ProcessReader()
        node.inject("nvmlDeviceGetMPSCompute*", error=Code.UNKNOWN, times=1)
        assert [p.pid for p in (await _look(driver, reader)).running[None]] == [101, 102]
        assert [p.pid for p in (await _look(driver, reader)).running[None]] == [101, 102, 103]


async def test_without_the_compute_list_there_is_no_reading() -> None:
    """The other lists are a part, which would count as all."""
    async with _busy() as (driver, node):
        node.inject("nvmlDeviceGetComputeRunning*", error=Code.UNKNOWN, times=1)
        with pytest.raises(DriverError, match="nvmlDeviceGetComputeRunning"):
            await _look(driver)


def test_the_cost_is_of_this_process() -> None:
    cost = {sample.metric: sample.value for sample in process_samples()}
    memory = cost["process_resident_memory_bytes"]
    assert 10 << 20 < memory < cost["process_virtual_memory_bytes"]
    assert 0 < cost["process_open_fds"] < cost["process_max_fds"]
    assert 0 <= time.time() - cost["process_start_time_seconds"] < 24 * 3600
    own = os.times()
    assert abs(cost["process_cpu_seconds_total"] - own.user - own.system) < 0.5
