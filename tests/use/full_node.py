"""A node whose 56 slices had 500 workloads in two weeks, each of which fills its records."""

from pathlib import Path

from nodeagent.app.use_service import use_file
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.users import Usage
from nodeagent.structs import replace
from nodeagent.telemetry.accounting import Accounts
from nodeagent.telemetry.ownership import Device, uses
from nodeagent.views.node_state import Reading
from tests.plan.cards import card, with_instances
from tests.telemetry.nodes import user

GIB = 1 << 30
LENGTH = 7 * 86400.0  # seconds of a generation of records
GPUS, SLICES, WORKLOADS = 8, 7, 500


def divided(first: int) -> ObservedNode:
    """h100-80gb:8, and on each slice a pod of another workload, from this one on."""
    gpus = []
    for index in range(GPUS):
        gpu = replace(card("h100-80gb"), index=index, uuid=f"GPU-{index}")
        gpu = with_instances(gpu, [("1g.10gb", start) for start in range(SLICES)])
        instances = []
        for number, instance in enumerate(gpu.instances):
            workload = (first + index * SLICES + number) % WORKLOADS
            pod = user(0, f"inference-server-{workload}-7d9f8bcdf4-x2k4z")
            compute = replace(instance.compute[0], usage=Usage((pod,)))
            instances.append(replace(instance, compute=(compute,)))
        gpus.append(replace(gpu, instances=tuple(instances)))
    return ObservedNode(tuple(gpus))


NODES = [divided(first) for first in range(0, WORKLOADS, GPUS * SLICES)]


def observe(accounts: Accounts, node: ObservedNode, now: float) -> None:
    devices: list[Device] = [(gpu.uuid, part.id) for gpu in node.gpus for part in gpu.instances]
    reading = Reading(memory=5 * GIB, utilization=30.0, sm_active=20.0, dram_active=10.0)
    read = dict.fromkeys(devices, reading)
    who = uses(node, {}, lambda _: None)
    accounts.observe(now, node, who, dict.fromkeys(devices, 0.3), read=read)


def full_accounts() -> Accounts:
    """Each workload was there for more than a day in all, in both generations of the records."""
    accounts, now = Accounts(longest_gap=LENGTH), 0.0
    for _ in range(2):
        for node in NODES:
            for _ in range(3):
                now += 0.98 * LENGTH / len(NODES) / 3
                observe(accounts, node, now)
        accounts.records.grow_older(0.02 * LENGTH)
    return accounts


def keep(path: Path) -> None:
    """Have an agent that starts go on with these records."""
    path.parent.mkdir(parents=True, exist_ok=True)
    use_file(path).save(full_accounts().records.kept(1.8e9))
