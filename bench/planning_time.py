"""How long planning takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from bench.tables import percentile, show
from nodeagent.plan.desired import DesiredNode
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.planner import plan, plan_gpu
from nodeagent.structs import replace
from tests.plan.cards import card, layouts, wanted


def run() -> None:
    """All pairs of layouts of three kinds of card, one GPU and eight at a time; milliseconds."""
    rows = []
    for board in ("h100-80gb", "a30", "rtx-pro-6000"):
        empty = card(board)
        keys = list(layouts(board))
        made = [plan_gpu(wanted(empty, key), empty).after for key in keys]
        one = [
            _milliseconds(partial(plan_gpu, wanted(gpu, key), gpu)) for gpu in made for key in keys
        ]
        eight = []
        for number in range(0, len(made) * len(keys), 8):
            desired, gpus = {}, []
            for i in range(8):
                gpu = made[(number + i) % len(made)]
                key = keys[(number + i) // len(made) % len(keys)]
                gpus.append(replace(gpu, uuid=f"GPU-{i}", index=i))
                desired[gpus[-1].uuid] = wanted(gpu, key)
            node = ObservedNode(tuple(gpus))
            eight.append(_milliseconds(partial(plan, DesiredNode(desired), node)))
        rows.append(
            [board, len(one)]
            + [percentile(one, q) for q in (0.5, 0.99, 1)]
            + [percentile(eight, q) for q in (0.5, 0.99, 1)]
        )
    show(
        "Planning time in ms, all pairs of layouts",
        ["board", "pairs", "p50", "p99", "max", "8 GPUs p50", "p99", "max"],
        rows,
    )


def _milliseconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000
