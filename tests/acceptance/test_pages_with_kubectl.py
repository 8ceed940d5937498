"""What docs/annotations.md has typed with kubectl, typed on a simulated cluster."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from tests.doc_blocks import ROOT, blocks_of
from tests.manifests.rendering import why_not
from tests.simulated_cluster.agent import (
    AgentProcess,
    command,
    in_sync,
    kubeconfig,
    until_status,
)
from tests.simulated_cluster.api_server import ApiServer

PAGE = (ROOT / "docs/annotations.md").read_text(encoding="utf-8")
NODE = "gpu-node-0"  # the page's
PLAN = "version: v1\ngpus:\n  - devices: [0]\n    mig: {3g.40gb: 1, 1g.10gb: 3}"
_WHY_NOT = why_not() or ("" if shutil.which("jq") else "jq is not installed")


async def _type(commands: str, folder: Path) -> None:
    """Have a shell run them; each has to end with 0."""
    shell = await asyncio.create_subprocess_exec(
        "bash",
        "-c",
        f"set -euo pipefail\n{commands}",
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "KUBECONFIG": str(folder / "kubeconfig"),
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await shell.communicate()
    assert shell.returncode == 0, f"{commands}\n{out.decode()}"


@pytest.mark.full
@pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT)
async def test_a_plan_is_given_and_awaited_as_the_page_says(tmp_path: Path) -> None:
    """The first block gives a node its plan; the others find that the change is done."""
    give, *find = (block.body for block in blocks_of(PAGE) if block.info == "sh cluster")
    (tmp_path / "plan.yaml").write_text(f"{PLAN}\n", encoding="utf-8")
    async with ApiServer() as api:
        api.add_node(NODE)
        (tmp_path / "kubeconfig").write_text(kubeconfig(api.url), encoding="utf-8")
        async with AgentProcess(command("h100-80gb:1", tmp_path, NODE), tmp_path):
            await _type(give, tmp_path)
            await until_status(api, in_sync(PLAN))
            await _type("\n".join(find), tmp_path)
