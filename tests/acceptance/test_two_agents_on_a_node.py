"""Two agents that write the same Node are reported, and not only rate-limited."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, UnixConnector

from tests.machine_load import stretched
from tests.simulated_cluster.agent import NAME, AgentProcess, command, kubeconfig
from tests.simulated_cluster.api_server import ApiServer


@pytest.mark.timeout(240)  # two agents start, and each waits longer after every time
async def test_both_say_so(tmp_path: Path) -> None:
    """An Event on the Node, and a problem with its remedy at each agent."""
    folders = [tmp_path / name for name in ("pod", "service")]
    async with ApiServer() as api:
        api.add_node(NAME)
        for folder in folders:
            folder.mkdir()
            (folder / "kubeconfig").write_text(kubeconfig(api.url))
        first, second = (
            AgentProcess(command(boards, folder), folder)
            for boards, folder in zip(("h100-80gb:1", "a100-40gb:1"), folders, strict=True)
        )
        async with first, second, asyncio.timeout(stretched(200)):
            while len(said := [e for e in api.events if e["reason"] == "Contested"]) < 1:
                await asyncio.sleep(0.05)
            assert said[0]["type"] == "Warning"
            # Whichever of the two agents' annotations and conditions was undone last is named.
            assert re.match(rf"another program overwrites .+ of Node {NAME}", said[0]["message"])
            assert "second agent" in said[0]["message"]
            for folder in folders:
                while "Contested" not in await codes(folder):
                    await asyncio.sleep(0.2)


async def codes(folder: Path) -> set[str]:
    """Of the problems that the agent with its socket there has, in its headline too."""
    connector = UnixConnector(str(folder / "run/agent.sock"))
    async with (
        ClientSession(connector=connector) as session,
        session.get("http://agent/v1/status") as answer,
    ):
        status: dict[str, Any] = await answer.json()
    return {problem["code"] for problem in status["problems"]} & {status["headline"]["code"]}
