"""What a kubelet lists of pods that have a device by a claim, by a limit, and none; anonymous.

The answer of a real one is in tests/recorded/pod_resources.json.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

import grpc.aio
from google.protobuf.json_format import MessageToDict

from nodeagent.cluster.kubelet.generated.podresources_pb2 import ListPodResourcesResponse

RECORDED = Path(__file__).parents[1] / "recorded" / "pod_resources.json"


async def listed(socket: Path, *, record: bool = False) -> tuple[Any, Any]:
    """The pods that it lists, by their names, and those that a real one listed once."""
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/v1.PodResourcesLister/List"
        )
        answer = ListPodResourcesResponse.FromString(await call(b"", timeout=30))
    pods = sorted(MessageToDict(answer)["podResources"], key=lambda pod: str(pod["name"]))
    text = re.sub(r"-extended-resources-\w+|gpu-[0-9a-f-]{36}", "-NAME", json.dumps(pods, indent=1))
    text = re.sub(r'"poolName": "[^"/]*/', '"poolName": "NODE/', text)
    if record and os.environ.get("NODEAGENT_TEST_RECORD"):
        RECORDED.write_text(text + "\n", encoding="utf-8")
    return json.loads(text), json.loads(RECORDED.read_text(encoding="utf-8"))
