"""What a cluster shows of an unhealthy GPU: the condition and an Event, from a line of the log."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

from nodeagent.views.status_annotation import STATUS
from tests.acceptance.cluster_rig import plan_text
from tests.agent_environment import asked
from tests.cluster.client.rig import until
from tests.simulated_cluster.agent import (
    NAME,
    PLAN,
    AgentProcess,
    command,
    in_sync,
    kubeconfig,
    until_status,
)
from tests.simulated_cluster.api_server import ApiServer


async def test_the_condition_and_the_event(tmp_path: Path) -> None:
    """False with the cause, which names the slices and what helps; soon, and without a new plan.
    The Node has a taint then, if a setting says so.

    Scrapes of the same agent say that it reaches the cluster.
    """
    os.mkfifo(tmp_path / "kmsg")
    kernel = os.open(tmp_path / "kmsg", os.O_RDWR | os.O_NONBLOCK)
    settings = {
        "NODEAGENT_HEALTH_KERNEL_LOG": f"{tmp_path}/kmsg",
        "NODEAGENT_KUBERNETES_TAINTS": "true",
    }
    plan = plan_text("{3g.40gb: 2}")
    async with ApiServer() as api:
        api.add_node(NAME)
        (tmp_path / "kubeconfig").write_text(kubeconfig(api.url))
        api.annotate(NAME, **{PLAN: plan})

        def condition(kind: str = "GPUHealthy") -> dict[str, str]:
            found = api.node(NAME)["status"]["conditions"]
            return next((entry for entry in found if entry["type"] == kind), {})

        def headline() -> dict[str, str]:
            text = api.node(NAME)["metadata"]["annotations"][STATUS]
            found: dict[str, str] = json.loads(text)["headline"]
            return found

        boards = command("h100-80gb:1", tmp_path)
        async with AgentProcess(boards, tmp_path, settings=settings) as agent:
            await until_status(api, in_sync(plan))
            await until(lambda: condition().get("reason") == "Healthy")
            await until(lambda: headline()["severity"] == "ok")
            await until((tmp_path / "run" / "agent.sock").exists)
            _, scraped = await asyncio.to_thread(asked, tmp_path, "/metrics")
            assert "\nnodeagent_cluster_reachable 1\n" in scraped
            micros = int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1e6)
            line = f"3,17,{micros},-;NVRM: Xid (PCI:0000:1a:00 GPU-I:02): 95, pid=7, name=x\n"
            os.write(kernel, line.encode())
            await until(lambda: condition()["status"] == "False")
            assert condition()["reason"] == "XidReset"
            taint = {"key": "nodeagent.io/gpu-unhealthy", "effect": "NoSchedule"}
            await until(lambda: api.node(NAME)["spec"].get("taints") == [taint])
            said, _, _ = condition()["message"].partition(" (reset GPU)")
            cause = "GPU 0 reported an error that needs a GPU reset (XID 95) in slices "
            assert said in (f"{cause}0-3", f"{cause}4-7")
            await until(lambda: headline()["severity"] == "error")
            assert headline()["text"] == f"{said}."
            assert headline()["code"] == "XidReset"
            assert "run `nvidia-smi --gpu-reset -i 0` on the node" in headline()["remedy"]
            await until(lambda: condition("GPUPartitionsReady")["message"].startswith(said))
            assert condition("GPUPartitionsReady")["status"] == "True"
            await until(lambda: any(e["reason"] == "GpuUnhealthy" for e in api.events))
            (event,) = (e for e in api.events if e["reason"] == "GpuUnhealthy")
            assert event["type"] == "Warning"
            assert event["note" if "note" in event else "message"].startswith("GPU 0 reported ")
        assert agent.code == 0, agent.said()
    os.close(kernel)
