"""What is advised from records of an earlier agent, over every way that people look at it."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from nodeagent.use.digest import Holder
from nodeagent.use.records import Grant, Measured, Records
from nodeagent.use.state_file import use_file
from tests.acceptance.metrics_rig import parsed
from tests.agent_environment import asked
from tests.app.agent_process import SOON, Process, agent, write_plan
from tests.machine_load import stretched
from tests.plan.cards import card

GIB = 1 << 30
INFO = "nodeagent_advice_info"


def _record(path: Path) -> None:
    """Two days of a server, in which a 3g.40gb had little to do."""
    grant = Grant("3g.40gb", card("h100-80gb").name, 40 * GIB)
    key, records = (Holder("workload", "Deployment/web", "team-a", "main"), grant), Records()
    for minute in range(2 * 1440):
        did = Measured(memory=(6 if minute % 7 else 7) * GIB, sm=10.0, engine=30.0)
        records.add(key, did, passed=60.0, active=0.3, sharing=1, part=0.5, wall=time.time())
    path.parent.mkdir()
    use_file(path).save(records.kept(time.time()))


def test_what_was_recorded_is_advised_everywhere(tmp_path: Path) -> None:
    write_plan(tmp_path, "{3g.40gb: 2}")
    _record(tmp_path / "state/use.json")
    with agent(tmp_path) as process:
        found = _advised(process)
        [web] = found["advice"]
        assert (web["verdict"], web["advised"], web["freesSlices"]) == ("smaller", "1g.10gb", 3)
        assert (web["held"], web["peak"]) == (2 * 86400, 7 * GIB)
        assert process.ask("/v1/advice?namespace=team-b")[1]["advice"] == []
        labels = {"namespace": "team-a", "workload": "Deployment/web", "container": "main"}
        change = {"device": "3g.40gb", "verdict": "smaller", "advised": "1g.10gb"}
        metrics = parsed(asked(tmp_path, "/metrics")[1])
        series = {of: value for (name, of), value in metrics.items() if name == INFO}
        assert series == {frozenset((labels | change).items()): 1.0}
        command = [sys.executable, "-m", "nodeagent", "advise", "--run-dir", f"{tmp_path}/run"]
        mine = [*command, "--namespace", "team-a"]
        shown = subprocess.run(mine, capture_output=True, check=True, text=True).stdout
        assert "team-a/Deployment/web (main)  3g.40gb  7 GiB" in shown
        told = subprocess.run([*command, "-o", "json"], capture_output=True, check=True)
        assert json.loads(told.stdout) == process.ask("/v1/advice")[1]


def _advised(process: Process) -> dict[str, Any]:
    """The first answer after the agent saw its GPUs, without which nothing is advised."""
    deadline = time.monotonic() + stretched(SOON)
    while time.monotonic() < deadline:
        status, answer = process.ask("/v1/advice")
        found: dict[str, Any] = answer or {"advice": []}
        if status == 200 and any(one["verdict"] != "notEnough" for one in found["advice"]):
            return found
        time.sleep(0.1)
    raise AssertionError(process.said())
