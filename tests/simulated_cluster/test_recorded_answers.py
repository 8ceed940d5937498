"""Our API server's answers are those of a real one, field by field."""

from __future__ import annotations

import json
import os
from pathlib import Path

import aiohttp

from tests.simulated_cluster.conftest import Cluster
from tests.simulated_cluster.exchanges import Conversation, differences

RECORDED = Path(__file__).parents[1] / "recorded" / "api_server.json"


async def test_every_answer(cluster: Cluster) -> None:
    """To all that the agent asks for: what a real server said once, it says still, and ours says
    no less of it and nothing else.
    """
    async with aiohttp.ClientSession() as session:
        found = await Conversation(session, cluster.url, cluster.token).all()
    is_real = cluster.ca_file is not None
    if is_real and os.environ.get("NODEAGENT_TEST_RECORD"):
        lines = (f'"{what}": {json.dumps(said, sort_keys=True)}' for what, said in found.items())
        RECORDED.write_text("{" + ",\n".join(lines) + "}\n", encoding="utf-8")
    assert list(differences(json.loads(RECORDED.read_text(encoding="utf-8")), found)) == []
