"""What the tests of nos' protocol share: nodes as nos sees them, and a recorded conversation."""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nodeagent.cluster.plan_sources.nos.grammar import MODE_LABEL, SPEC_PLAN
from nodeagent.cluster.plan_sources.nos.to_plan import DeferredNosPlan
from nodeagent.documents.reading import digest_of, read_document
from nodeagent.plan.desired import DesiredNode
from nodeagent.plan.observed import DeviceDaemon, Gpu, MigMode, ObservedNode
from nodeagent.plan.problems import Problem
from nodeagent.plan.resolve import resolve
from nodeagent.plan.shares import Account, Share, Sharing, WantedMps
from nodeagent.plan.users import Usage, User
from nodeagent.reconcile.plan_update import PlanText, PlanUpdate
from nodeagent.structs import replace
from nodeagent.views.node_state import NodeState, Phase
from nodeagent.views.shapes import MpsClient, MpsDaemon
from tests.plan.cards import card, with_instances
from tests.views.daemons import mps_client, mps_daemon

MIG = {MODE_LABEL: "mig"}
MPS = {MODE_LABEL: "mps"}
PLAN_ID = "1714000000"
OFF = MigMode(current=False, pending=False)
NOW = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


def gpu(index: int, board: str = "a100-40gb", **more: Any) -> Gpu:
    """An empty card at this index; in MIG mode where it has any."""
    return replace(card(board), index=index, uuid=f"GPU-{index}", **more)


def node(*gpus: Gpu) -> ObservedNode:
    return ObservedNode(gpus)


TWO = node(gpu(0), gpu(1))


def spec(plan: str | None = PLAN_ID, /, **profiles: str) -> dict[str, str]:
    """Spec annotations, with a plan id; the keywords are what follows `spec-gpu-`."""
    keys = {f"nos.nebuly.com/spec-gpu-{key}": value for key, value in profiles.items()}
    return keys if plan is None else {**keys, SPEC_PLAN: plan}


def divided(empty: Gpu, *parts: tuple[str, int, bool]) -> Gpu:
    """The GPU with instances given as (profile, memory slice, in use)."""
    places = [(profile, start) for profile, start, _ in parts]
    used = [number for number, part in enumerate(parts) if part[2]]
    return with_instances(empty, places, used)


def shares(counts: Mapping[str, int], memory: int | None = 1000) -> WantedMps:
    """A daemon's wish with so many shares of each name, `memory` MiB each."""
    kinds = tuple(Share(name, count, memory, None) for name, count in counts.items())
    return WantedMps(Sharing(kinds, "report"), Account(1000, 1000))


def client(pid: int, share: str = "", slot: str = "", **more: Any) -> MpsClient:
    """A client with the slot of this number of the share, or without."""
    return mps_client(pid, share=share, slot=f"{share}-{slot}" if slot else "", **more)


def shared(
    bare: Gpu, runs: WantedMps, *clients: MpsClient, others: Iterable[User] = ()
) -> tuple[Gpu, MpsDaemon]:
    """The GPU with a daemon and its clients, and with users whom the daemon does not know."""
    users = tuple(User(c.pid, namespace=c.end[1], pod=c.end[2]) for c in clients)
    daemon = DeviceDaemon(runs, "Ready", pid=800, servers=(801,), clients=Usage(users))
    usage = Usage((User(801, "nvidia-cuda-mps-server"), *users, *others))
    seen = replace(bare, mig=OFF if bare.mig else None, usage=usage, mps=daemon)
    return seen, mps_daemon(bare.uuid, "Ready", runs, pid=800, clients=clients)


def state(
    observed: ObservedNode,
    offered: PlanUpdate | None = None,
    phase: Phase = Phase.IN_SYNC,
    **more: Any,
) -> NodeState:
    """The agent's state after a round in which it took what was offered."""
    digest = digest_of(offered.text) if isinstance(offered, PlanText) else ""
    known = NodeState("node-a", "nos", phase, digest, observed=observed, observed_at=NOW, rounds=1)
    return replace(known, **more)


def offer(
    annotations: Mapping[str, str],
    labels: Mapping[str, str],
    observed: ObservedNode,
    *,
    plugin_configuration: str | None = None,
) -> PlanUpdate:
    """The plan that nos has for a node with these annotations and labels."""
    return DeferredNosPlan(annotations, labels, plugin_configuration).on(observed)


def ignored(
    annotations: Mapping[str, str],
    labels: Mapping[str, str],
    *,
    plugin_configuration: str | None = None,
) -> tuple[Problem, ...]:
    """What is ignored on a node with these annotations and labels."""
    return DeferredNosPlan(annotations, labels, plugin_configuration).ignored


# --- the recorded conversation ------------------------------------------------------------------

_FILE = Path(__file__).parents[3] / "data/nos/exchanges.json"
EXCHANGES: dict[str, Any] = json.loads(_FILE.read_text())


def patched(there: Mapping[str, str], patch: Mapping[str, str | None]) -> dict[str, str]:
    merged = {**there, **patch}
    return {key: value for key, value in merged.items() if value is not None}


def desired(offered: PlanText, observed: ObservedNode) -> DesiredNode:
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
