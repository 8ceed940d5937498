import subprocess
import sys
from pathlib import Path

import pytest

from nodeagent.processor_waits import AnswerTime, ProcessorWaits, Stopwatch
from tests.agent_environment import agent_environment

# Beside another process that never waits, on one processor, and the nicer one of the two.
STARVED = """
import os, subprocess, sys, time

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
"""
CALL = """
import asyncio
from nodeagent.gpu.workers import Worker, current

def at_work():
    current().begin("nvmlDeviceGetUUID")
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        pass

async def main():
    os.nice(19)
    worker = Worker("GPU 3")
    await worker.call(os.getpid, what="beginning", deadline=30)
    await worker.call({function}, what="asking it", deadline=0.5)

try:
    asyncio.run(main())
except Exception as error:
    print(error, flush=True)
other.kill()
os._exit(0)
"""
JUDGE = """
from nodeagent.telemetry.sampling_service import Scarcity

os.nice(19)
scarcity = Scarcity(window=0.5)
scarcity.problem()
end = time.monotonic() + 1.0
while time.monotonic() < end:
    pass
print(scarcity.problem().code)
time.sleep(0.6)
print(scarcity.problem().code)
other.kill()
while scarcity.problem():
    time.sleep(0.1)
print("over", flush=True)
os._exit(0)
"""
pytestmark = pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="the kernel counts no waits"
)


def run_starved(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", STARVED + program],
        env=agent_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_too_little_processor_time_is_a_problem_of_its_own() -> None:
    """While the agent waits most of the time, and a while longer, so that it does not flicker."""
    assert run_starved(JUDGE).splitlines() == ["Starved", "Starved", "over"]


@pytest.mark.parametrize(
    ("function", "hangs"), [("at_work", False), ("lambda: time.sleep(60)", True)]
)
def test_a_driver_call_is_not_late_while_this_process_waits(function: str, *, hangs: bool) -> None:
    """One that works, with a small part of the processor's time, is no hang; one that hangs is."""
    said = run_starved(CALL.replace("{function}", function))
    assert ("did not return within 0.5 s" in said) is hangs, said


def test_who_slept_and_runs_now_has_not_waited() -> None:
    program = "import time; time.sleep(3); print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        waits = ProcessorWaits(process.pid)
        assert process.stdout is not None
        process.stdout.readline()
        share = waits.share()
        process.kill()
    assert share < 0.5


async def test_a_wait_that_is_over_soon_reads_nothing_of_the_kernel() -> None:
    """An idle agent makes some calls of the driver each second, which take no time."""
    spent = Stopwatch(limit=30.0)
    spent.look()
    spent.next(0.1)
    assert spent._waits is None
    spent.look()
    assert spent._waits is not None


def test_who_had_no_processor_is_not_late() -> None:
    left = iter([0.1, 0.5, 0.5, 2.0, 0.1])
    time = AnswerTime(1.0, lambda: lambda: next(left))
    found = [time.is_too_short() for _ in range(5)]
    assert found == [False, True, True, False, False]  # the first question has no earlier one
    time.restart()
    assert [time.is_too_short() for _ in range(2)] == [False, True]
