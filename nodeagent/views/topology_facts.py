"""The annotation nodeagent.io/topology: where the node's GPUs are, for schedulers.

Nothing in it changes while the agent splits GPUs. What is not known is absent.
"""

from __future__ import annotations

from typing import Any, Final

from nodeagent.plan.observed import Gpu, ObservedNode
from nodeagent.views.plain_text import compact_json, shortened, that_fit
from nodeagent.views.shapes import as_json
from nodeagent.views.status_report import nvlink_shape

TOPOLOGY: Final = "nodeagent.io/topology"
VERSION: Final = "v1"
LARGEST: Final = 32 << 10  # bytes

_AROUND = 128  # bytes kept for what is around the list of GPUs
_NAME = 100  # characters


def topology(observed: ObservedNode) -> str:
    """Every GPU with UUID, index, address, product, bytes of memory, NUMA node and NVLinks."""
    gpus, left_out, _ = that_fit(map(_gpu, observed.gpus), LARGEST - _AROUND)
    more = {"more": {"gpus": left_out}} if left_out else {}
    return compact_json({"version": VERSION, "gpus": gpus, **more})


def _gpu(gpu: Gpu) -> dict[str, Any]:
    known = {
        "uuid": gpu.uuid,
        "index": gpu.index,
        "pciBusId": gpu.pci_bus_id,
        "product": shortened(gpu.name, most=_NAME),
        "memory": gpu.memory or None,
        "numaNode": gpu.numa_node,
        "nvlink": as_json(links) if (links := nvlink_shape(gpu)) else None,
    }
    return {key: value for key, value in known.items() if value not in ("", None)}
