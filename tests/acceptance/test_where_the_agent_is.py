"""An agent that was given a run directory of its own, and commands that are told of it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.acceptance.agent_home import Home

PLAN = "version: v1\ngpus: [{devices: [0], mps: {replicas: 2}}]\n"


@pytest.mark.parametrize("how", ["--run-dir", "--settings"])
def test_every_command_finds_it(home: Home, how: str) -> None:
    """The MPS daemons of the agent count for each command, which would take them for missing."""
    home.plan.write_text(PLAN)
    home.start()
    home.until(lambda: home.status().get("phase") == "InSync")
    file = home.folder / "settings.yaml"
    file.write_text(f"run: {{dir: {home.folder}/run}}\n")
    home.settings["NODEAGENT_RUN_DIR"] = "" if how == "--settings" else f"{home.folder}/nowhere"
    told = (how, str(file) if how == "--settings" else f"{home.folder}/run")
    state = ("--state", str(home.state))
    document = ("-f", str(home.plan))
    assert home.run("assert", *document, *state, *told).returncode == 0
    assert "nothing to do" in home.run("plan", *document, *state, *told).stdout.lower()
    assert "replica: {count: 2" in home.run("export", *state, *told).stdout
    assert "InSync" in home.run("status", *told).stdout
    assert "Ready" in home.run("mps", "status", *told).stdout
    client = home.run(
        "simulate", "client", "--slot", "0/replica-0", "--seconds", "0", *state, *told
    )
    assert client.returncode == 0, client.stderr
    home.stop(signal.SIGTERM)
    assert home.run("apply", *document, *state, *told).returncode == 0


def test_the_default_is_a_directory_too(home: Home) -> None:
    """Named in words it is where the agent was told to be, and not beside the state file."""
    home.settings["NODEAGENT_RUN_DIR"] = ""
    made = home.run("export", "--simulate", "t4:1", "--state", str(home.state))
    assert made.returncode == 0
    default = ("--run-dir", "/run/nodeagent")
    state = ("--state", str(home.state))
    missed = home.run("simulate", "client", "--slot", "0/none", *state, *default)
    assert missed.stderr.startswith("nodeagent: /run/nodeagent/mps/")
    beside = home.run("simulate", "client", "--slot", "0/none", *state)
    assert str(Path(f"{home.state}.mps/run")) in beside.stderr
