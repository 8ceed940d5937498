"""An agent with a run directory of its own, and commands that are given it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.acceptance.agent_home import Home

PLAN = "version: v1\ngpus: [{devices: [0], mps: {replicas: 2}}]\n"


@pytest.mark.parametrize("how", ["--run-dir", pytest.param("--settings", marks=pytest.mark.full)])
def test_every_command_finds_it(home: Home, how: str) -> None:
    """Each command finds the agent's MPS daemons, and does not report them as missing."""
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
    """Given explicitly it is used; without it the directory is beside the state file."""
    home.settings["NODEAGENT_RUN_DIR"] = ""
    made = home.run("export", "--simulate", "t4:1", "--state", str(home.state))
    assert made.returncode == 0
    default = ("--run-dir", "/run/nodeagent")
    state = ("--state", str(home.state))
    missed = home.run("simulate", "client", "--slot", "0/none", *state, *default)
    assert missed.stderr.startswith("nodeagent: /run/nodeagent/mps/")
    beside = home.run("simulate", "client", "--slot", "0/none", *state)
    assert str(Path(f"{home.state}.mps/run")) in beside.stderr
