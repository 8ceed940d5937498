"""A Node, a plan source on it and the loop on simulated GPUs, without an API server in between."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

from nodeagent.cluster.client.node_view import NodeView, Wanted
from nodeagent.cluster.plan_sources.node_source import NodeSource, Offer
from nodeagent.simulation import SimulatedNode, simulated
from nodeagent.structs import replace
from nodeagent.views.node_state import NodeState
from tests.cluster.client.rig import running as in_background
from tests.rig import Rig, running

MakeSource = Callable[[Offer, Callable[[], int]], NodeSource]


def view_of(
    annotations: Mapping[str, str] | None = None, labels: Mapping[str, str] | None = None
) -> NodeView:
    """A Node with these."""
    return NodeView("n", "1", "1", annotations or {}, labels or {})


class Home:
    """A Node on which everything that the source wants is written at once, and noted.

    `writes` has every write that changed something, in its order.
    """

    def __init__(
        self, folder: Path, make: MakeSource, gpus: SimulatedNode, *, name: str, **options: Any
    ) -> None:
        self.gpus = gpus
        self.view: NodeView | None = view_of()
        self.writes: list[Wanted] = []
        self.rig = Rig(folder, on_state=self._publish, **options)
        states = self.rig.node_states
        states.newest = replace(states.newest, source=name)
        self.source = make(self.rig.plan.offer, lambda: self.rig.state.rounds)

    @property
    def annotations(self) -> Mapping[str, str]:
        assert self.view is not None
        return self.view.annotations

    @property
    def labels(self) -> Mapping[str, str]:
        assert self.view is not None
        return self.view.labels

    def there(self, view: NodeView | None) -> None:
        """The Node is this one from now on."""
        self.view = view
        self.source.observe(view)
        self._publish(self.rig.state)

    def patch(
        self,
        annotations: Mapping[str, str | None] | None = None,
        labels: Mapping[str, str | None] | None = None,
    ) -> None:
        """Another client writes to the Node."""
        self.there(self._patched(Wanted(annotations or {}, labels or {})))

    def _publish(self, state: NodeState) -> None:
        if self.view is None:
            return
        wanted = self.source.answer(self.view, state, self.rig.plan.offered)
        written = Wanted(
            {k: v for k, v in wanted.annotations.items() if self.annotations.get(k) != v},
            {k: v for k, v in wanted.labels.items() if self.labels.get(k) != v},
        )
        if written != Wanted():
            self.writes.append(written)
            self.view = self._patched(written)
            self.source.observe(self.view)  # as the follower would tell

    def _patched(self, keys: Wanted) -> NodeView:
        merged = {**self.annotations, **keys.annotations}, {**self.labels, **keys.labels}
        return view_of(*({k: v for k, v in part.items() if v is not None} for part in merged))


@asynccontextmanager
async def at_home(
    folder: Path,
    make: MakeSource,
    *,
    name: str,
    boards: str = "h100-80gb:1",
    gpus: SimulatedNode | None = None,
    **options: Any,
) -> AsyncIterator[Home]:
    """The source `name` as `make` makes it, on a node with these boards, or on this one."""
    with nullcontext(gpus) if gpus else simulated(boards) as node:
        assert node is not None
        home = Home(folder, make, node, name=name, **options)
        async with running(home.rig), in_background(home.source.run()):
            yield home
