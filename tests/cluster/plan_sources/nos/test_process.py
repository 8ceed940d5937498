from pathlib import Path

import pytest

from nodeagent.cluster.plan_sources.nos.grammar import STATUS_PLAN
from tests.cluster.client.rig import until
from tests.cluster.plan_sources.nos.rig import MIG, spec
from tests.simulated_cluster.agent import NAME, AgentProcess, command, kubeconfig
from tests.simulated_cluster.api_server import ApiServer

NOS = "nos.nebuly.com/"


def answers(api: ApiServer) -> dict[str, str]:
    """What is answered to nos, by what follows its prefix."""
    found = api.node(NAME)["metadata"].get("annotations", {})
    return {k.removeprefix(NOS): v for k, v in found.items() if k.startswith(f"{NOS}status")}


@pytest.mark.full
async def test_mig(tmp_path: Path) -> None:
    """A node divided by MIG; what is so, and the plan, are answered in one patch."""
    async with ApiServer() as api:
        asked = spec("1714000000", **{"0-3g.40gb": "2", "1-7g.80gb": "1"})
        api.add_node(NAME, labels=MIG)
        api.annotate(NAME, **asked)
        (tmp_path / "kubeconfig").write_text(kubeconfig(api.url))
        agent = [*command("h100-80gb:2", tmp_path), "--source", "nos"]
        async with AgentProcess(agent, tmp_path):
            await until(lambda: "status-partitioning-plan" in answers(api))
            assert answers(api) == {
                "status-gpu-0-3g.40gb-free": "2",
                "status-gpu-1-7g.80gb-free": "1",
                "status-partitioning-plan": "1714000000",
            }
            assert len([r for r in api.requests if STATUS_PLAN in str(r.body)]) == 1
