import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.acceptance.agent_home import SOON, Home

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
    """Start another agent like the first one and wait for its end."""
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
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, home.folder], stdout=subprocess.PIPE, stdin=subprocess.PIPE
    )
    try:
        assert home.agent.wait(SOON) == 1
        assert f"process {other.pid} already changes this node's GPUs" in home.said()
    finally:
        other.kill()
        other.communicate()


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
