"""Which slice or share would do for a holder, by what it was seen to need; nothing is changed.

The rules, with their reasons, are a table in docs/operations.md ("Which slice would do").
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

from nodeagent.plan.layouts import Card
from nodeagent.plan.names import ProfileName
from nodeagent.plan.observed import Gpu, GpuInstanceProfile
from nodeagent.structs import Meta, Shape, Struct
from nodeagent.text import gibibytes
from nodeagent.use.digest import Spread, Use

ENOUGH = 24 * 3600.0  # seconds held, before `smaller` or `keep`
MEMORY_MARGIN = 1.2  # of the peak
ACTIVITY_MARGIN = 1.25  # of the activity at p95
FULL_SM = 0.95  # of what it may have, for half of the time: at its limit
WORTH = 0.75  # a share is smaller that has at most so much of the memory
GROWTH = 1.5  # of a share that is too small
_GIB = 1 << 30
_STEP = 5  # percent, to which threads are rounded up

WHOLE, SHARE = "gpu", "share"  # devices that are no profiles


class AdviceVerdict(StrEnum):
    """`notEnough`: what was seen does not tell."""

    KEEP = "keep"
    SMALLER = "smaller"
    LARGER = "larger"
    NOT_ENOUGH = "notEnough"


class Advice(Shape, frozen=True, kw_only=True):
    """What would do for a holder in place of `device`, on a card of this `model`.

    `advised` is a profile, or `share` with `memory` (bytes) and `threads` (percent); absent where
    nothing else is advised, or the card has nothing larger. The rest are the numbers behind it.
    """

    namespace: str = ""
    workload: Annotated[str, Meta(description="of pods, by their names; a unit, user or container")]
    container: str = ""
    model: str
    device: Annotated[str, Meta(description="what it has: a profile, gpu or share")]
    verdict: AdviceVerdict
    advised: str = ""
    memory: int | None = None
    threads: float | None = None
    why: Annotated[tuple[str, ...], Meta(description="sentences")]
    frees_slices: Annotated[int, Meta(description="memory slices")] = 0
    frees_part: Annotated[float, Meta(description="of the GPU, 0 to 1")] = 0.0
    held: Annotated[float, Meta(description="seconds")]
    used: Annotated[float, Meta(description="seconds")]
    granted: Annotated[int, Meta(description="bytes")]
    peak: Annotated[int | None, Meta(description="bytes")] = None
    activity: Annotated[float | None, Meta(description="percent of what it has, at p95")] = None


class _Size(Struct, frozen=True, order=True):
    """How much of a card something is: memory slices, multiprocessors, bytes of memory."""

    slots: float
    multiprocessors: float
    memory: float

    def holds(self, need: _Size) -> bool:
        pairs = zip(self._all, need._all, strict=True)
        return all(have >= needed for have, needed in pairs)

    @property
    def _all(self) -> tuple[float, ...]:
        return self.slots, self.multiprocessors, self.memory


class _Full(Struct, frozen=True):
    """That a holder needs more memory, or `compute`; `why` is a sentence."""

    why: str
    compute: bool = False


class _Answer(Struct, frozen=True):
    verdict: AdviceVerdict
    why: tuple[str, ...]
    advised: str = ""
    memory: int | None = None
    threads: float | None = None
    frees_slices: int = 0
    frees_part: float = 0.0


def advise(uses: Iterable[Use], gpus: Iterable[Gpu]) -> tuple[Advice, ...]:
    """One advice for each use, those that free most first. `gpus` are those of the node."""
    cards = {gpu.name: gpu for gpu in gpus}
    found = (_advice(use, _answer(use, cards.get(use.model))) for use in uses)
    return tuple(sorted(found, key=lambda a: (-a.frees_part, a.namespace, a.workload, a.device)))


def _advice(use: Use, answer: _Answer) -> Advice:
    activity = _activity(use)
    return Advice(
        namespace=use.holder.namespace,
        workload=use.holder.name,
        container=use.holder.container,
        model=use.model,
        device=use.device,
        verdict=answer.verdict,
        advised=answer.advised,
        memory=answer.memory,
        threads=answer.threads,
        why=answer.why,
        frees_slices=answer.frees_slices,
        frees_part=round(answer.frees_part, 3),
        held=round(use.held, 1),
        used=round(use.used, 1),
        granted=use.granted_memory,
        peak=int(use.memory.peak) if use.memory else None,
        activity=round(activity.p95, 1) if activity else None,
    )


def _activity(use: Use) -> Spread | None:
    """Of its multiprocessors, else of the engine, which is never less."""
    return use.sm or use.engine


def _answer(use: Use, gpu: Gpu | None) -> _Answer:
    if gpu is None:
        return _not_enough(f"this node has no {use.model} now")
    if use.memory is None:
        return _not_enough("its memory was not measured")
    full = _full(use, use.memory)
    if not full and use.held < ENOUGH:
        hours = use.held / 3600
        return _not_enough(f"it was seen for {hours:.1f} of {ENOUGH / 3600:.0f} hours")
    sizes = _sizes(gpu)
    if use.device.startswith(SHARE) or (use.device == WHOLE and not sizes):
        of = sizes.get(use.device.removeprefix(f"{SHARE} of "))
        return _share(use, use.memory, full, gpu, int(of.memory) if of else gpu.memory)
    if use.device != WHOLE and use.device not in sizes:
        return _not_enough(f"{gpu.name} has no profile {use.device} now")
    return _profile(use, use.memory, full, gpu, sizes)


def _not_enough(why: str) -> _Answer:
    return _Answer(AdviceVerdict.NOT_ENOUGH, (why,))


def _full(use: Use, memory: Spread) -> _Full | None:
    """What it has too little of."""
    if use.at_limit or memory.peak > use.granted_memory:
        return _Full(f"{_peak(memory)} of {gibibytes(use.granted_memory)}")
    limit = use.granted_threads or 100.0
    if use.device != WHOLE and use.sm and use.sm.p50 >= FULL_SM * limit:
        return _Full("all its multiprocessors were active for half of the time", compute=True)
    return None


def _nothing_larger(gpu: Gpu) -> str:
    return f"a {gpu.name} has nothing larger"


def _peak(memory: Spread) -> str:
    return f"its memory's peak is {gibibytes(int(memory.peak))}"


def _seen(use: Use, memory: Spread) -> tuple[str, ...]:
    """The numbers behind an advice, and what was not measured."""
    activity = _activity(use)
    if activity is None:
        return _peak(memory), "its activity was not measured: this is by memory alone"
    what = "multiprocessors'" if use.sm else "GPU's"
    return _peak(memory), f"its {what} activity at p95 is {activity.p95:.0f} %"


# --- profiles -------------------------------------------------------------------------------------


def _sizes(gpu: Gpu) -> dict[str, _Size]:
    """The card's profiles, the smallest first. Where the driver does not say how many
    multiprocessors each has, compute slices are counted.
    """
    told = all(profile.multiprocessors for profile in gpu.profiles)
    found = {
        profile.name: _Size(
            max((place.size for place in profile.placements), default=profile.slices),
            profile.multiprocessors if told else profile.slices,
            profile.memory,
        )
        for profile in gpu.profiles
    }
    return dict(sorted(found.items(), key=lambda item: (item[1], item[0])))


def _profile(
    use: Use, memory: Spread, full: _Full | None, gpu: Gpu, sizes: dict[str, _Size]
) -> _Answer:
    # MIG divides all of a card: its largest profile is as much as all of it.
    largest = max(sizes.values(), key=lambda size: size.multiprocessors)
    has = largest if use.device == WHOLE else sizes[use.device]
    attributes = () if use.device == WHOLE else ProfileName.parse(use.device).attributes
    offered = {n: s for n, s in sizes.items() if ProfileName.parse(n).attributes == attributes}
    if full:
        grown = has.multiprocessors * (ACTIVITY_MARGIN if full.compute else 1)
        more = _Size(has.slots, grown, MEMORY_MARGIN * memory.peak)
        larger = next((n for n, s in offered.items() if s.holds(more) and s != has), "")
        nothing = () if larger else (_nothing_larger(gpu),)
        return _Answer(AdviceVerdict.LARGER, (full.why, *nothing), larger)
    activity, dram = _activity(use), use.dram
    need = _Size(
        has.slots * ACTIVITY_MARGIN * dram.p95 / 100 if dram else 0,
        has.multiprocessors * ACTIVITY_MARGIN * activity.p95 / 100 if activity else 0,
        MEMORY_MARGIN * memory.peak,
    )
    for name, size in offered.items():
        # In nothing more than it has, and less of what others could have.
        within = size.slots <= has.slots and size.multiprocessors <= has.multiprocessors
        less = (size.slots, size.multiprocessors) != (has.slots, has.multiprocessors)
        if within and less and size.holds(need):
            slots = Card.of(gpu).slots
            frees = int(has.slots - size.slots)
            why = (*_seen(use, memory), *_lost_engines(gpu, use.device, name))
            return _Answer(
                AdviceVerdict.SMALLER,
                why,
                name,
                frees_slices=frees,
                frees_part=frees / slots if slots else 0.0,
            )
    return _Answer(AdviceVerdict.KEEP, _seen(use, memory))


def _lost_engines(gpu: Gpu, has: str, advised: str) -> tuple[str, ...]:
    """A caution, where the one has media engines of a kind that the other has none of."""

    def kinds(profile: GpuInstanceProfile | None) -> set[str]:
        media = ("decoder", "encoder", "jpeg", "ofa")
        return {kind for kind in media if profile and getattr(profile.engines, kind)}

    before = set().union(*map(kinds, gpu.profiles)) if has == WHOLE else kinds(gpu.profile(has))
    lost = ", ".join(sorted(before - kinds(gpu.profile(advised))))
    return (f"{advised} has no {lost}, whose use was not measured",) if lost else ()


# --- shares ---------------------------------------------------------------------------------------


def _share(use: Use, memory: Spread, full: _Full | None, gpu: Gpu, most: int) -> _Answer:
    """Of a device that is shared and has `most` bytes, or of a card that cannot be divided."""
    granted, threads, activity = use.granted_memory, use.granted_threads, _activity(use)
    if full:
        if threads in {None, 100.0} if full.compute else granted >= most:
            return _Answer(AdviceVerdict.LARGER, (full.why, _nothing_larger(gpu)))
        more = granted if full.compute else _whole_gib(GROWTH * max(granted, memory.peak))
        if threads is not None and full.compute:
            threads = min(100.0, _step(GROWTH * threads))
        return _Answer(AdviceVerdict.LARGER, (full.why,), SHARE, min(more, most), threads)
    would = _whole_gib(MEMORY_MARGIN * memory.peak)
    needs = min(threads or 100.0, _step(ACTIVITY_MARGIN * activity.p95)) if activity else threads
    busy = use.device == WHOLE and (needs or 0.0) > 100 * WORTH  # nothing is left to share
    if would > WORTH * granted or busy:
        return _Answer(AdviceVerdict.KEEP, _seen(use, memory))
    part = (granted - would) / gpu.memory if gpu.memory else 0.0
    return _Answer(AdviceVerdict.SMALLER, _seen(use, memory), SHARE, would, needs, frees_part=part)


def _whole_gib(size: float) -> int:
    return max(1, math.ceil(size / _GIB)) * _GIB


def _step(percent: float) -> float:
    return max(1, math.ceil(percent / _STEP)) * float(_STEP)
