import json
import signal
import socket
import time
from pathlib import Path
from typing import Any

from nodeagent.simulation import SimulatedNode
from tests.app.agent_process import SOON, Process, agent, profiles, write_plan
from tests.machine_load import wait_until


def test_from_start_to_end(tmp_path: Path) -> None:
    write_plan(tmp_path, "{3g.40gb: 2}")
    with agent(tmp_path) as process:
        status = process.until_phase("InSync")
        assert profiles(status) == ["3g.40gb"] * 2
        assert process.ask("/readyz") == (200, {"status": "ok"})
        assert process.ask("/healthz") == (200, {"status": "ok"})
        write_plan(tmp_path, "{1g.10gb: 7}")
        process.until(lambda body: profiles(body) == ["1g.10gb"] * 7)
        _, events = process.ask("/v1/events?within=3600")
        assert process.end() == 0
    _explain(events, process)
    assert not (tmp_path / "run" / "agent.sock").exists()
    assert (tmp_path / "state" / "last-good-plan").stat().st_mode & 0o777 == 0o600


def _explain(events: Any, process: Process) -> None:
    """The events of this life have each line of a decision that the log has, and why."""
    steps = ["StepDone"] * 3
    assert [event["type"] for event in events] == [
        *("Started", "PlanAccepted", *steps, "Applied"),
        *("PlanAccepted", "StepDone", "StepDone", *["StepDone"] * 7, "Applied"),
    ]
    create, destroy = events[3], events[7]
    assert create["message"] == "step done: create 3g.40gb at 0"
    assert create["facts"]["seconds"] >= 0
    assert destroy["reason"]
    assert (events[-1]["before"], events[-1]["after"]) == (
        "3g.40gb at 0, 4",
        "1g.10gb at 0, 1, 2, 3, 4, 5, 6",
    )
    lines = [json.loads(line) for line in process.said().splitlines() if line.startswith("{")]
    logged = [line["event_type"] for line in lines if "event_type" in line]
    assert logged == [*(event["type"] for event in events), "Stopping"]
    assert {line.get("index") for line in lines if "gpu" in line} == {0}


def test_wakes_when_a_simulated_user_goes(tmp_path: Path) -> None:
    """Users of a simulated node are no processes of this machine: its file shows their end."""
    write_plan(tmp_path, "{3g.40gb: 2}")
    with agent(tmp_path, "--resync", "600") as process:
        status = process.until_phase("InSync")
        node = SimulatedNode(state=tmp_path / "node.json")
        used = status["gpus"][0]["instances"][0]["uuid"]
        node.occupy(used, 4711)
        write_plan(tmp_path, "{7g.80gb: 1}")
        blocked = process.until_phase("Blocked")
        assert "4711" in blocked["problems"][0]["message"]
        node.release(pid=4711)
        node.close()
        process.until_phase("InSync")
        assert process.end() == 0


def test_notifies_systemd(tmp_path: Path) -> None:
    write_plan(tmp_path, "{3g.40gb: 2}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(SOON)
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "300000"}
        with agent(tmp_path, **environment) as process:
            heard = b""
            while b"READY=1" not in heard or heard.count(b"WATCHDOG=1") < 3:
                heard += systemd.recv(1000) + b"\n"
            assert heard.index(b"STATUS=InSync") < heard.index(b"READY=1")
            process.popen.send_signal(signal.SIGTERM)
            while b"STOPPING=1" not in heard:
                heard += systemd.recv(1000) + b"\n"
            assert process.wait() == 0


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    write_plan(tmp_path, "{3g.40gb: 2}")
    with SimulatedNode("h100-80gb:1", state=tmp_path / "node.json") as node:
        node.inject("nvmlDeviceCreateGpuInstance*", hang=True)
    with agent(tmp_path) as process:
        process.until_phase("Working")
        process.popen.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert process.popen.poll() is None

        def ended() -> bool:
            process.popen.send_signal(signal.SIGTERM)  # two that it did not notice yet are one
            return process.popen.poll() is not None

        wait_until(ended)
        assert process.wait() == -signal.SIGTERM


def test_a_driver_that_hangs_takes_no_more_and_more_threads(tmp_path: Path) -> None:
    write_plan(tmp_path, "{3g.40gb: 2}")
    with SimulatedNode("h100-80gb:1", state=tmp_path / "node.json") as node:
        node.inject("nvmlInitWithFlags", hang=True)
    deadline = {"NODEAGENT_DRIVER_OBSERVE_DEADLINE": "0.1"}
    with agent(tmp_path, "--resync", "0.05", **deadline) as process:
        process.until(lambda body: "has hung since" in body["message"])
        before, reported = threads_of(process), events_of(process, "DriverUnavailable")
        time.sleep(1)  # twenty rounds, or fewer on a busy machine
        assert threads_of(process) < before + 5  # its pool for files may still grow
        assert events_of(process, "DriverUnavailable") == reported
        assert process.end() == 0


def events_of(process: Process, kind: str) -> int:
    _, events = process.ask("/v1/events")
    return [event["type"] for event in events].count(kind)


def threads_of(process: Process) -> int:
    return len(list(Path(f"/proc/{process.popen.pid}/task").iterdir()))
