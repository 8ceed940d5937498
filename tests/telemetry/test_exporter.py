import gzip

from nodeagent.health.readings import GpuReading
from nodeagent.metrics.agent_metrics import AgentSample
from nodeagent.metrics.agent_samples import ReaderState
from nodeagent.metrics.samples import SampleSet, Slice, Subject, Value, WholeGpu
from nodeagent.metrics.selection import read_selection
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.users import Pod
from nodeagent.structs import replace
from nodeagent.telemetry.exporter import Exporter
from nodeagent.telemetry.samples import GpuSample, SampleBatch
from nodeagent.views.claims import Claim, ClaimDevice, ClaimPhase
from nodeagent.views.node_state import NodeState
from nodeagent.views.shapes import Cluster
from tests.telemetry.nodes import GPU, divided, user, whole
from tests.views.daemons import mps_daemon

USED, POWER, ENERGY, UTILIZATION = 252, 155, 156, 203
FIELDS = """DCGM_FI_DEV_FB_USED, gauge, Memory
DCGM_FI_DEV_POWER_USAGE, gauge, Power
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION, counter, Energy
"""
WHOLE = Subject(WholeGpu(GPU))


class Rig:
    """An exporter of one GPU, and the clock that it goes by."""

    def __init__(self, node: ObservedNode) -> None:
        self.now = 1000.0
        self.state = NodeState("n", "file", observed=node)
        self.exporter = Exporter(
            read_selection(FIELDS),
            host=(),
            build=AgentSample("nodeagent_build_info", 1, ("1", "3")),
            clock=lambda: self.now,
            current=lambda: self.state,
        )

    def sample(self, values: dict[int, tuple[Value, ...]], *parts: Subject) -> None:
        """A second later a look finds these values and instances."""
        self.now += 1
        found = GpuSample(GPU, WHOLE, self.now, GpuReading(GPU.uuid), slices=parts)
        readers = (ReaderState("fast", True, self.now, 0.01, "0", GPU.uuid),)
        batch = SampleBatch({"fast": SampleSet(values)}, latest=(found,), readers=readers)
        self.exporter.take(batch)

    def observe(self, node: ObservedNode) -> None:
        self.now += 1
        self.state = replace(self.state, observed=node)
        self.exporter.changed()

    @property
    def lines(self) -> list[str]:
        return self.exporter.scrape(False).decode().splitlines()

    def series(self, name: str) -> list[str]:
        """What stands behind the name, without the GPU's own labels."""
        return [
            line.removeprefix(name).replace(_OWN, "")
            for line in self.lines
            if line.startswith(name)
        ]


_OWN = (
    f'gpu="0",UUID="{GPU.uuid}",pci_bus_id="{GPU.pci_bus_id}",device="nvidia0",'
    f'modelName="{GPU.model}"'
)


def _part(number: int, generation: int = 0) -> Subject:
    return Subject(Slice(GPU, "1g.10gb", number, generation))


def test_there_is_a_text_before_anything_was_read() -> None:
    assert any(line.startswith("nodeagent_build_info{") for line in Rig(ObservedNode()).lines)


def test_a_gpu_is_labelled_with_the_one_that_has_it() -> None:
    rig = Rig(whole(user(0, "a")))
    rig.sample({USED: ((WHOLE, 7),), POWER: ((WHOLE, 300.0),)})
    pod = ',container="main",namespace="team",pod="a"'
    assert rig.series("DCGM_FI_DEV_FB_USED") == [f"{{{pod}}} 7"]
    assert rig.series("DCGM_FI_DEV_POWER_USAGE") == [f"{{{pod}}} 300.000000"]


def test_lists_of_processes_that_are_old_do_not_count() -> None:
    rig = Rig(whole(user(1, "a", memory=2), user(2, "b", memory=4)))
    rig.exporter.put_processes("GPU-never-sampled", {None: ()})
    rig.exporter.put_processes(GPU.uuid, {None: ()})
    rig.sample({USED: ((WHOLE, 7),)})
    assert len(rig.series("DCGM_FI_DEV_FB_USED")) == 1
    rig.now += 1000
    rig.sample({USED: ((WHOLE, 7),)})
    assert len(rig.series("DCGM_FI_DEV_FB_USED")) == 3


def test_an_instance_that_is_gone_is_gone_everywhere() -> None:
    rig = Rig(divided({0: [], 1: []}))
    rig.state = replace(rig.state, mps=(mps_daemon("MIG-0", "Ready"), mps_daemon("MIG-1", "Ready")))
    rig.sample({USED: ((_part(0), 1), (_part(1), 2))}, _part(0), _part(1))
    assert len(rig.series("nodeagent_mig_device_info")) == 2
    rig.sample({USED: ((_part(0), 1), (_part(1), 2))}, _part(1))
    for name in ("DCGM_FI_DEV_FB_USED", "nodeagent_mig_device_info", "nodeagent_mps_daemon_up"):
        assert len(rig.series(name)) == 1, name
    assert not [line for line in rig.lines if 'GPU_I_ID="0"' in line or "MIG-0" in line]


def test_what_was_observed_after_the_last_look_is_exported() -> None:
    rig = Rig(divided({0: []}))
    rig.sample({}, _part(0))
    rig.observe(divided({0: [], 1: []}))
    assert len(rig.series("nodeagent_mig_device_info")) == 2


def test_a_slice_that_was_made_for_a_claim_has_its_pod_at_once() -> None:
    rig = Rig(divided({}))
    device = ClaimDevice(
        request="r",
        pool="p",
        device="d",
        gpu=GPU.uuid,
        index=0,
        profile="1g.10gb",
        start=3,
        size=1,
        gi=3,
    )
    pods = [Pod(namespace="team", name="a", container="")]
    claim = Claim(
        namespace="team",
        name="trainer",
        phase=ClaimPhase.READY,
        pods=pods,
        devices=[device],
        problems=[],
    )
    rig.state = replace(rig.state, claims=())
    assert not rig.series("nodeagent_claim_slices")
    rig.sample({USED: ((_part(3), 1),)}, _part(3))
    rig.state = replace(rig.state, claims=(claim,))
    rig.exporter.work.add_claim("prepare", 0.01, "")
    rig.exporter.changed()
    part = ',GPU_I_PROFILE="1g.10gb",GPU_I_ID="3"'
    assert rig.series("DCGM_FI_DEV_FB_USED") == [f'{{{part},namespace="team",pod="a"}} 1']
    assert len(rig.series("nodeagent_claim_slices")) == 1
    assert rig.series("nodeagent_claim_prepare_duration_seconds_count") == [" 1"]


def test_counters_go_on_where_the_driver_began_anew() -> None:
    rig = Rig(whole())
    for value in (100, 150, 20, 30):
        rig.sample({ENERGY: ((WHOLE, value),)})
    assert rig.series("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION") == ["{} 180"]


def test_other_fields_count_from_the_next_scrape_on() -> None:
    rig = Rig(whole())
    rig.sample({USED: ((WHOLE, 7),), POWER: ((WHOLE, 300.0),)})
    rig.exporter.select(read_selection("DCGM_FI_DEV_FB_USED, gauge, x\nNOT_THERE, gauge, x\n"))
    assert rig.series("DCGM_FI_DEV_FB_USED") == ["{} 7"]
    assert rig.series("DCGM_FI_DEV_POWER_USAGE") == []
    assert rig.series("nodeagent_counters_ignored") == [" 1"]


def test_the_cluster_is_reachable_or_not_at_the_scrape() -> None:
    rig = Rig(whole())
    rig.sample({USED: ((WHOLE, 7),)})
    assert rig.series("nodeagent_cluster_reachable") == []
    for reachable, value in ((True, " 1"), (False, " 0")):
        cluster = Cluster(server="https://x", reachable=reachable, registered=True)
        rig.state = replace(rig.state, cluster=cluster)
        assert rig.series("nodeagent_cluster_reachable") == [value]


def test_the_age_is_that_of_the_scrape() -> None:
    rig = Rig(whole())
    rig.sample({USED: ((WHOLE, 7),)})
    cost = [AgentSample("process_cpu_seconds_total", 1.5)]

    def scraped(passed: float, zipped: bool) -> str:
        rig.now += passed
        text = rig.exporter.scrape(zipped, cost)
        return (gzip.decompress(text) if zipped else text).decode()

    first, second = scraped(0.5, True), scraped(0.25, False)
    assert first.replace("} 0.5\n", "} 0.75\n") == second
    assert "process_cpu_seconds_total 1.5\n" in first


def test_what_a_lost_gpu_said_ends() -> None:
    rig = Rig(whole())
    rig.sample({USED: ((WHOLE, 7),)})
    rig.exporter.take(SampleBatch(gone=("fast",)))
    assert rig.series("DCGM_FI_DEV_FB_USED") == []


def test_what_a_gpu_does_that_is_not_sampled_is_not_known() -> None:
    rig = Rig(whole(user(0, "a")))
    rig.sample({UTILIZATION: ((WHOLE, 100),)})
    last = GpuSample(GPU, WHOLE, rig.now, GpuReading(GPU.uuid))
    for _ in range(60):
        rig.now += 10
        rig.exporter.take(SampleBatch(latest=(last,)))
    ((_, used),) = (s.split("} ") for s in rig.series("nodeagent_used_seconds_total"))
    ((_, held),) = (s.split("} ") for s in rig.series("nodeagent_held_seconds_total"))
    assert (float(used), float(held)) == (120.0, 600.0)
    assert rig.series("nodeagent_held_idle_seconds") == []
