"""A node whose health is judged: readings in, findings out, time as a number."""

from dataclasses import dataclass, field
from typing import Any

from nodeagent.health.evaluate import Evaluation, evaluate
from nodeagent.health.findings import End, Finding, Moment
from nodeagent.health.readings import (
    GpuEvent,
    GpuReading,
    InstanceReading,
    NodeReading,
    XidEvent,
    XidSource,
)
from nodeagent.health.state import HealthState
from nodeagent.health.xids import default_table
from nodeagent.plan.observed import ObservedNode, Placement

GPU = "GPU-1"
ADDRESS = "00000000:1A:00.0"
LOG = XidSource.KERNEL_LOG
LEFT, RIGHT = Placement(0, 4), Placement(4, 4)
START = 1000.0
EPOCH = 1_700_000_000.0


def moment(uptime: float, ahead: float = 0.0) -> Moment:
    """That uptime, on a wall clock of its own."""
    return Moment(uptime, EPOCH + uptime + ahead)


def gpu(**values: Any) -> GpuReading:
    return GpuReading(**{"uuid": GPU, "pci_bus_id": ADDRESS, **values})


@dataclass
class Node:
    """Judges one reading after the other; the wall clock is `ahead` by so many seconds."""

    state: HealthState = field(default_factory=HealthState)
    now: float = START
    ahead: float = 0.0
    boot: str = "boot-1"
    last: Evaluation | None = None
    ended: list[tuple[str, End]] = field(default_factory=list)  # so far: causes, and how
    observed: ObservedNode = field(default_factory=ObservedNode)

    def read(self, *gpus: GpuReading, after: float = 1.0, **values: Any) -> Evaluation:
        """One reading, `after` so many seconds."""
        self.now += after
        reading = NodeReading(moment(self.now, self.ahead), self.boot, gpus=gpus, **values)
        self.last = evaluate(self.state, reading, default_table(), self.observed)
        self.state = self.last.state
        self.ended += [(ended.finding.cause, ended.end) for ended in self.last.ended]
        return self.last

    def xid(
        self, number: int, *, source: XidSource = XidSource.NVML, after: float = 1.0, **values: Any
    ) -> Evaluation:
        """An XID of the GPU, just now as a rule."""
        where = {"gpu": GPU} if source is XidSource.NVML else {"pci": "0000:1a:00"}
        given: dict[str, Any] = {"at": self.now + after, **where, **values}
        event = XidEvent(xid=number, source=source, **given)
        return self.read(gpu(), after=after, xids=(event,))

    def event(self, kind: Any, **values: Any) -> Evaluation:
        return self.read(gpu(), events=(GpuEvent(kind, GPU, self.now + 1, **values),))

    def reboot(self) -> Evaluation:
        self.boot += "+"
        self.now = 0.0
        return self.read()

    def causes(self) -> set[str]:
        return {finding.cause for finding in self.state.findings}

    def one(self, cause: str) -> Finding:
        (found,) = [f for f in self.state.findings if f.cause == cause]
        return found


def known() -> Node:
    """A node whose GPU has two instances: 1 to the left, 2 to the right."""
    node = Node()
    node.read(gpu(instances=(InstanceReading(1, LEFT), InstanceReading(2, RIGHT))))
    return node


def counts(node: Node) -> dict[int, int]:
    return {count.xid: count.count for count in node.state.xids}


def ends(node: Node) -> list[End]:
    assert node.last is not None
    return [ended.end for ended in node.last.ended]
