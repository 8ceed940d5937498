"""What the agent says of claims in metrics: how long they take, why they fail, what they hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from nodeagent.metrics import agent_metrics
from nodeagent.metrics.agent_metrics import AgentSample, Durations, agent_families
from nodeagent.metrics.exposition import Family
from nodeagent.plan.layouts import Card
from nodeagent.structs import Struct, field
from nodeagent.views.claims import Claim, ClaimDevice, ClaimPhase
from nodeagent.views.node_state import NodeState

# Seconds. A slice takes tens of milliseconds, and the kubelet's call ends after 45.
_BOUNDS = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 300.0)
_HOLDING = frozenset({ClaimPhase.READY, ClaimPhase.RELEASING})


class ClaimWork(Struct):
    """What was done for claims since the agent was started."""

    _failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    _durations: dict[str, Durations] = field(
        default_factory=lambda: {
            "prepare": Durations(agent_metrics.CLAIM_PREPARE_DURATION, _BOUNDS),
            "release": Durations(agent_metrics.CLAIM_RELEASE_DURATION, _BOUNDS),
        }
    )

    def add(self, operation: str, seconds: float, reason: str) -> None:
        """An attempt took `seconds`, and failed for a `reason`; "": it did not."""
        if reason:
            self._failures[operation, reason] += 1
        else:
            self._durations[operation].add(seconds)

    def families(self) -> list[Family]:
        """Durations of what succeeded, and what failed by reason."""
        failures = [
            AgentSample(agent_metrics.CLAIM_FAILURES, count, key)
            for key, count in sorted(self._failures.items())
        ]
        return [*(one.family() for one in self._durations.values()), *agent_families(failures)]


def claim_samples(state: NodeState) -> Iterator[AgentSample]:
    """Claims by phase, and the memory slices that they have; nothing where none are served."""
    if state.claims is None:
        return
    counts = Counter(claim.phase for claim in state.claims)
    for phase in ClaimPhase:
        yield AgentSample(agent_metrics.CLAIMS, counts[phase], (phase.value,))
    slots = {gpu.uuid: Card.of(gpu).slots for gpu in state.observed.gpus}
    for claim in state.claims:
        if claim.phase in _HOLDING:
            for device in claim.devices:
                yield from _held(claim, device, slots.get(device.gpu, 0))


def _held(claim: Claim, device: ClaimDevice, slots: int) -> Iterator[AgentSample]:
    """A share of a GPU has no slices of its own, and an administrator's device is another's."""
    size = device.size if device.size is not None else slots or 1
    if device.admin_access or not (device.profile or device.is_whole):
        return
    index = "" if device.index is None else str(device.index)
    instance = "" if device.gi is None else str(device.gi)
    pod = claim.pods[0].name if len(claim.pods) == 1 else ""
    where = (index, device.gpu, device.profile, instance)
    whose = (claim.namespace, claim.name, pod)
    yield AgentSample(agent_metrics.CLAIM_SLICES, size, (*where, *whose))
