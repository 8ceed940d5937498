import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.cluster.plan_sources.nos.grammar import CONFIGURATION_LABEL, MODE_LABEL, STATUS_PLAN
from tests.cluster.client.rig import until
from tests.cluster.plan_sources.nos.rig import spec
from tests.simulated_cluster.agent import NAME, AgentProcess, command, kubeconfig
from tests.simulated_cluster.api_server import ApiServer

NOS = "nos.nebuly.com/"
WHERE = ("nebuly-nvidia", "nos-device-plugin-configs")
SHARES = """\
version: v1
flags: {migStrategy: none}
sharing:
  mps:
    failRequestsGreaterThanOne: true
    resources:
    - {name: nvidia.com/gpu, rename: gpu-10gb, memoryGB: 10, replicas: 2, devices: ["0"]}
    - {name: nvidia.com/gpu, rename: gpu-40gb, memoryGB: 40, replicas: 1, devices: ["1"]}
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not pytest's: MPS' user has to reach it, and socket paths are short."""
    made = Path(tempfile.mkdtemp(prefix="na-", dir="/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


def answers(api: ApiServer) -> dict[str, str]:
    """What is answered to nos, by what follows its prefix."""
    found = api.node(NAME)["metadata"].get("annotations", {})
    return {k.removeprefix(NOS): v for k, v in found.items() if k.startswith(f"{NOS}status")}


@pytest.mark.skipif(os.geteuid() not in (0, 1000), reason="nos' clients are of the user 1000")
@pytest.mark.full
async def test_mig_then_mps(folder: Path) -> None:
    """A node divided by MIG, then by MPS as the ConfigMap says; each answered in one patch."""
    async with ApiServer() as api:
        asked = spec("1714000000", **{"0-3g.40gb": "2", "1-7g.80gb": "1"})
        api.add_node(NAME, labels={MODE_LABEL: "mig"})
        api.annotate(NAME, **asked)
        (folder / "kubeconfig").write_text(kubeconfig(api.url))
        agent = [*command("h100-80gb:2", folder), "--source", "nos"]
        settings = {"NODEAGENT_KUBERNETES_NOS_CONFIG_MAP": "/".join(WHERE)}
        async with AgentProcess(agent, folder, settings=settings):
            await until(lambda: "status-partitioning-plan" in answers(api))
            assert answers(api) == {
                "status-gpu-0-3g.40gb-free": "2",
                "status-gpu-1-7g.80gb-free": "1",
                "status-partitioning-plan": "1714000000",
            }
            assert len([r for r in api.requests if STATUS_PLAN in str(r.body)]) == 1
            api.put_config_map(*WHERE, {f"{NAME}-1714000100": SHARES})
            key = {CONFIGURATION_LABEL: f"{NAME}-1714000100", MODE_LABEL: "mps"}
            api.patch_node(NAME, {"metadata": {"labels": key}})
            expected = {"status-gpu-0-10gb-free": "2", "status-gpu-1-40gb-free": "1"}
            await until(lambda: {k: v for k, v in answers(api).items() if "gpu" in k} == expected)
        assert len([r for r in api.requests if "configmaps" in r.path]) == 1
