import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.agent_home import Home
from tests.machine_load import stretched

# --- the plan file --------------------------------------------------------------------------------


PHASE = 'nodeagent_phase{phase="%s"} 1'


def test_a_plan_file_that_is_not_there(home: Home) -> None:
    home.start()
    home.until(lambda: home.status().get("phase") == "NoPlan")
    status = home.status()
    [problem] = status["problems"]
    assert problem["code"] == status["headline"]["code"] == "SourceMissing"
    assert problem["message"] == f"the plan file {home.plan} does not exist"
    assert f"write a plan to {home.plan} (`nodeagent export`" in problem["remedy"]
    assert status["headline"]["severity"] == "warning"
    assert "digest" not in status
    metrics = home.text("/metrics")
    assert PHASE % "NoPlan" in metrics
    assert "nodeagent_plan_applied" not in metrics

    home.plan.write_text(home.run("export", "--state", str(home.state)).stdout)
    home.until(lambda: home.status().get("phase") == "InSync")
    assert home.status()["problems"] == []
    assert "nodeagent_plan_applied 1" in home.text("/metrics")

    home.plan.unlink()
    home.until(lambda: home.status()["problems"])
    status = home.status()
    [problem] = status["problems"]
    assert (status["phase"], problem["code"]) == ("InSync", "SourceMissing")
    assert problem["message"].endswith("does not exist; the last good plan stays in force")
    home.stop(signal.SIGTERM)


def test_the_command_shows_it(home: Home) -> None:
    home.start()
    home.until(lambda: home.status().get("phase") == "NoPlan")
    page = home.run("status").stdout
    assert "NoPlan" in page
    assert f"write a plan to {home.plan}" in page


# --- its run directory ----------------------------------------------------------------------------


PLAN = "version: v1\ngpus: [{devices: [0], mps: {replicas: 2}}]\n"


@pytest.mark.parametrize("how", ["--run-dir", pytest.param("--settings", marks=pytest.mark.full)])
def test_every_command_finds_it(home: Home, how: str) -> None:
    home.plan.write_text(PLAN)
    home.start()
    home.until(lambda: home.status().get("phase") == "InSync")
    file = home.folder / "settings.yaml"
    file.write_text(f"run: {{dir: {home.folder}/run}}\n")
    home.settings["NODEAGENT_RUN_DIR"] = "" if how == "--settings" else f"{home.folder}/nowhere"
    options = (how, str(file) if how == "--settings" else f"{home.folder}/run")
    state = ("--state", str(home.state))
    document = ("-f", str(home.plan))
    assert home.run("assert", *document, *state, *options).returncode == 0
    assert "nothing to do" in home.run("plan", *document, *state, *options).stdout.lower()
    assert "replica: {count: 2" in home.run("export", *state, *options).stdout
    assert "InSync" in home.run("status", *options).stdout
    assert "Ready" in home.run("mps", "status", *options).stdout
    client = home.run(
        "simulate", "client", "--slot", "0/replica-0", "--seconds", "0", *state, *options
    )
    assert client.returncode == 0, client.stderr
    home.stop(signal.SIGTERM)
    assert home.run("apply", *document, *state, *options).returncode == 0


def test_the_default_is_a_directory_too(home: Home) -> None:
    home.settings["NODEAGENT_RUN_DIR"] = ""
    made = home.run("export", "--simulate", "t4:1", "--state", str(home.state))
    assert made.returncode == 0
    default = ("--run-dir", "/run/nodeagent")
    state = ("--state", str(home.state))
    missed = home.run("simulate", "client", "--slot", "0/none", *state, *default)
    assert missed.stderr.startswith("nodeagent: /run/nodeagent/mps/")
    beside = home.run("simulate", "client", "--slot", "0/none", *state)
    assert str(Path(f"{home.state}.mps/run")) in beside.stderr


# --- SIGTERM while it has hardly begun ------------------------------------------------------------


SIGTERM = 1 << (signal.SIGTERM - 1)


def masked(home: Home, *keys: str) -> bool:
    """Whether one of these of the agent's signal masks has SIGTERM in it."""
    assert home.agent is not None
    status = Path(f"/proc/{home.agent.pid}/status").read_text()
    masks = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    return any(int(masks[key], 16) & SIGTERM for key in keys)


# From the first line of our code to the end of its start.
MOMENTS: dict[str, Callable[[Home], bool]] = {
    "the program begins": lambda home: masked(home, "SigBlk", "SigCgt"),
    "it is the only writer": lambda home: (home.folder / "node.json.writer.lock").exists(),
    "its own handler is there": lambda home: masked(home, "SigCgt"),
    "its state is looked for": lambda home: (home.folder / "node.json.mps/bin").exists(),
    "the first line of its log": lambda home: "timestamp" in home.said(),
}


@pytest.mark.parametrize(
    "moment",
    [
        moment if number % 2 else pytest.param(moment, marks=pytest.mark.full)
        for number, moment in enumerate(MOMENTS)
    ],
)
def test_it_ends_well(home: Home, moment: str) -> None:
    home.plan.write_text("version: v1\ngpus: [{devices: [0], mig: {1g.10gb: 1}}]\n")
    home.start()
    agent = home.agent
    assert agent is not None
    deadline = time.monotonic() + stretched(30)
    while not MOMENTS[moment](home) and agent.poll() is None:  # as soon as it can be seen
        assert time.monotonic() < deadline
        time.sleep(0.001)
    home.stop(signal.SIGTERM)
    assert agent.returncode == 0, home.said()
    assert "Traceback" not in home.said()
