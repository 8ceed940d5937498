import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.metrics_rig import Series
from tests.app.agent_process import agent, profiles, write_plan
from tests.app.test_accounting import until_scraped
from tests.machine_load import wait_until

_LAST_XID = "DCGM_FI_DEV_XID_ERRORS"


class KernelLog:
    """One of the test's own, that an agent with these `variables` reads."""

    def __init__(self, folder: Path) -> None:
        os.mkfifo(folder / "kmsg")
        self.variables = {"NODEAGENT_HEALTH_KERNEL_LOG": f"{folder}/kmsg"}
        self._file = os.open(folder / "kmsg", os.O_RDWR | os.O_NONBLOCK)
        self._sequence = 17

    def xid(self, gpu: Any, rest: str, instance: int | None = None) -> bytes:
        """The driver reports one of the GPU, or of a GPU instance; gives the line."""
        micros = int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1e6)
        where = gpu["pciBusId"][4:-2].lower()
        where += "" if instance is None else f" GPU-I:{instance:02}"
        line = f"3,{self._sequence},{micros},-;NVRM: Xid (PCI:{where}): {rest}\n".encode()
        self._sequence += 1
        self.write(line)
        return line

    def write(self, line: bytes) -> None:
        os.write(self._file, line)

    def close(self) -> None:
        os.close(self._file)


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[KernelLog]:
    with closing(KernelLog(tmp_path)) as made:
        yield made


def simulate(folder: Path, *words: str, gpus: int = 1) -> None:
    node = ["--simulate", f"h100-80gb:{gpus}", "--state", f"{folder}/node.json"]
    subprocess.run([sys.executable, "-m", "nodeagent", "simulate", *words, *node], check=True)


def _findings(status: Any) -> list[Any]:
    found = [f for gpu in status["gpus"] for f in gpu["health"]["findings"]]
    return [f for f in found if f["cause"] != "recoveryAction"]


def _kept(state: Path) -> bool:
    """Whether there is a finding in the file, with which the line that it is from is counted."""
    return state.exists() and b'"findings":[{' in state.read_bytes()


def test_a_sick_slice(tmp_path: Path, kernel: KernelLog) -> None:
    """It is reported and fenced, the other GPU goes on; so it is for the agent that comes after
    a crash, which does not count the same line twice.
    """
    write_plan(tmp_path, "{3g.40gb: 2}")
    with agent(tmp_path, boards="h100-80gb:2", **kernel.variables) as process:
        status = process.until_phase("InSync")
        instance = next(i["gi"] for i in status["gpus"][0]["instances"] if i["start"] == 4)
        # As a card does that wants a reset; one that asks for nothing is believed after a while.
        simulate(tmp_path, "sensor", "0", "recovery", "1", gpus=2)
        line = kernel.xid(status["gpus"][0], "95, pid=7, name=x", instance)
        (finding,) = _findings(process.until(lambda body: bool(_findings(body))))
        assert (finding["xid"], finding["start"], finding["size"]) == (95, 4, 4)
        write_plan(tmp_path, "{7g.80gb: 1}")
        status = process.until(lambda body: profiles(body, 1) == ["7g.80gb"])
        status = process.until_phase("Blocked")
        assert [p["code"] for p in status["problems"]] == ["GpuUnhealthy"]
        assert status["problems"][0]["remedy"] == finding["advice"]
        assert "`nvidia-smi --gpu-reset -i 0`" in finding["advice"]
        assert profiles(status) == ["3g.40gb", "3g.40gb"]
        wait_until(lambda: _kept(tmp_path / "state" / "health.json"))
        process.end(signal.SIGKILL)
    kernel.write(line)
    with agent(tmp_path, boards="h100-80gb:2", **kernel.variables) as process:
        status = process.until(lambda body: body["problems"])
        assert [p["code"] for p in status["problems"]] == ["GpuUnhealthy"]
        (finding,) = _findings(status)
        assert finding["count"] == 1
        assert process.end() == 0


def _not_as_planned(folder: Path, *words: str) -> None:
    """Metrics and `assert` say that it is not."""
    until_scraped(folder, lambda series: series.get(("nodeagent_plan_applied", frozenset())) == 0)
    simulated = ["--state", f"{folder}/node.json", "--state-dir", f"{folder}/state"]
    command = [sys.executable, "-m", "nodeagent", "assert", "-f", f"{folder}/plan.yaml", *simulated]

    def asserted() -> str:
        """What it prints, once the agent has written down what it found."""
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        return ended.stdout if ended.returncode == 1 else ""

    printed = wait_until(asserted)
    assert all(word in printed for word in words), printed


def test_a_gpu_that_only_its_samples_find_lost(tmp_path: Path) -> None:
    write_plan(tmp_path, "{3g.40gb: 2}")
    with agent(tmp_path, NODEAGENT_SAMPLE_INTERVAL="0.1") as process:
        process.until(lambda body: body["headline"]["severity"] == "ok")
        simulate(tmp_path, "fault", "nvmlDeviceGetPowerUsage", "GPU_IS_LOST")
        status = process.until_phase("Failed")
        assert [p["code"] for p in status["problems"]] == ["GpuLost"]
        assert status["headline"]["text"] == "GPU 0 is lost."
        assert status["gpus"][0]["instances"]
        [finding] = status["gpus"][0]["health"]["findings"]
        assert "reboot" not in finding["evidence"]  # that is the advice's, in its own words
        _, events = process.ask("/v1/events")
        assert not {"Drift", "Blocked"} & {event["type"] for event in events}
        _not_as_planned(tmp_path, "GPU 0", "it is lost")


def test_the_last_xid_of_either_source_is_exported(tmp_path: Path, kernel: KernelLog) -> None:
    write_plan(tmp_path, "{3g.40gb: 2}")
    kernel.variables["NODEAGENT_SAMPLE_INTERVAL"] = "0.1"

    def until_last(*expected: tuple[str, str, float]) -> None:
        def is_so(series: dict[Series, float]) -> bool:
            found = (
                (dict(labels), value) for (n, labels), value in series.items() if n == _LAST_XID
            )
            return {(at["gpu"], at.get("GPU_I_ID", ""), v) for at, v in found if v} == {*expected}

        until_scraped(tmp_path, is_so)

    with agent(tmp_path, boards="h100-80gb:2", **kernel.variables) as process:
        status = process.until_phase("InSync")
        until_last()
        simulate(tmp_path, "xid", "1/1/0", "31", gpus=2)
        until_last(("1", "1", 31))
        first, second = status["gpus"]
        kernel.xid(second, "43, ", 1)
        kernel.xid(second, "79, GPU has")
        kernel.xid(first, "63, ")
        until_last(("0", "", 63), ("1", "1", 43), ("1", "", 79))
        process.end()
        lines = [json.loads(line) for line in process.said().splitlines() if line[:1] == "{"]
    gpu, pci = second["uuid"], second["pciBusId"]
    logged = {(line["source"], line["gpu"], line["pci"]) for line in lines if "xid" in line}
    assert logged >= {(source, gpu, pci) for source in ("nvml", "kernelLog")}, "by both names"
    with agent(tmp_path, boards="h100-80gb:2", **kernel.variables) as process:
        until_last(("0", "", 63))  # the other GPU is not asked for a while, so its series end
        process.end()


def test_events_that_do_not_arrive(tmp_path: Path, kernel: KernelLog) -> None:
    write_plan(tmp_path, "{3g.40gb: 2}")
    kernel.variables["NODEAGENT_SAMPLE_DEADLINE"] = "0.3"
    with agent(tmp_path, **kernel.variables) as process:
        status = process.until(lambda body: body["headline"]["severity"] == "ok")
        simulate(tmp_path, "fault", "nvmlEventSetWait*", "--hang")
        status = process.until(lambda body: body["health"]["findings"])
        (finding,) = status["health"]["findings"]
        assert (finding["cause"], finding["severity"]) == ("eventsUnheard", "unknown")
        assert status["headline"]["severity"] == "warning"
        assert status["headline"]["text"].startswith("NVML's events do not arrive")
        assert status["phase"] == "InSync"
        kernel.xid(status["gpus"][0], "95, pid=7, name=x")
        status = process.until(lambda body: body["headline"]["severity"] == "error")
        assert status["headline"]["code"] == "XidReset"
        simulate(tmp_path, "fault", "--clear")
        process.until(lambda body: not body["health"]["findings"])


def test_a_driver_that_is_not_installed(tmp_path: Path, kernel: KernelLog) -> None:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        pass
    else:
        pytest.skip("this machine has the library")
    write_plan(tmp_path, "{3g.40gb: 2}")
    kernel.variables["NODEAGENT_KUBERNETES_USE"] = "never"
    with agent(tmp_path, boards="", **kernel.variables) as process:
        status = process.until(lambda body: body["health"]["findings"])
        assert [f["cause"] for f in status["health"]["findings"]] == ["driverMissing"]
        assert [p["code"] for p in status["problems"]] == ["DriverMissing"]
        assert status["headline"]["code"] == "DriverMissing"
        assert status["headline"]["text"].startswith("The driver's library libnvidia-ml.so.1 was ")
        assert "nvidia-smi" in status["headline"]["remedy"]


@pytest.mark.parametrize(
    ("text", "said", "remedy"),
    [
        (None, "cannot be opened", "CAP_SYSLOG"),
        ("NVRM: Xid\n", "is a plain file", "health.kernel_log at /dev/kmsg"),
    ],
)
def test_a_kernel_log_that_cannot_be_read_is_in_the_headline(
    tmp_path: Path, text: str | None, said: str, remedy: str
) -> None:
    """XIDs may be missed, so the node does not look well; the plan is not concerned."""
    write_plan(tmp_path, "{3g.40gb: 2}")
    if text is not None:
        (tmp_path / "kmsg").write_text(text)
    with agent(tmp_path, NODEAGENT_HEALTH_KERNEL_LOG=f"{tmp_path}/kmsg") as process:
        status = process.until(
            lambda body: body["phase"] == "InSync" and body["headline"]["severity"] == "warning"
        )
        assert status["headline"]["code"] == "Reader"
        assert status["headline"]["text"].startswith(f"{tmp_path}/kmsg {said}")
        assert remedy in status["headline"]["remedy"]
        assert [problem["code"] for problem in status["problems"]] == ["Reader"]


def test_values_that_cannot_be_read_are_in_the_headline(tmp_path: Path) -> None:
    write_plan(tmp_path, "{3g.40gb: 2}")
    with agent(
        tmp_path, NODEAGENT_SAMPLE_INTERVAL="0.1", NODEAGENT_SAMPLE_SLOW_INTERVAL="0.1"
    ) as process:
        process.until(lambda body: body["headline"]["severity"] == "ok")
        simulate(tmp_path, "fault", "nvmlDeviceGetFanSpeed*", "UNKNOWN")
        simulate(tmp_path, "fault", "nvmlDeviceGetPowerUsage", "UNKNOWN")
        status = process.until(lambda body: body["headline"]["severity"] == "warning")
        assert status["headline"]["code"] == "Reader"
        assert status["headline"]["text"].startswith("Not all values of GPU 0 can be read")
        assert status["phase"] == "InSync"
        simulate(tmp_path, "fault", "--clear")
        process.until(lambda body: body["headline"]["severity"] == "ok")


@pytest.mark.full
def test_the_remedy_of_a_reset_leads_there(tmp_path: Path) -> None:
    write_plan(tmp_path, "{3g.40gb: 2}")
    interval = {"NODEAGENT_SAMPLE_INTERVAL": "0.1", "NODEAGENT_SAMPLE_SLOW_INTERVAL": "0.1"}
    state = f"{tmp_path}/node.json"
    with agent(tmp_path, **interval) as process:
        process.until(lambda body: body["headline"]["severity"] == "ok")
        simulate = [sys.executable, "-m", "nodeagent", "simulate"]
        energy = [*simulate, "sensor", "--state", state, "0", "energy", "1000000000"]
        subprocess.run(energy, check=True)  # as of a GPU that has worked for a while
        until_scraped(
            tmp_path,
            lambda series: any(
                value >= 1e9
                for (name, _), value in series.items()
                if name == "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
            ),
        )
        subprocess.run([*simulate, "xid", "--state", state, "0", "95"], check=True)
        status = process.until(lambda body: body["headline"]["severity"] == "error")
        assert status["headline"]["remedy"] == (
            "Reset GPU 0: end its users, then `systemctl stop nodeagent`, "
            "`nvidia-smi --gpu-reset -i 0`, `systemctl start nodeagent`."
        )
        assert process.end() == 0
    smi = [sys.executable, "-m", "nodeagent.simulation.nvidia_smi", "--gpu-reset", "-i", "0"]
    subprocess.run(smi, check=True, env={**os.environ, "NODEAGENT_SIMULATED_STATE": state})
    with agent(tmp_path, **interval) as process:
        process.until(lambda body: body["headline"]["severity"] == "ok")
