"""The plan sources on the Node, by the value of the setting plan.source.

Imported by commands that must start fast, so a source is imported where it is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from nodeagent.cluster.client.node_view import NodeView
    from nodeagent.cluster.plan_sources.node_source import FollowFile, NodeSource, Offer


class Carrier(NamedTuple):
    """What of the Node holds a source's requests, for people; a `key` may end with `*`."""

    title: str
    kind: Literal["annotation", "label"]
    key: str
    remedy: str  # where there is none

    def values(self, node: NodeView) -> list[str]:
        """What is requested by it, as it is written."""
        found = node.labels if self.kind == "label" else node.annotations
        if self.key.endswith("*"):
            return [text for key, text in found.items() if key.startswith(self.key[:-1])]
        return [found[self.key]] if found.get(self.key) else []


CARRIERS: Final = {
    "annotation": Carrier(
        "the annotation nodeagent.io/plan",
        "annotation",
        "nodeagent.io/plan",
        "annotate it with nodeagent.io/plan",
    ),
    "nos": Carrier(
        "nos' plan",
        "annotation",
        "nos.nebuly.com/spec-*",
        "nos' partitioner writes them when it plans for the node",
    ),
    "mig-config": Carrier(
        "the label nvidia.com/mig.config",
        "label",
        "nvidia.com/mig.config",
        "label it with a configuration's name: nvidia.com/mig.config=NAME",
    ),
}


def make_source(
    name: str, *, offer: Offer, rounds: Callable[[], int], follow: FollowFile
) -> NodeSource:
    """The source of this name, to be run; `follow` makes the plan file, for one that reads it."""
    from nodeagent.cluster.plan_sources.mig_config.source import MigConfigSource
    from nodeagent.cluster.plan_sources.node_source import AnnotationSource
    from nodeagent.cluster.plan_sources.nos.source import NosSource

    if name == "nos":
        return NosSource(offer, rounds=rounds)
    with_file = {"annotation": AnnotationSource, "mig-config": MigConfigSource}
    return with_file[name](offer, rounds=rounds, follow=follow)
