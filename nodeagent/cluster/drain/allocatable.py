"""What the node offers to pods after a change, compared with what it should offer.

That follows from the MIG strategy of NVIDIA's device plugin, which the labels of GPU feature
discovery have, and is not known where the plugin makes several devices of one: they do not say how
many.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from nodeagent.cluster.client.node_view import NodeView
from nodeagent.cluster.drain.changes import PLUGIN_CONFIG
from nodeagent.plan.observed import Access, Gpu
from nodeagent.plan.problems import Code, Problem

STRATEGY_LABEL: Final = "nvidia.com/mig.strategy"
SHARING_LABEL: Final = "nvidia.com/gpu.sharing-strategy"
FEATURES_LABEL: Final = "nvidia.com/gfd.timestamp"
GPU_RESOURCE: Final = "nvidia.com/gpu"
MIG_RESOURCE: Final = "nvidia.com/mig-"


class Strategy(StrEnum):
    """How the plugin offers MIG devices: not at all, as GPUs, or each profile by its name."""

    NONE = "none"
    SINGLE = "single"
    MIXED = "mixed"


def strategy_of(labels: Mapping[str, str]) -> Strategy | None:
    """The strategy by GPU feature discovery's labels, which leave out `none`; None: unknown."""
    strategy = labels.get(STRATEGY_LABEL, "")
    if strategy in set(Strategy):
        return Strategy(strategy)
    return Strategy.NONE if not strategy and FEATURES_LABEL in labels else None


def devices_by_resource(strategy: Strategy, gpus: Iterable[Gpu]) -> dict[str, int]:
    """What there is for pods.

    MIG devices count by their names with the strategy `none`, too: the plugin then offers their
    GPUs as whole ones, which no pod can use, and that difference has to be reported.
    """
    counts: Counter[str] = Counter()
    for gpu in gpus:
        if gpu.access is Access.LOST:
            continue
        if not gpu.in_mig_mode:
            counts[GPU_RESOURCE] += 1
            continue
        for _, device in gpu.mig_devices():
            single = strategy is Strategy.SINGLE
            counts[GPU_RESOURCE if single else resource_of(device.profile)] += 1
    return dict(sorted(counts.items()))


def resource_of(profile: str) -> str:
    """What the strategy `mixed` calls a profile: `1g.10gb+me` is nvidia.com/mig-1g.10gb.me."""
    return MIG_RESOURCE + profile.replace("+", ".")


@dataclass(slots=True, eq=False)
class AwaitedAllocatable:
    """Compares what the node offers with what it should; requests nothing.

    For `deadline` seconds a difference is no problem; then it is one until it is gone. `changed` is
    called when the wait is over or the problems are others. `plugin` are kubectl's options for the
    device plugin's pods, one text for each of their labels; `restarts`: the agent restarts it.
    """

    deadline: float
    plugin: tuple[str, ...]
    restarts: bool
    changed: Callable[[str], None]
    problems: tuple[Problem, ...] = ()
    _gpus: tuple[Gpu, ...] | None = None  # whose devices the node should offer; None: nothing to do
    _allocatable: Mapping[str, str] | None = None  # None: not known
    _timer: asyncio.TimerHandle | None = None
    # By feature discovery's labels, which go around a change of GPUs. None: not known, or shared.
    _strategy: Strategy | None = None
    _labelled: tuple[str, str] = "", ""  # for which configuration of the plugin, and time stamp

    @property
    def is_awaited(self) -> bool:
        """Whether the offer is still waited for: it has not come, and the time is not over."""
        return self._timer is not None

    def begin(self, gpus: tuple[Gpu, ...]) -> None:
        """Wait for the devices of these GPUs, if it is known how they are offered."""
        self.forget()
        if self._strategy is not None:
            self._gpus = gpus
            self._timer = asyncio.get_running_loop().call_later(self.deadline, self._time_is_over)
            self._compare()

    def forget(self) -> None:
        """The GPUs change again, or the wait is over."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._gpus, self.problems = None, None, ()

    def observe(self, view: NodeView | None) -> None:
        """The Node is like this now."""
        self._allocatable = view.allocatable if view is not None else None
        if view is not None:
            self._read_labels(view.labels)
        self._compare()

    def _read_labels(self, labels: Mapping[str, str]) -> None:
        name, stamp = labels.get(PLUGIN_CONFIG, ""), labels.get(FEATURES_LABEL, "")
        strategy, before = strategy_of(labels), self._labelled
        if strategy is not None and (name == before[0] or stamp != before[1]):
            is_shared = labels.get(SHARING_LABEL, "none") != "none"
            self._strategy, self._labelled = None if is_shared else strategy, (name, stamp)
        elif name != before[0]:
            self._strategy = None  # no labels, or those of the earlier configuration

    def _time_is_over(self) -> None:
        self._timer = None
        self._compare()
        if not self.problems:  # what the node offers is not known
            self.changed("the node's offer was waited for long enough")

    def _compare(self) -> None:
        if self._gpus is None or self._allocatable is None:
            return
        found: tuple[Problem, ...] = ()
        if self._strategy is not None:
            expected = devices_by_resource(self._strategy, self._gpus)
            found = mismatches(
                expected,
                self._allocatable,
                possible=can_offer(self._strategy, self._gpus),
                restarted=self.restarts,
                plugin=self.plugin,
            )
        if not found:
            self.forget()
            self.changed("the node offers what it should, as far as that is known")
        elif self._timer is None and found != self.problems:
            self.problems = found
            self.changed("the node does not offer what it should")


def can_offer(strategy: Strategy, gpus: Collection[Gpu]) -> bool:
    """Whether the plugin can offer such GPUs: `single` needs all of them alike."""
    parts = {device.profile for gpu in gpus for _, device in gpu.mig_devices()}
    alike = len(parts) < 2 and len({gpu.in_mig_mode for gpu in gpus}) < 2
    return not parts or strategy is Strategy.MIXED or (strategy is Strategy.SINGLE and alike)


def mismatches(
    wanted: Mapping[str, int],
    allocatable: Mapping[str, str],
    *,
    possible: bool,
    restarted: bool,
    plugin: tuple[str, ...],
) -> tuple[Problem, ...]:
    """One problem for each resource of which the node offers another amount than it should.

    A resource of the plugin that should be gone and is still offered is among them. `possible`:
    the plugin can offer it all, `restarted`: it was since. `plugin` are kubectl's options that
    select the plugin's pods on this node, together.
    """
    case = "restarted" if restarted else "notRestarted"
    if not possible:
        case = "strategy"
    # One line for a shell; pods with one of several labels take a command for each.
    verb = "delete" if case == "notRestarted" else "get"
    typed = f"`{'; '.join(f'kubectl {verb} pods {options}' for options in plugin)}`"
    # By the names it gives on its own; others under nvidia.com/ are offered by others.
    own = (GPU_RESOURCE, f"{GPU_RESOURCE}.shared")
    left = {
        name
        for name, amount in allocatable.items()
        if amount != "0" and (name in own or name.startswith(MIG_RESOURCE))
    }
    return tuple(
        Problem.of(
            Code.NOT_OFFERED,
            case,
            offered=f"{allocatable.get(name, '0')} {name}",
            wanted=wanted.get(name) or "none",
            plugin=typed,
        )
        for name in sorted({*wanted, *left})
        if allocatable.get(name, "0") != str(wanted.get(name, 0))
    )
