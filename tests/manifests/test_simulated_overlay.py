"""The overlay without a GPU does its work with what a real kubelet gives its pod."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.api.listening import SOCKET_NAME
from tests.manifests.rendering import Document, written
from tests.simulated_cluster.agent import (
    NAME,
    PLAN,
    AgentProcess,
    in_sync,
    kubeconfig,
    until_status,
)
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.volumes import empty_dir, why_not, without_powers

(DAEMON_SET,) = written("overlays/simulated/daemonset.yaml")
POD: Document = DAEMON_SET["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
BASE_MOUNTS = {"run": "/run/nodeagent", "state": "/var/lib/nodeagent"}  # where the base has them

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())


@pytest.fixture
def node() -> Iterator[Path]:
    """A folder that every user may pass, as a pod's root is."""
    with tempfile.TemporaryDirectory(prefix="pod-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


async def test_it_gets_in_sync(node: Path) -> None:
    """As its user and without any capability, on volumes of root's: with MIG, and with MPS."""
    user = POD["securityContext"]
    paths = {path: empty_dir(node / name, user["fsGroup"]) for name, path in BASE_MOUNTS.items()}
    environment = {one["name"]: _moved(one["value"], paths) for one in CONTAINER["env"]}
    environment["KUBERNETES_SERVICE_HOST"] = "127.0.0.1"  # by which the agent knows a pod
    async with ApiServer() as api:
        api.add_node(NAME)
        (node / "kubeconfig").write_text(kubeconfig(api.url))
        agent = [
            *without_powers(user["runAsUser"], user["runAsGroup"], user["fsGroup"]),
            *(sys.executable, "-m", "nodeagent", *CONTAINER["args"]),
            *("--kubeconfig", str(node / "kubeconfig"), "--node-name", NAME),
            *("--listen", "127.0.0.1:0"),
        ]
        async with AgentProcess(agent, node, settings=environment):
            for gpus in (
                "[{devices: [0], mig: {3g.40gb: 2}}]",
                "[{devices: [0], mig: {3g.40gb: 2}}, {devices: [1], mps: {replicas: 2}}]",
            ):
                plan = f"{{version: v1, gpus: {gpus}}}"
                api.annotate(NAME, **{PLAN: plan})
                await until_status(api, in_sync(plan))
            # Commands in the pod, which have its environment, find the agent.
            socket = Path(environment["NODEAGENT_RUN_DIR"], SOCKET_NAME)
            assert await asyncio.to_thread(socket.is_socket)


def _moved(text: str, paths: dict[str, Path]) -> str:
    """The value with the container's paths replaced by where its volumes are here."""
    for inside, here in paths.items():
        text = text.replace(inside, str(here))
    return text
