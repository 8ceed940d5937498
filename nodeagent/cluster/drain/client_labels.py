"""The GPU Operator's deploy labels, with which the node's GPU clients are sent away and back.

The values are mig-manager's. Which were paused is not remembered anywhere but in the labels: what
says `paused-for-mig-change` is put back to `true`, also by an agent that starts after a crash.

Only what is `true` is paused. mig-manager also pauses what is absent, and so deploys afterwards
what nobody had asked for; what is `false`, or paused by the driver's upgrade, is somebody else's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from nodeagent.cluster.drain.steps import PodSelector

TRUE: Final = "true"
PAUSED: Final = "paused-for-mig-change"

_PREFIX = "nvidia.com/gpu.deploy."


def _app(name: str) -> PodSelector:
    return PodSelector({"app": name})


@dataclass(frozen=True, slots=True)
class Client:
    """A deploy label and the pods that go when it is not `true`."""

    label: str
    pods: tuple[PodSelector, ...]


CLIENTS: Final = (
    Client(
        f"{_PREFIX}device-plugin",
        (
            _app("nvidia-device-plugin-daemonset"),
            # Its daemon holds the GPUs as long as it is there, and hangs on the same label.
            _app("nvidia-device-plugin-mps-control-daemon"),
        ),
    ),
    Client(f"{_PREFIX}gpu-feature-discovery", (_app("gpu-feature-discovery"),)),
    Client(f"{_PREFIX}dcgm-exporter", (_app("nvidia-dcgm-exporter"),)),
    Client(f"{_PREFIX}dcgm", (_app("nvidia-dcgm"),)),
    Client(f"{_PREFIX}nvsm", ()),  # its pods have no label of their own that could be awaited
    Client(f"{_PREFIX}client", (PodSelector(selects=f"{_PREFIX}client"),)),  # anybody's
)


def pausing(labels: Mapping[str, str]) -> dict[str, str | None]:
    """The labels to change before; empty when none is `true`."""
    return {c.label: PAUSED for c in CLIENTS if labels.get(c.label) == TRUE}


def restoring(labels: Mapping[str, str]) -> dict[str, str | None]:
    """The labels to change afterwards, seen as they are then; empty when none is paused."""
    return {c.label: TRUE for c in CLIENTS if labels.get(c.label) == PAUSED}


def leaving_pods(labels: Mapping[str, str]) -> tuple[PodSelector, ...]:
    """The pods that go when what is `true` is paused, or that go since it is paused already."""
    return tuple(pods for c in CLIENTS if labels.get(c.label) in (TRUE, PAUSED) for pods in c.pods)
