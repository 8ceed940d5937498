"""Which slice or share would do for a holder, by what it was seen to need; nothing is changed.

The rules, with their reasons, are a table in docs/operations.md ("Which slice would do").
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from operator import ge
from typing import Annotated, Literal, NamedTuple

from nodeagent.plan.layouts import Card
from nodeagent.plan.names import ProfileName
from nodeagent.plan.observed import Gpu
from nodeagent.structs import Meta, Shape, replace
from nodeagent.text import gibibytes
from nodeagent.use.records import Spread, Use

ENOUGH = 24 * 3600.0  # seconds measured, before `smaller` or `keep`
MEMORY_MARGIN = 1.2  # of the peak
ACTIVITY_MARGIN = 1.25  # of the activity at p95
FULL_SM = 0.95  # of what it may have, for half of the time: at its limit
WORTH = 0.75  # a share is smaller that has at most so much of the memory
GROWTH = 1.5  # of a share that is too small
_GIB = 1 << 30
_MEDIA = ("decoder", "encoder", "jpeg", "ofa")
_STEP = 5  # percent, to which threads are rounded up

WHOLE, SHARE = "gpu", "share"  # devices that are no profiles


class Advice(Shape, frozen=True, kw_only=True):
    """What would do for a holder in place of `device`, on a card of this `model`.

    `advised` is a profile, or `share` with `memory` (bytes) and `threads` (percent); absent where
    nothing else is advised, or the card has nothing larger. The rest are the numbers behind it.
    """

    kind: Annotated[str, Meta(description="workload, unit, user or container")]
    namespace: str = ""
    workload: Annotated[str, Meta(description="what controls the pods; a unit, user or container")]
    container: str = ""
    model: str
    device: Annotated[str, Meta(description="what it has: a profile, gpu or share")]
    verdict: Literal["keep", "smaller", "larger", "notEnough"]
    advised: str = ""
    memory: int | None = None
    threads: float | None = None
    why: Annotated[tuple[str, ...], Meta(description="sentences")]
    frees_slices: Annotated[int, Meta(description="memory slices")] = 0
    frees_part: Annotated[float, Meta(description="of the GPU, 0 to 1")] = 0.0
    held: Annotated[float, Meta(description="seconds")]
    used: Annotated[float | None, Meta(description="seconds, at least; null: not measured")]
    idle_stretches: Annotated[int, Meta(description="of a minute and more")] = 0
    longest_idle: Annotated[float, Meta(description="seconds")] = 0
    granted: Annotated[int, Meta(description="bytes")]
    peak: Annotated[int | None, Meta(description="bytes")] = None
    activity: Annotated[float | None, Meta(description="percent of what it has, at p95")] = None


def most_first(advice: Iterable[Advice]) -> tuple[Advice, ...]:
    """Those that free most first."""
    return tuple(sorted(advice, key=lambda a: (-a.frees_part, a.namespace, a.workload, a.device)))


class _Size(NamedTuple):
    """How much of a card something is: memory slices, multiprocessors, bytes of memory."""

    slots: float
    multiprocessors: float
    memory: float


def advise(use: Use, gpus: Iterable[Gpu]) -> Advice:
    """What would do for a use. `gpus` are those of the node."""
    alike = (gpu for gpu in gpus if gpu.name == use.grant.model)
    # One that lists its profiles: some drivers do only with MIG on.
    gpu = max(alike, key=lambda gpu: len(gpu.profiles), default=None)
    activity, memory = _activity(use), use.memory
    seen = Advice(
        kind=use.holder.kind,
        namespace=use.holder.namespace,
        workload=use.holder.name,
        container=use.holder.container,
        model=use.grant.model,
        device=use.grant.device,
        verdict="notEnough",
        why=(f"this node has no {use.grant.model} with {use.grant.device} now",),
        held=round(use.held, 1),
        used=None if use.used is None else round(use.used, 1),
        idle_stretches=use.idle_stretches,
        longest_idle=round(use.longest_idle, 1) or 0,  # the default itself, which is left out
        granted=use.grant.memory,
        peak=int(memory.peak) if memory else None,
        activity=round(activity.p95, 1) if activity else None,
    )
    if memory is None:
        return replace(seen, why=("its memory was not measured",))
    if gpu and memory.seconds < ENOUGH and not _full(use, memory)[0]:
        return replace(seen, why=(f"it was seen for {memory.seconds / 3600:.1f} of 24 hours",))
    sizes = _sizes(gpu) if gpu else {}
    if gpu and (use.grant.device.startswith(SHARE) or (use.grant.device == WHOLE and not sizes)):
        of = sizes.get(use.grant.device.removeprefix(f"{SHARE} of "))
        return _share(seen, use, memory, gpu, int(of.memory) if of else gpu.memory)
    if gpu and (use.grant.device == WHOLE or use.grant.device in sizes):
        return _profile(seen, use, memory, gpu, sizes)
    return seen


def _activity(use: Use) -> Spread | None:
    """The finer one, unless it is of a part of the time alone, as on a device that was shared."""
    sm, engine = use.sm, use.engine
    return engine if sm and engine and sm.seconds < 0.99 * engine.seconds else sm or engine


def _covers(activity: Spread, memory: Spread) -> bool:
    """Whether it was measured as long as memory was: on a slice that is shared it is not."""
    return activity.seconds >= 0.95 * memory.seconds


def _full(use: Use, memory: Spread) -> tuple[str, bool]:
    """What it has too little of, as a sentence, and whether that is not memory; "" for nothing."""
    if use.at_limit or memory.peak > use.grant.memory:
        return f"{_peak(memory)} of {gibibytes(use.grant.memory)}", False
    limit, sm = use.grant.threads or 100.0, use.sm
    if use.grant.device != WHOLE and sm and sm is _activity(use) and sm.p50 > FULL_SM * limit:
        return "all its multiprocessors were active for half of the time", True
    return "", False


def _peak(memory: Spread) -> str:
    return f"its memory's peak is {gibibytes(int(memory.peak))}"


def _seen(use: Use, memory: Spread) -> tuple[str, ...]:
    """The numbers behind an advice, and what was not measured."""
    activity = _activity(use)
    if activity is None:
        return _peak(memory), "its activity was not measured: this is by memory alone"
    what = "multiprocessors'" if activity is use.sm else "GPU's"
    found = f"its {what} activity at p95 is {activity.p95:.0f} %"
    part = "" if _covers(activity, memory) else ", of the time in which it was measured"
    times, hours = use.idle_stretches, use.longest_idle / 3600
    idle = (f"it was idle for up to {hours:.1f} hours, {times} times for a minute or more",)
    return _peak(memory), f"{found}{part}", *(idle if times else ())


def _sizes(gpu: Gpu) -> dict[str, _Size]:
    """The card's profiles, the smallest first; slices where multiprocessors are not known."""
    found = {
        profile.name: _Size(
            max((place.size for place in profile.placements), default=profile.slices),
            profile.multiprocessors or profile.slices,
            profile.memory,
        )
        for profile in gpu.profiles
    }
    return dict(sorted(found.items(), key=lambda item: (item[1], item[0])))


def _profile(seen: Advice, use: Use, memory: Spread, gpu: Gpu, sizes: dict[str, _Size]) -> Advice:
    # MIG divides all of a card: its largest profile is as much as all of it.
    largest = max(sizes.values(), key=lambda size: size.multiprocessors)
    has = largest if use.grant.device == WHOLE else sizes[use.grant.device]
    attributes = () if use.grant.device == WHOLE else ProfileName.parse(use.grant.device).attributes
    offered = {n: s for n, s in sizes.items() if ProfileName.parse(n).attributes == attributes}
    peak, activity, dram = MEMORY_MARGIN * memory.peak, _activity(use), use.dram
    full, compute = _full(use, memory)
    if full:
        more = _Size(has.slots, has.multiprocessors * (ACTIVITY_MARGIN if compute else 1), peak)
        larger = next((n for n, s in offered.items() if all(map(ge, s, more))), "")
        return _larger(seen, full, gpu, larger)
    need = _Size(
        has.slots * ACTIVITY_MARGIN * dram.p95 / 100 if dram else 0,
        has.multiprocessors * ACTIVITY_MARGIN * activity.p95 / 100 if activity else 0,
        peak,
    )
    for name, size in offered.items():
        # In nothing more than it has, and less of what others could have.
        if has[:2] != size[:2] and all(map(ge, has[:2], size[:2])) and all(map(ge, size, need)):
            return replace(
                seen,
                verdict="smaller",
                advised=name,
                why=(*_seen(use, memory), *_lost_engines(gpu, use.grant.device, name)),
                frees_slices=int(has.slots - size.slots),
                frees_part=round((has.slots - size.slots) / (Card.of(gpu).slots or 1), 3),
            )
    return replace(seen, verdict="keep", why=_seen(use, memory))


def _larger(seen: Advice, full: str, gpu: Gpu, advised: str) -> Advice:
    nothing = () if advised else (f"a {gpu.name} has nothing larger",)
    return replace(seen, verdict="larger", advised=advised, why=(full, *nothing))


def _lost_engines(gpu: Gpu, has: str, advised: str) -> tuple[str, ...]:
    """A caution, where the one has media engines of a kind that the other has none of."""
    kinds = {p.name: {k for k in _MEDIA if getattr(p.engines, k)} for p in gpu.profiles}
    before = set().union(*kinds.values()) if has == WHOLE else kinds[has]
    lost = ", ".join(sorted(before - kinds[advised]))
    return (f"{advised} has no {lost}, whose use was not measured",) if lost else ()


def _share(seen: Advice, use: Use, memory: Spread, gpu: Gpu, most: int) -> Advice:
    """Of a device that is shared and has `most` bytes, or of a card that cannot be divided."""
    granted, threads, activity = use.grant.memory, use.grant.threads, _activity(use)
    full, compute = _full(use, memory)
    would = _up(MEMORY_MARGIN * memory.peak, _GIB)
    less = would <= WORTH * granted
    if full:
        if threads in {None, 100.0} if compute else granted >= most:
            return _larger(seen, full, gpu, "")
        # Not so much that less would be advised at once.
        grown = int(GROWTH * max(granted, memory.peak)) // _GIB * _GIB
        more = max(would, grown) if not compute else would if less else granted
        if threads is not None and compute:
            threads = min(100.0, _up(GROWTH * threads, _STEP))
        seen = replace(seen, memory=min(more, most), threads=threads)
        return _larger(seen, full, gpu, SHARE)
    seen = replace(seen, verdict="keep", why=_seen(use, memory))
    needs = threads
    # Of processes on a whole GPU, those that do nothing are not measured.
    if activity and (use.grant.device in {WHOLE, SHARE} or _covers(activity, memory)):
        needs = min(threads or 100.0, _up(ACTIVITY_MARGIN * activity.p95, _STEP))
    busy = use.grant.device == WHOLE and (needs or 0.0) > 100 * WORTH  # nothing is left to share
    if busy or not less:
        return seen
    part = round((granted - would) / (gpu.memory or 1), 3)
    seen = replace(seen, advised=SHARE, memory=would, threads=needs, frees_part=part)
    return replace(seen, verdict="smaller")


def _up(amount: float, step: int) -> int:
    return max(1, math.ceil(amount / step)) * step
