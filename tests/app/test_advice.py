"""What is advised from records of an earlier agent, over every way that people look at it."""

import json
import subprocess
import sys
import time
from pathlib import Path

from nodeagent.app.use_service import use_file
from nodeagent.use.records import Grant, Holder, Measured, Records
from tests.acceptance.metrics_rig import parsed
from tests.agent_environment import asked
from tests.app.agent_process import agent, write_plan
from tests.machine_load import until
from tests.plan.cards import card
from tests.simulated_cluster.agent import NAME, AgentProcess, command, served

GIB = 1 << 30
INFO = "nodeagent_advice_info"


def _record(path: Path, holder: Holder) -> None:
    """Two days of a server, in which a 3g.40gb had little to do."""
    grant = Grant("3g.40gb", card("h100-80gb").name, 40 * GIB)
    key, records = (holder, grant), Records()
    for minute in range(2 * 1440):
        did = Measured(memory=(6 if minute % 7 else 7) * GIB, sm=10.0, engine=30.0)
        records.add(key, did, passed=60.0, active=0.3, sharing=1)
    path.parent.mkdir()
    use_file(path).save(records.kept(time.time()))


def test_what_was_recorded_is_advised_everywhere(tmp_path: Path) -> None:
    write_plan(tmp_path, "{3g.40gb: 2}")
    _record(tmp_path / "state/use.json", Holder("workload", "web", "team-a", "main"))
    with agent(tmp_path) as process:
        # Before the agent saw its GPUs nothing is advised.
        process.until(lambda _: process.ask("/v1/advice")[1]["advice"][0]["verdict"] != "notEnough")
        found = process.ask("/v1/advice")[1]
        [web] = found["advice"]
        assert (web["verdict"], web["advised"], web["freesSlices"]) == ("smaller", "1g.10gb", 3)
        assert (web["held"], web["peak"]) == (2 * 86400, 7 * GIB)
        assert not web.keys() & {"idleStretches", "longestIdle"}  # it was never idle
        assert process.ask("/v1/advice?namespace=team-b")[1]["advice"] == []
        # It holds nothing now.
        assert INFO not in {name for name, _ in parsed(asked(tmp_path, "/metrics")[1])}
        command = [sys.executable, "-m", "nodeagent", "advise", "--run-dir", f"{tmp_path}/run"]
        shown = subprocess.check_output([*command, "--namespace", "team-a"], text=True)
        assert "team-a/web (main)  3g.40gb  7 GiB" in shown
        other = subprocess.check_output([*command, "we", "--namespace", "team-a"], text=True)
        assert other.startswith("No holder we in namespace team-a was seen yet")
        assert json.loads(subprocess.check_output([*command, "web", "-o", "json"])) == found
        assert json.loads(subprocess.check_output([*command, "-o", "json"])) == found


async def test_what_an_earlier_agent_recorded_of_a_pod_is_its_workloads(tmp_path: Path) -> None:
    _record(tmp_path / "state/use.json", Holder("pod", "worker-1", "team-a", "main"))

    def workloads() -> list[str]:
        try:
            found = json.loads(asked(tmp_path, "/v1/advice")[1])
        except OSError:
            return []
        return [one["workload"] for one in found["advice"]]

    async with served(tmp_path) as api:
        api.add_pod("worker-1", namespace="team-a", node=NAME)
        async with AgentProcess(command("h100-80gb:1", tmp_path), tmp_path):
            await until(lambda: workloads() == ["worker-1"])
