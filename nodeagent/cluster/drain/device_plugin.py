"""NVIDIA's device plugin: which layouts it can offer, and what the node should then offer. Pure.

A layout that its MIG strategy or its sharing does not allow makes the plugin offer nothing at all
for the node, or everything under a wrong name. That is found here before anything is touched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from nodeagent.plan.observed import Access, ComputeInstance, Gpu, GpuInstance, ObservedNode
from nodeagent.plan.plan import NodePlan
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
    """By GPU feature discovery's labels, which leave out `none`; None: not known."""
    strategy = labels.get(STRATEGY_LABEL, "")
    if strategy in set(Strategy):
        return Strategy(strategy)
    return Strategy.NONE if not strategy and FEATURES_LABEL in labels else None


def gpus_after(plan: NodePlan, observed: ObservedNode) -> tuple[Gpu, ...]:
    """The node's GPUs once the plan is carried out, those it does not name as they are."""
    planned = {gpu.before.key: gpu.after for gpu in plan.gpus}
    return tuple(planned.get(gpu.key, gpu) for gpu in observed.gpus)


def resource_of(profile: str) -> str:
    """What the strategy `mixed` calls a profile: `1g.10gb+me` is nvidia.com/mig-1g.10gb.me."""
    return MIG_RESOURCE + profile.replace("+", ".")


def offered(strategy: Strategy, gpus: Iterable[Gpu]) -> dict[str, int]:
    """The plugin's devices by resource, before it makes several of one by sharing."""
    counts: Counter[str] = Counter()
    for gpu in gpus:
        if gpu.access is Access.LOST:
            continue
        if strategy is Strategy.NONE or not gpu.in_mig_mode:
            counts[GPU_RESOURCE] += 1
            continue
        for _, device in gpu.mig_devices():
            single = strategy is Strategy.SINGLE
            counts[GPU_RESOURCE if single else resource_of(device.profile)] += 1
    return dict(sorted(counts.items()))


def cannot_serve(strategy: Strategy, gpus: Iterable[Gpu]) -> tuple[Problem, ...]:
    """Why the plugin could not offer these GPUs; empty when it can."""
    present = [gpu for gpu in gpus if gpu.access is not Access.LOST]
    split = [gpu for gpu in present if gpu.in_mig_mode]
    if not split:
        return ()
    if strategy is Strategy.NONE:
        return (_with_none(split),)
    problems = [*_empty(strategy, split)]
    if strategy is Strategy.SINGLE:
        problems += _not_uniform(present, split)
    else:
        problems += _parts(split)
    return tuple(problems)


# --- in words -------------------------------------------------------------------------------------


def _with_none(split: list[Gpu]) -> Problem:
    return Problem(
        Code.UNSUPPORTED,
        f"the device plugin's MIG strategy is none, with which it would offer {_names(split)} as "
        "whole GPUs, although MIG mode makes that impossible",
        "give the device plugin the MIG strategy mixed or single",
        gpu=split[0].uuid,
    )


def _empty(strategy: Strategy, split: list[Gpu]) -> Iterator[Problem]:
    for gpu in split:
        if not any(gpu.mig_devices()):
            yield Problem(
                Code.UNSUPPORTED,
                f"{_names([gpu])} would be in MIG mode without any device, with which the device "
                f"plugin (MIG strategy {strategy}) offers nothing of the whole node",
                "give it at least one instance, or mig: disabled",
                gpu=gpu.uuid,
            )


def _not_uniform(present: list[Gpu], split: list[Gpu]) -> Iterator[Problem]:
    whole = [gpu for gpu in present if not gpu.in_mig_mode]
    if whole:
        yield Problem(
            Code.UNSUPPORTED,
            "the device plugin's MIG strategy is single, which wants MIG mode on all GPUs of a "
            f"node or on none; {_names(split)} would have it and {_names(whole)} would not",
            "plan all GPUs alike, or give the device plugin the MIG strategy mixed",
            gpu=whole[0].uuid,
        )
    kinds = Counter(
        _kind(gpu, instance, device) for gpu in split for instance, device in gpu.mig_devices()
    )
    if len(kinds) > 1:
        yield Problem(
            Code.UNSUPPORTED,
            "the device plugin's MIG strategy is single, which wants MIG devices of one kind on a "
            f"node; there would be {_counted(kinds)}",
            "plan one profile for all GPUs, or give the device plugin the MIG strategy mixed",
            gpu=split[0].uuid,
        )


def _kind(gpu: Gpu, instance: GpuInstance, device: ComputeInstance) -> str:
    """What the plugin compares is size, and two cards' profiles of one name differ in that."""
    profile = gpu.profile(instance.profile)
    size = f" of {profile.multiprocessors} SMs" if profile and profile.multiprocessors else ""
    return f"{device.profile}{size}"


def _parts(split: list[Gpu]) -> Iterator[Problem]:
    parts = Counter(
        device.profile
        for gpu in split
        for one, device in gpu.mig_devices()
        if device.profile != one.profile
    )
    if parts:
        yield Problem(
            Code.UNSUPPORTED,
            "the device plugin's MIG strategy is mixed, which has no name for a part of a GPU "
            f"instance and then offers nothing of the whole node; there would be {_counted(parts)}",
            "plan whole instances only, or parts of one size with the MIG strategy single",
            gpu=split[0].uuid,
        )


def _names(gpus: list[Gpu]) -> str:
    return ", ".join(f"GPU {gpu.index}" for gpu in gpus)


def _counted(kinds: Mapping[str, int]) -> str:
    return " + ".join(f"{count} × {kind}" for kind, count in sorted(kinds.items()))


_SHARED = ".shared"


@dataclass(frozen=True, slots=True)
class PluginConfiguration:
    """The plugin's strategy, and how many devices it makes of each one, by resource.

    `strategy` None: not known, such as where a file leaves it to the plugin's own flags. `replicas`
    None: how many is not determined. NVIDIA's plugin ignores a resource's `rename` and `devices`,
    and others that read the same file do not. With `rename_by_default` each shared resource gets
    `.shared`. `by_mps`: not by time slicing.
    """

    strategy: Strategy | None = None
    replicas: tuple[tuple[str, int], ...] | None = ()
    rename_by_default: bool = False
    by_mps: bool = False

    def offer(self, gpus: Iterable[Gpu]) -> dict[str, int] | None:
        """How many of which resource the node should have, by name; None if that is not known."""
        if self.strategy is None or self.replicas is None:
            return None
        counts = offered(self.strategy, gpus)
        result = dict(counts)
        for resource, replicas in self.replicas:
            there = counts.get(resource, 0)
            if there:
                name = resource + (_SHARED if self.rename_by_default else "")
                result[resource] -= there
                result[name] = result.get(name, 0) + there * replicas
        return {name: count for name, count in sorted(result.items()) if count}

    def refuses(self, gpus: tuple[Gpu, ...]) -> tuple[Problem, ...]:
        """Why the plugin could not offer these GPUs; then it offers nothing of them."""
        if self.strategy is None:
            return ()
        problems = cannot_serve(self.strategy, gpus)
        if not self.by_mps:
            return problems
        counts = offered(self.strategy, gpus)
        all_mig = self.strategy is Strategy.SINGLE and any(gpu.in_mig_mode for gpu in gpus)
        return problems + tuple(
            Problem(
                Code.UNSUPPORTED,
                f"the device plugin's configuration shares {resource} by MPS, which it refuses for "
                "MIG devices",
                "leave MPS on MIG devices to this agent (mps in the plan), and choose a "
                "configuration without it with devicePluginConfig",
            )
            for resource, _ in self.replicas or ()
            if counts.get(resource) and (all_mig or resource.startswith(MIG_RESOURCE))
        )


# --- afterwards -----------------------------------------------------------------------------------


def mismatches(
    wanted: Mapping[str, int], allocatable: Mapping[str, str], *, plugin: tuple[str, ...]
) -> tuple[Problem, ...]:
    """One problem for each resource of which the node offers another amount than it should.

    A resource of the plugin that should be gone and is still offered is among them. `plugin` are
    kubectl's options that select the plugin's pods on this node, together.
    """
    # By the names it gives on its own; others under nvidia.com/ are offered by others.
    own = (GPU_RESOURCE, GPU_RESOURCE + _SHARED)
    left = {
        name
        for name, amount in allocatable.items()
        if amount != "0" and (name in own or name.startswith(MIG_RESOURCE))
    }
    return tuple(
        _differs(name, wanted.get(name, 0), allocatable.get(name, "0"), plugin)
        for name in sorted({*wanted, *left})
        if allocatable.get(name, "0") != str(wanted.get(name, 0))
    )


def _differs(name: str, wanted: int, there: str, plugin: tuple[str, ...]) -> Problem:
    look = f"find the device plugin on this node with {_typed('get', plugin)}, and see its log"
    if wanted == 0:
        remedy = f"the device plugin was not restarted: {_typed('delete', plugin)}"
    elif there == "0":
        remedy = f"{look}: check whether its MIG strategy and its configuration allow this layout"
    else:
        remedy = (
            f"{look}: it may consider a device unhealthy, or use another configuration for sharing"
        )
    return Problem(
        Code.NOT_OFFERED,
        f"the GPUs are as planned, but the node offers {there} {name} where it should offer "
        f"{wanted or 'none'}",
        remedy,
    )


def _typed(verb: str, plugin: tuple[str, ...]) -> str:
    """One line for a shell; pods with one of several labels take a command for each."""
    return f"`{'; '.join(f'kubectl {verb} pods {options}' for options in plugin)}`"
