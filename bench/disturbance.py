"""What a change of layout costs, ours against the usual way, over every pair of layouts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pynvml

from bench import clear_all
from bench.tables import show
from nodeagent.gpu.driver import Driver
from nodeagent.plan.desired import DesiredNode
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.planner import plan
from nodeagent.reconcile.executor import execute
from nodeagent.simulation import SimulatedNode, simulated
from tests.plan.cards import Multiset, card, layouts, present, wanted

_CREATES = ("nvmlDeviceCreateGpuInstance", "nvmlDeviceCreateGpuInstanceWithPlacement")
_DESTROYS = ("nvmlGpuInstanceDestroy",)
_OTHERS = (
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlGpuInstanceCreateComputeInstanceWithPlacement",
    "nvmlComputeInstanceDestroy",
)


def run(boards: Sequence[str] = ("h100-80gb", "a30", "rtx-pro-6000")) -> None:
    """Each ordered pair of layouts is one change, made one after the other on the simulator."""
    rows = []
    for board in boards:
        keys = list(layouts(board))
        walk = [keys[i] for i in all_pairs(len(keys))]
        ours = asyncio.run(_ours(board, walk))
        usual = _usual(board, walk)
        rows += [[board, len(walk) - 1, "nodeagent", *ours], [board, "", "clear all", *usual]]
    show(
        "Changing layouts: every ordered pair once (GPU instances; driver calls that change)",
        ["board", "changes", "way", "destroyed", "created", "calls", "refused", "not reached"],
        rows,
    )


async def _ours(board: str, walk: Sequence[Multiset]) -> list[int]:
    empty = card(board)
    tally: Counter[str] = Counter()
    with simulated(f"{board}:1") as node:
        _enable(node)
        async with Driver(observe_deadline=10, step_deadline=10) as driver:
            observed = await driver.observe()
            for key in walk:
                node.journal.clear()
                gpu = observed.gpus[0]
                desired = DesiredNode({gpu.uuid: wanted(empty, key)})
                outcome = await execute(plan(desired, observed), driver, parallel=1)
                observed = ObservedNode((outcome.gpus[0].after,))
                if key is not walk[0]:
                    tally += _count(node)
                tally["missed"] += present(observed.gpus[0]) != dict(key)
    return _figures(tally)


def _usual(board: str, walk: Sequence[Multiset]) -> list[int]:
    tally: Counter[str] = Counter()
    with simulated(f"{board}:1") as node:
        _enable(node)
        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        table = clear_all.profiles(device)
        for key in walk:
            node.journal.clear()
            names = [name for name, count in key for _ in range(count)]
            done = clear_all.apply(device, table, names)
            if key is not walk[0]:
                tally += _count(node)
            tally["missed"] += not done.done
        pynvml.nvmlShutdown()
    return _figures(tally)


def _enable(node: SimulatedNode) -> None:
    """MIG mode on, and current, before anything is counted."""
    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlDeviceSetMigMode(device, 1)
    current, pending = pynvml.nvmlDeviceGetMigMode(device)
    pynvml.nvmlShutdown()
    if current != pending:
        node.reset(0)


def _count(node: SimulatedNode) -> Counter[str]:
    """What the last change did, from the journal of driver calls."""
    tally: Counter[str] = Counter()
    for call in node.journal.calls:
        if call.name not in (*_CREATES, *_DESTROYS, *_OTHERS):
            continue
        tally["calls"] += 1
        if call.result:
            tally["refused"] += 1
        elif call.name in _CREATES:
            tally["created"] += 1
        elif call.name in _DESTROYS:
            tally["destroyed"] += 1
    return tally


def _figures(tally: Counter[str]) -> list[int]:
    return [tally[k] for k in ("destroyed", "created", "calls", "refused", "missed")]


def all_pairs(count: int) -> list[int]:
    """A closed walk over `count` layouts in which each ordered pair of different ones occurs once.

    Found as an Eulerian circuit of the complete directed graph (Hierholzer's algorithm).
    """
    unused = [[j for j in range(count) if j != i] for i in range(count)]
    stack, circuit = [0], []
    while stack:
        here = stack[-1]
        if unused[here]:
            stack.append(unused[here].pop())
        else:
            circuit.append(stack.pop())
    return circuit[::-1]
