"""A week of twelve workloads of known needs, from what is sampled of them to what is advised."""

from pathlib import Path

from nodeagent.plan.observed import ComputeInstance, Gpu, GpuInstance, MigMode, ObservedNode
from nodeagent.plan.users import Usage
from nodeagent.structs import Struct, replace
from nodeagent.telemetry.ownership import Device
from nodeagent.use.advice import advise
from nodeagent.views.node_state import Reading
from tests.plan.cards import card
from tests.telemetry.nodes import user
from tests.telemetry.use_rig import DAY, Agent

STEP = 100.0  # seconds between two samples
H100, A100, T4 = card("h100-80gb"), card("a100-40gb"), card("t4")


class Load(Struct, frozen=True):
    """GiB at its peak, which it has once a day; percent in all of its time but 4 %."""

    gpu: Gpu
    device: str
    memory: float
    sm: float | None
    advised: str
    engine: float | None = None
    dram: float | None = None
    from_day: int = 0

    def at(self, sample: int) -> Reading:
        peak, burst = sample % 864 == 500, sample % 25 == 7
        memory = self.memory if peak else self.memory * 0.8
        engine = self.sm if self.engine is None else self.engine
        sm, engine, dram = (
            None if percent is None else 100.0 if burst else percent * (0.5 + sample % 6 / 10)
            for percent in (self.sm, engine, self.dram)
        )
        return Reading(
            utilization=engine, memory=int(memory * (1 << 30)), sm_active=sm, dram_active=dram
        )


LOADS = {
    "small-server": Load(H100, "3g.40gb", 7.5, 12, "smaller 1g.10gb"),
    "two-memory-slices": Load(H100, "3g.40gb", 12, 12, "smaller 1g.20gb"),
    "activity-of-2g": Load(H100, "3g.40gb", 7.5, 40, "smaller 2g.20gb"),
    "bandwidth": Load(H100, "3g.40gb", 7, 5, "smaller 1g.20gb", dram=35),
    "trainer": Load(H100, "3g.40gb", 30, 70, "keep"),
    "smallest": Load(H100, "1g.10gb", 1, 3, "keep"),
    "notebook": Load(H100, "gpu", 5, 3, "smaller 1g.10gb"),
    "whole-at-work": Load(H100, "gpu", 70, 99, "keep"),
    "memory-full": Load(H100, "1g.10gb", 9.7, 40, "larger 1g.20gb"),
    "old-card": Load(A100, "3g.20gb", 3, None, "smaller 1g.5gb"),
    "new": Load(H100, "3g.40gb", 7.5, 12, "notEnough", from_day=7),
    "divisible-by-sharing": Load(T4, "gpu", 3, None, "smaller share", engine=22),
}


def node_of(day: int, instance: int) -> ObservedNode:
    """The GPUs on that day, each with its load's pod of the day; the slices have this id."""
    return ObservedNode(
        tuple(
            _gpu(number, load, f"{name}-7d9f8bcdf4-{'bcdfghjk'[day] * 5}", instance)
            for number, (name, load) in enumerate(LOADS.items())
            if day >= load.from_day
        )
    )


def _gpu(number: int, load: Load, pod: str, instance: int) -> Gpu:
    usage = Usage((user(0, pod),))
    gpu = replace(load.gpu, index=number, uuid=f"GPU-{number}", usage=Usage(), instances=())
    profile = gpu.profile(load.device)
    if profile is None:
        return replace(gpu, usage=usage)
    compute = ComputeInstance(0, profile.name, profile.slices, f"MIG-{number}", usage=usage)
    made = GpuInstance(instance, profile.id, profile.name, profile.placements[0], (compute,))
    return replace(gpu, mig=MigMode(current=True, pending=True), instances=(made,))


def readings_at(node: ObservedNode, sample: int) -> dict[Device, Reading]:
    loads = list(LOADS.values())
    return {
        (gpu.uuid, gpu.instances[0].id if gpu.instances else None): loads[gpu.index].at(sample)
        for gpu in node.gpus
    }


def test_what_is_advised_after_a_week(tmp_path: Path) -> None:
    """The agent is restarted on the second day, the clock is set back on the third, the node is
    rebooted on the fourth, and all slices are made anew on the fifth.
    """
    agent, sample = Agent(tmp_path / "use.json"), 0
    for day in range(8):
        node = node_of(day, instance=1 if day < 5 else 2)
        match day:
            case 2:
                agent.restart()
            case 3:
                agent.wall -= 10 * DAY
            case 4:
                agent.restart(away=600.0, boot="second")
                agent.now = 5.0
            case 5:
                agent.see(ObservedNode(), 1.0)
        for _ in range(int((DAY if day < 7 else DAY / 24) / STEP)):
            read, sample = readings_at(node, sample), sample + 1
            active = {device: (m.utilization or 0.0) / 100 for device, m in read.items()}
            agent.see(node, STEP, active, read=read)
    uses, gpus = tuple(agent.records.uses()), node_of(7, instance=2).gpus
    advised = (advise(use, gpus) for use in uses)
    found = {one.workload: f"{one.verdict} {one.advised}".strip() for one in advised}
    assert found == {name: load.advised for name, load in LOADS.items()}
    for use in uses:
        expected = DAY / 24 if use.holder.name == "new" else 7 * DAY + DAY / 24
        # Of each restart, and of the time before the first sample, one sample is not known.
        assert expected - 4 * STEP <= use.held <= expected
