"""The recorded conversation of a MIG node and an MPS node with nos, and how the GPUs are in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nodeagent.documents.reading import read_document
from nodeagent.plan.desired import DesiredNode
from nodeagent.plan.observed import MigMode, ObservedNode
from nodeagent.plan.resolve import resolve
from nodeagent.reconcile.plan_update import PlanText, PlanUpdate
from nodeagent.views.shapes import MpsDaemon
from tests.cluster.plan_sources.nos.nodes import client, divided, gpu, shared

_FILE = Path(__file__).parents[3] / "data/nos/exchanges.json"
EXCHANGES: dict[str, Any] = json.loads(_FILE.read_text())


def patched(there: Mapping[str, str], patch: Mapping[str, str | None]) -> dict[str, str]:
    """The keys after a merge patch."""
    merged = {**there, **patch}
    return {key: value for key, value in merged.items() if value is not None}


def desired(offered: PlanText, observed: ObservedNode) -> DesiredNode:
    """What the plan means for the node."""
    resolved = resolve(read_document(offered.text), observed)
    assert isinstance(resolved, DesiredNode)
    return resolved


def seen(
    gpus: list[Any], offered: PlanUpdate, bare: ObservedNode
) -> tuple[ObservedNode, tuple[MpsDaemon, ...]]:
    """The GPUs of a step: MIG as listed, shares with the daemon that the plan asks for."""
    found_gpus, daemons = [], []
    for empty, found in zip(bare.gpus, gpus, strict=True):
        if isinstance(found, list):
            found_gpus.append(divided(empty, *map(tuple, found)))
        elif not found:
            found_gpus.append(empty)
        else:
            assert isinstance(offered, PlanText)
            runs = desired(offered, bare).gpus[empty.uuid].mps
            assert runs is not None
            assert {share.name for share in runs.sharing.shares} == set(found)
            slots = [(share, slot) for share, slots in found.items() for slot in slots]
            clients = [
                client(100 + number, share, slot.removeprefix(f"{share}-"), pod=slot)
                for number, (share, slot) in enumerate(slots)
            ]
            one, daemon = shared(empty, runs, *clients)
            found_gpus.append(one)
            daemons.append(daemon)
    return ObservedNode(tuple(found_gpus)), tuple(daemons)


def bare_node(mode: str) -> ObservedNode:
    """The node of that exchange before anything was done."""
    is_on = MigMode(current=mode == "mig", pending=mode == "mig")
    return ObservedNode((gpu(0, mig=is_on), gpu(1, mig=is_on)))
