"""What the agent has the Node and its devices say, compared with the cards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nodeagent.simulation import SimulatedNode


@dataclass(frozen=True, slots=True)
class Published:
    """Of the Node its annotations and the states of its conditions; of its devices for claims the
    names of those that no new pod gets.
    """

    status: dict[str, Any]
    layout: dict[str, Any]
    conditions: dict[str, str]
    tainted: list[str]


def untrue(node: SimulatedNode, published: Published, *, is_sick: bool) -> Iterator[str]:
    """What is published and is not so, on a node that is as its plan says and where no pod has
    anything. `is_sick`: whether a GPU may be held for unhealthy.
    """
    status, layout = published.status["gpus"], published.layout["gpus"]
    if not len(status) == len(layout) == len(node.cards):
        yield f"the Node has GPUs {status} and {layout}"
        return
    for card in node.cards:
        uuid = card.identity.uuid
        (listed,) = (gpu.get("instances", ()) for gpu in status if gpu["uuid"] == uuid)
        (counted,) = (gpu.get("instances", {}) for gpu in layout if gpu["uuid"] == uuid)
        there = [
            (card.mig_uuid(i, c), card.profile(i.profile).name, i.start, False)
            for i, c in card.mig_devices()
        ]
        parts = ("uuid", "profile", "start", "used")
        if sorted(tuple(one[part] for part in parts) for one in listed) != sorted(there):
            yield f"the Node's status has {listed} on GPU {card.index}, and there are {there}"
        counts = Counter(profile for _, profile, *_ in there)
        if counted != {name: {"total": total, "used": 0} for name, total in counts.items()}:
            yield f"the Node's layout has {counted} on GPU {card.index}, and there are {counts}"
    well = {"GPUPartitionsReady"} if is_sick else {"GPUPartitionsReady", "GPUHealthy"}
    if any(published.conditions.get(name) != "True" for name in well):
        yield f"the Node's conditions are {published.conditions}"
    if published.tainted and not is_sick:
        yield f"no pod gets {published.tainted}"
