"""Time slices are read from nvidia-smi's words, set, and read back."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.errors import DriverError, NodeagentError
from nodeagent.gpu.driver import Driver
from nodeagent.gpu.nvidia_smi import listed_time_slice
from nodeagent.plan.shares import TimeSlice
from nodeagent.simulation import SimulatedNode, Switches, simulated
from tests.gpu.steps_of import time_slice

SMI = [sys.executable, "-m", "nodeagent.simulation.nvidia_smi"]

# As nvidia-smi 535.261.03 and 550.163.01 put it together (read from the programs: head, the row's
# template `| <ID > <NAME         > <VALUE      > |` with %3u, and the values' names).
LISTED = """\
+-------------------------------------+
| GPU compute policies:               |
| GPU     Name           Value        |
|=====================================|
|   0   Timeslice       Default       |
+-------------------------------------+
"""
# What the same programs print when the driver has no such policy.
UNSUPPORTED = """\
+-------------------------------------+
| GPU compute policies:               |
| GPU     Name           Value        |
|=====================================|
Failed to get compute policies for GPU 0 : Not Supported
Failed to retrieve compute policies for requested devices : Not Supported
"""


# --- its words ------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", TimeSlice)
def test_every_value_is_understood(wanted: TimeSlice) -> None:
    """As the program writes it, in whatever columns and capitals."""
    row = LISTED.replace("Default", f"{wanted.value.capitalize():<7}")
    assert listed_time_slice(row) is wanted
    assert listed_time_slice(row.replace(" ", "  ").upper()) is wanted
    assert listed_time_slice(f"| 3  Time-slice  {wanted} |") is wanted


@pytest.mark.parametrize(
    "output",
    [
        "",
        "\n\n",
        UNSUPPORTED,
        LISTED.replace("Default", "Unknown"),
        LISTED.replace("Default", "2 ms   "),
        LISTED.replace("Timeslice", "Preempt  "),
        LISTED + LISTED.replace("Default", "Long   "),  # of two GPUs
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
    ],
)
def test_anything_else_is_not_known(output: str) -> None:
    """Rather nothing than something false."""
    assert listed_time_slice(output) is None


def test_policies_of_another_kind_beside_it_do_not_matter() -> None:
    """A later program may list more."""
    more = LISTED + "|   0   Preemption      Long          |\n"
    assert listed_time_slice(more) is TimeSlice.DEFAULT


# --- with the stand-in ----------------------------------------------------------------------------


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedNode]:
    """Two GPUs that the stand-in for nvidia-smi sees too."""
    state = tmp_path / "node.json"
    monkeypatch.setenv("NODEAGENT_SIMULATED_STATE", str(state))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    with simulated("h100-80gb:2", state=state) as node:
        yield node


async def test_it_is_set_on_one_gpu_and_read_back(shared: SimulatedNode) -> None:
    """By UUID; the other GPU keeps its own."""
    async with Driver(observe_deadline=30, step_deadline=30, nvidia_smi=SMI) as driver:
        first, second = (await driver.observe()).gpus
        assert await driver.time_slice(first.uuid) is TimeSlice.DEFAULT
        await driver.apply(time_slice(second, TimeSlice.LONG))
        assert await driver.time_slice(second.uuid) is TimeSlice.LONG
        assert await driver.time_slice(first.uuid) is TimeSlice.DEFAULT


async def test_a_gpu_without_time_slices_is_reported_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the program's words, with what to do."""
    monkeypatch.setenv("NODEAGENT_SIMULATED_STATE", str(tmp_path / "node.json"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    with simulated("t4", state=tmp_path / "node.json", switches=Switches(time_slices=False)):
        async with Driver(observe_deadline=30, step_deadline=30, nvidia_smi=SMI) as driver:
            (gpu,) = (await driver.observe()).gpus
            with pytest.raises(DriverError, match=r"Not Supported.*leave timeSlice out"):
                await driver.time_slice(gpu.uuid)
            with pytest.raises(DriverError, match=r"ended with 3.*Not Supported"):
                await driver.apply(time_slice(gpu, TimeSlice.LONG))


# --- with programs that misbehave -----------------------------------------------------------------


def program(folder: Path, body: str) -> list[str]:
    """A shell script; `$1 $2 $3 $4` are `compute-policy -i UUID WORD`."""
    path = folder / "smi"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return [str(path)]


async def test_what_is_asked_is_what_the_program_takes(node: SimulatedNode, tmp_path: Path) -> None:
    """One GPU by UUID, long options, a number for the slice."""
    body = f"""echo "$@" >> {tmp_path}/said
    case $4 in --list) echo "| 0 Timeslice $(cat {tmp_path}/is || echo Default) |" ;;
    *) echo Short > {tmp_path}/is ;; esac"""
    smi = program(tmp_path, body)
    async with Driver(observe_deadline=30, step_deadline=30, nvidia_smi=smi) as driver:
        gpu = (await driver.observe()).gpus[0]
        await driver.apply(time_slice(gpu, TimeSlice.SHORT))
        await driver.apply(time_slice(gpu, TimeSlice.SHORT))  # it is so already
    words = f"compute-policy -i {gpu.uuid}"
    said = (tmp_path / "said").read_text().splitlines()  # a test may wait for a small file
    listed = f"{words} --list"
    assert said == [listed, f"{words} --set-timeslice=1", listed, listed]


@pytest.mark.parametrize(
    ("says", "complaint"),
    [
        ("echo '| 0 Timeslice Default |'", "GPU 0: .*but it is default"),
        ("true", "is not known, so it is not changed"),
    ],
)
async def test_success_that_is_not_read_back_is_none(
    node: SimulatedNode, tmp_path: Path, says: str, complaint: str
) -> None:
    """An exit status proves nothing."""
    smi = program(tmp_path, says)
    async with Driver(observe_deadline=30, step_deadline=30, nvidia_smi=smi) as driver:
        gpu = (await driver.observe()).gpus[0]
        with pytest.raises(NodeagentError, match=complaint):
            await driver.apply(time_slice(gpu, TimeSlice.LONG))


async def test_an_unprivileged_user_gets_root_as_the_remedy(
    node: SimulatedNode, tmp_path: Path
) -> None:
    """The exit status is NVML's code."""
    body = "case $4 in --list) echo '| 0 Timeslice Default |' ;; *) echo no; exit 4 ;; esac"
    smi = program(tmp_path, body)
    async with Driver(observe_deadline=30, step_deadline=30, nvidia_smi=smi) as driver:
        gpu = (await driver.observe()).gpus[0]
        with pytest.raises(DriverError, match="run nodeagent as root"):
            await driver.apply(time_slice(gpu, TimeSlice.LONG))


async def test_cancellation_waits_for_the_end_of_the_change(
    node: SimulatedNode, tmp_path: Path
) -> None:
    """So that the next look sees what is."""
    body = f"""case $4 in --list) echo "| 0 Timeslice $(cat {tmp_path}/is || echo Default) |" ;;
    *) touch {tmp_path}/begun; while [ ! -e {tmp_path}/go ]; do sleep 0.01; done
    echo Long > {tmp_path}/is ;; esac"""
    smi = program(tmp_path, body)
    async with Driver(observe_deadline=30, step_deadline=30, nvidia_smi=smi) as driver:
        gpu = (await driver.observe()).gpus[0]
        change = asyncio.create_task(driver.apply(time_slice(gpu, TimeSlice.LONG)))
        while not (tmp_path / "begun").exists():
            await asyncio.sleep(0.01)
        change.cancel()
        await asyncio.sleep(0.02)
        assert not change.done()
        (tmp_path / "go").touch()
        with pytest.raises(asyncio.CancelledError):
            await change
        assert await driver.time_slice(gpu.uuid) is TimeSlice.LONG
