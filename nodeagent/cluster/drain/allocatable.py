"""What the node should offer to pods once its GPUs are as planned, and how it differs from that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from nodeagent.cluster.drain.strategy import GPU_RESOURCE, MIG_RESOURCE, Strategy, offered
from nodeagent.plan.observed import Gpu
from nodeagent.plan.problems import Code, Problem

SHARING_LABEL: Final = "nvidia.com/gpu.sharing-strategy"
_SHARED = ".shared"


class SharedBy(StrEnum):
    """How the plugin's replicas share a device; as its label says it."""

    NOTHING = "none"
    TIME_SLICING = "time-slicing"
    MPS = "mps"


@dataclass(frozen=True, slots=True)
class Replicated:
    """Several of one in the plugin's configuration: its `sharing.*.resources[]`.

    `devices` is how many of the resource's devices are shared, None for all of them. `rename` is
    the other name that they get, "" for none.
    """

    resource: str
    replicas: int
    rename: str = ""
    devices: int | None = None


@dataclass(frozen=True, slots=True)
class PluginSharing:
    """How the device plugin shares devices. With `rename_by_default` each gets `.shared`."""

    by: SharedBy = SharedBy.NOTHING
    resources: tuple[Replicated, ...] = ()
    rename_by_default: bool = False

    def name_of(self, one: Replicated) -> str:
        """What the shared devices are offered as."""
        return one.rename or one.resource + (_SHARED if self.rename_by_default else "")


NOT_SHARED: Final = PluginSharing()


def sharing_of(labels: Mapping[str, str]) -> PluginSharing | None:
    """By GPU feature discovery's label: not shared, or None: shared in a way it does not tell."""
    told = labels.get(SHARING_LABEL, SharedBy.NOTHING)
    return NOT_SHARED if told == SharedBy.NOTHING else None


def expected(strategy: Strategy, gpus: Iterable[Gpu], sharing: PluginSharing) -> dict[str, int]:
    """How many of which resource there should be, by name."""
    counts = offered(strategy, gpus)
    result = dict(counts)
    for one in sharing.resources:
        there = counts.get(one.resource, 0)
        shared = there if one.devices is None else min(one.devices, there)
        if not shared:
            continue
        result[one.resource] -= shared
        name = sharing.name_of(one)
        result[name] = result.get(name, 0) + shared * one.replicas
    return {name: count for name, count in sorted(result.items()) if count}


def not_shareable(
    strategy: Strategy, gpus: Iterable[Gpu], sharing: PluginSharing
) -> tuple[Problem, ...]:
    """What of the sharing the plugin refuses for these GPUs, and then offers nothing of."""
    gpus = tuple(gpus)
    counts = offered(strategy, gpus)
    problems = [
        _too_many(one, counts[one.resource]) for one in sharing.resources if _short(one, counts)
    ]
    if sharing.by is SharedBy.MPS:
        split = any(gpu.mig is not None and gpu.mig.current for gpu in gpus)
        problems += [
            _mps_on_mig(one)
            for one in sharing.resources
            if counts.get(one.resource)
            and (one.resource.startswith(MIG_RESOURCE) or (split and strategy is Strategy.SINGLE))
        ]
    return tuple(problems)


def _short(one: Replicated, counts: Mapping[str, int]) -> bool:
    return one.devices is not None and 0 < counts.get(one.resource, 0) < one.devices


def _too_many(one: Replicated, there: int) -> Problem:
    return Problem(
        Code.UNSUPPORTED,
        f"the device plugin's configuration shares {one.devices} of {one.resource}, but there "
        f"would be {there}, for which it refuses to start",
        "share all of them, or choose another of its configurations with devicePluginConfig",
    )


def _mps_on_mig(one: Replicated) -> Problem:
    return Problem(
        Code.UNSUPPORTED,
        f"the device plugin's configuration shares {one.resource} by MPS, which it refuses for MIG "
        "devices",
        "leave MPS on MIG devices to this agent (mps in the plan), and choose a configuration "
        "without it with devicePluginConfig",
    )


# --- afterwards ---------------------------------------------------------------------------------


def mismatches(wanted: Mapping[str, int], allocatable: Mapping[str, str]) -> tuple[Problem, ...]:
    """One problem for each resource of which the node offers another amount than it should.

    A resource of the plugin that should be gone and is still offered is among them.
    """
    left = {name for name, amount in allocatable.items() if _is_plugins(name) and amount != "0"}
    return tuple(
        _differs(name, wanted.get(name, 0), allocatable.get(name, "0"))
        for name in sorted({*wanted, *left})
        if allocatable.get(name, "0") != str(wanted.get(name, 0))
    )


def _is_plugins(name: str) -> bool:
    """By the names it gives on its own; others under nvidia.com/ are offered by others."""
    return name in (GPU_RESOURCE, GPU_RESOURCE + _SHARED) or name.startswith(MIG_RESOURCE)


def _differs(name: str, wanted: int, there: str) -> Problem:
    if wanted == 0:
        remedy = "the device plugin has not looked again: delete its pod on this node"
    elif there == "0":
        remedy = (
            "see the device plugin's log on this node: does it run, and do its MIG strategy and "
            "its configuration allow this layout?"
        )
    else:
        remedy = (
            "see the device plugin's log on this node: it may hold a device for unhealthy, or "
            "share by another configuration"
        )
    return Problem(
        Code.NOT_OFFERED,
        f"the GPUs are as planned, but the node offers {there} {name} where it should offer "
        f"{wanted or 'none'}",
        remedy,
    )
