import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.errors import DeadlineExceeded, DriverError, NodeagentError
from nodeagent.gpu.driver import Driver
from nodeagent.gpu.nvidia_smi import listed_time_slice, reset_gpu, run_nvidia_smi
from nodeagent.plan.shares import TimeSlice
from nodeagent.simulation import SimulatedNode, Switches, simulated
from tests.folders import executable
from tests.gpu.steps_of import time_slice
from tests.machine_load import cancelled, until

SAY = """
import os, sys
print(sys.argv[1:], sorted(os.environ), flush=True)
print("oh", file=sys.stderr)
"""


async def run(program: list[str], words: list[str], *, deadline: float = 30) -> str:
    return await run_nvidia_smi(
        program, words, deadline=deadline, remedy=lambda status: f"wait {status} s"
    )


async def test_it_gets_its_words_and_little_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "CUDA_VISIBLE_DEVICES", "SECRET"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere")
    words = ["-i", "a b; true", "$HOME"]
    output = await run([sys.executable, "-Ic", SAY], words)
    said, environment = output.split("] [")
    assert said == "['-i', 'a b; true', '$HOME'"
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "CUDA_VISIBLE_DEVICES", "SECRET"):
        assert name not in environment
    assert "'LD_LIBRARY_PATH'" in environment
    assert output.endswith("oh\n")


async def test_a_failure_has_its_words() -> None:
    with pytest.raises(DriverError, match="ended with 3: not today") as caught:
        await run(["sh"], ["-c", "echo not; echo today; exit 3"])
    assert caught.value.remedy == "wait 3 s"


async def test_it_is_late_or_not_there() -> None:
    with pytest.raises(DeadlineExceeded, match="did not end within"):
        await run(["sleep"], ["60"], deadline=0.1)
    with pytest.raises(DriverError, match="/nowhere/smi cannot be run: No such file"):
        await run(["/nowhere/smi"], [])


# --- a reset --------------------------------------------------------------------------------------

ADDRESS = "00000000:1A:00.0"


def program(folder: Path, text: str) -> str:
    return str(executable(folder / "nvidia-smi", f"#!/bin/sh\n{text}\n"))


async def test_the_gpu_is_named_by_its_pci_address(tmp_path: Path) -> None:
    """Indices of nvidia-smi may differ from NVML's, addresses do not."""
    smi = program(tmp_path, f'echo "$@" > {tmp_path}/said')
    await reset_gpu([smi, "--simulated"], ADDRESS, deadline=30)
    said = (tmp_path / "said").read_text()  # a test may wait for a small file
    assert said == f"--simulated --gpu-reset -i {ADDRESS}\n"


async def test_cancellation_leaves_no_process(tmp_path: Path) -> None:
    task = asyncio.create_task(
        reset_gpu([program(tmp_path, "exec sleep 60")], ADDRESS, deadline=50)
    )
    await asyncio.sleep(0.1)
    await cancelled(task)


async def test_what_a_wrapper_started_is_ended_with_it(tmp_path: Path) -> None:
    """Else it would hold the output open."""
    pid = tmp_path / "pid"
    smi = program(tmp_path, f"sleep 60 & echo $! > {pid}.new; mv {pid}.new {pid}; wait")
    for deadline in (0.2, 2, 30):  # a busy machine may start a shell late
        with pytest.raises(DeadlineExceeded):
            await reset_gpu([smi], ADDRESS, deadline=deadline)
        if pid.exists():
            break
    started = Path(f"/proc/{pid.read_text().strip()}/cmdline")
    await until(lambda: not _words(started))


def _words(cmdline: Path) -> str:
    try:
        return cmdline.read_text()
    except OSError:
        return ""


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
    assert listed_time_slice(output) is None


# --- with the stand-in ----------------------------------------------------------------------------


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedNode]:
    state = tmp_path / "node.json"
    monkeypatch.setenv("NODEAGENT_SIMULATED_STATE", str(state))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    with simulated("h100-80gb:2", state=state) as node:
        yield node


async def test_it_is_set_on_one_gpu_and_read_back(shared: SimulatedNode) -> None:
    async with Driver(observe_deadline=30, step_deadline=30, nvidia_smi=SMI) as driver:
        first, second = (await driver.observe()).gpus
        assert await driver.time_slice(first.uuid) is TimeSlice.DEFAULT
        await driver.apply(time_slice(second, TimeSlice.LONG))
        assert await driver.time_slice(second.uuid) is TimeSlice.LONG
        assert await driver.time_slice(first.uuid) is TimeSlice.DEFAULT


async def test_a_gpu_without_time_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODEAGENT_SIMULATED_STATE", str(tmp_path / "node.json"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    with simulated("t4", state=tmp_path / "node.json", switches=Switches(time_slices=False)):
        async with Driver(observe_deadline=30, step_deadline=30, nvidia_smi=SMI) as driver:
            (gpu,) = (await driver.observe()).gpus
            with pytest.raises(DriverError, match=r"Not Supported.*leave timeSlice out"):
                await driver.time_slice(gpu.uuid)
            with pytest.raises(DriverError, match=r"ended with 3.*Not Supported"):
                await driver.apply(time_slice(gpu, TimeSlice.LONG))


# --- with programs that misbehave -----------------------------------------------------------------


async def test_what_is_asked_is_what_the_program_takes(node: SimulatedNode, tmp_path: Path) -> None:
    body = f"""echo "$@" >> {tmp_path}/said
    case $4 in --list) echo "| 0 Timeslice $(cat {tmp_path}/is || echo Default) |" ;;
    *) echo Short > {tmp_path}/is ;; esac"""
    smi = [program(tmp_path, body)]
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
    smi = [program(tmp_path, says)]
    async with Driver(observe_deadline=30, step_deadline=30, nvidia_smi=smi) as driver:
        gpu = (await driver.observe()).gpus[0]
        with pytest.raises(NodeagentError, match=complaint):
            await driver.apply(time_slice(gpu, TimeSlice.LONG))


async def test_an_unprivileged_user_is_told_to_be_root(node: SimulatedNode, tmp_path: Path) -> None:
    """The exit status is NVML's code."""
    body = "case $4 in --list) echo '| 0 Timeslice Default |' ;; *) echo no; exit 4 ;; esac"
    smi = [program(tmp_path, body)]
    async with Driver(observe_deadline=30, step_deadline=30, nvidia_smi=smi) as driver:
        gpu = (await driver.observe()).gpus[0]
        with pytest.raises(DriverError, match="run nodeagent as root"):
            await driver.apply(time_slice(gpu, TimeSlice.LONG))


async def test_cancellation_waits_for_the_changes_end(node: SimulatedNode, tmp_path: Path) -> None:
    body = f"""case $4 in --list) echo "| 0 Timeslice $(cat {tmp_path}/is || echo Default) |" ;;
    *) touch {tmp_path}/begun; while [ ! -e {tmp_path}/go ]; do sleep 0.01; done
    echo Long > {tmp_path}/is ;; esac"""
    smi = [program(tmp_path, body)]
    async with Driver(observe_deadline=30, step_deadline=30, nvidia_smi=smi) as driver:
        gpu = (await driver.observe()).gpus[0]
        change = asyncio.create_task(driver.apply(time_slice(gpu, TimeSlice.LONG)))
        await until((tmp_path / "begun").exists)
        change.cancel()
        await asyncio.sleep(0.02)
        assert not change.done()
        (tmp_path / "go").touch()
        with pytest.raises(asyncio.CancelledError):
            await change
        assert await driver.time_slice(gpu.uuid) is TimeSlice.LONG
