import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.agent_home import SOON, Home
from tests.machine_load import stretched, wait_until
from tests.processes.real import process_of

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
    page = home.run("status").stdout
    assert "NoPlan" in page
    assert f"write a plan to {home.plan}" in page
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


# --- its run directory ----------------------------------------------------------------------------


WITH_MPS = "version: v1\ngpus: [{devices: [0], mps: {replicas: 2}}]\n"


@pytest.mark.parametrize("how", ["--run-dir", pytest.param("--settings", marks=pytest.mark.full)])
def test_every_command_finds_it(home: Home, how: str) -> None:
    home.plan.write_text(WITH_MPS)
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
    wait_until(lambda: MOMENTS[moment](home) or agent.poll() is not None)
    home.stop(signal.SIGTERM)
    assert agent.returncode == 0, home.said()
    assert "Traceback" not in home.said()


# --- its own files --------------------------------------------------------------------------------


PLAN = "version: v1\ngpus: [{devices: [0], mig: {1g.10gb: 1}}]\n"


@pytest.fixture
def running(home: Home) -> Iterator[Home]:
    """With an agent whose plan is applied; SIGTERM then ends it with 0 and without a traceback."""
    home.plan.write_text(PLAN)
    home.start()
    home.until(lambda: home.status().get("phase") == "InSync")
    yield home
    ended = home.agent
    assert ended is not None
    home.stop(signal.SIGTERM)
    assert ended.returncode == 0, home.said()
    assert "Traceback" not in home.said()


def run_directory_problem(home: Home) -> str:
    """The problem as the status has it; empty while there is none."""
    problems = home.status().get("problems", [])
    return next((p["message"] for p in problems if p["code"] == "RunDirectory"), "")


def second_agent(home: Home) -> subprocess.CompletedProcess[str]:
    return home.run(
        *("run", "--state", str(home.state), "--plan", str(home.plan), "--listen", "127.0.0.1:0"),
        *("--run-dir", f"{home.folder}/run", "--state-dir", f"{home.folder}/state"),
    )


def test_the_run_directory_is_deleted(running: Home) -> None:
    shutil.rmtree(running.folder / "run")
    running.until(lambda: run_directory_problem(running))
    assert f"{running.folder}/run/agent.sock" in run_directory_problem(running)
    assert running.status()["phase"] == "InSync"
    assert (running.folder / "run/agent.sock").stat().st_mode & 0o777 == 0o600


def test_users_can_pass_the_run_directory_that_is_made_again(home: Home) -> None:
    """Also under the service's UMask=0077: programs of every user read what is in run.dir."""
    run = home.folder / "above/run"
    home.settings["NODEAGENT_RUN_DIR"] = str(run)
    home.plan.write_text(PLAN)
    home.wrapper = ["sh", "-c", 'umask 077 && exec "$@"', "-"]
    home.start("--run-dir", str(run))
    for _ in range(2):
        home.until((run / "agent.sock").exists)
        assert [path.stat().st_mode & 0o777 for path in (run.parent, run)] == [0o755, 0o755]
        shutil.rmtree(run.parent)


def test_a_directory_that_cannot_be_examined_is_a_problem(home: Home) -> None:
    """The agent goes on, and the problem ends with its cause. As root it runs without the
    capabilities that would let it pass.
    """
    kept = home.folder / "kept"
    kept.mkdir()
    home.state = kept / "node.json"
    home.plan.write_text(PLAN)
    if os.geteuid() == 0:
        home.wrapper = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
    home.start()
    home.until(lambda: home.status().get("phase") == "InSync")
    kept.chmod(0)
    try:
        home.until(lambda: f"{kept}/node.json.mps" in run_directory_problem(home))
    finally:
        kept.chmod(0o755)
    home.until(lambda: not run_directory_problem(home))


def test_the_socket_alone_is_deleted(running: Home) -> None:
    (running.folder / "run/agent.sock").unlink()
    running.until(lambda: "agent.sock" in run_directory_problem(running))


def test_no_second_writer(running: Home) -> None:
    lock = running.folder / "node.json.writer.lock"
    for start in (second_agent, apply):
        lock.unlink()
        shutil.rmtree(running.folder / "run")
        second = start(running)
        assert second.returncode == 1
        assert "already changes this node's GPUs" in second.stderr
        running.until(lambda: lock.exists() and lock.read_text() == f"{pid(running)}\n")
    running.until(lambda: running.status().get("phase") == "InSync")


def apply(home: Home) -> subprocess.CompletedProcess[str]:
    return home.run("apply", "-f", str(home.plan), "--state", str(home.state))


def pid(home: Home) -> int:
    assert home.agent is not None
    return home.agent.pid


def test_an_agent_that_is_not_the_only_one_ends(home: Home) -> None:
    """Another process replaced the lock by its own: the agent ends, for there is one writer."""
    home.plan.write_text(PLAN)
    home.start()
    home.until(lambda: home.status().get("phase") == "InSync")
    assert home.agent is not None
    shutil.rmtree(home.folder / "node.json.mps")
    with process_of(sys.executable, "-c", HOLD, home.folder) as other:
        assert home.agent.wait(stretched(SOON)) == 1
        assert f"process {other.pid} already changes this node's GPUs" in home.said()
        assert f"stop the agent first: `kill {other.pid}`" in home.said()


# The held lock takes the place of the agent's at once: it would make one anew that is missing.
HOLD = """
import fcntl, os, pathlib, sys
path = pathlib.Path(sys.argv[1], "node.json.writer.lock")
new = path.with_suffix(".new")
file = new.open("w")
fcntl.flock(file, fcntl.LOCK_EX)
file.write(str(os.getpid()))
file.flush()
new.rename(path)
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
@pytest.mark.full
def test_the_run_directory_becomes_read_only(home: Home) -> None:
    home.plan.write_text(PLAN)
    run = home.folder / "run"
    run.mkdir()
    own_mounts = ["unshare", "--mount", "--propagation", "private"]
    home.wrapper = [*own_mounts, "sh", "-c", f'mount -t tmpfs none {run} && exec "$@"', "-"]
    home.start()
    inside = ["nsenter", "--mount", "--target", str(pid(home))]

    def mount(options: str) -> None:
        subprocess.run([*inside, "mount", "-o", options, str(run)], check=True)

    def problem() -> dict[str, str]:
        command = [*inside, *home.command("status", "-o", "json")]
        done = subprocess.run(command, capture_output=True, env=home.environment, check=False)
        problems = json.loads(done.stdout)["problems"] if done.stdout else []
        return next((p for p in problems if p["code"] == "RunDirectory"), {})

    home.until(lambda: "the page is served" in home.said())
    mount("remount,ro")
    found = home.until(problem)
    assert "mounted read-only" in found["message"]
    assert found["remedy"] == f"mount -o remount,rw {run}"
    subprocess.run([*inside, *found["remedy"].split()], check=True)
    home.until(lambda: not problem())
    mount("remount,ro")
    home.until(problem)
    ended = home.agent
    home.stop(signal.SIGTERM)
    assert ended is not None
    assert ended.returncode == 0
    assert "Traceback" not in home.said()
