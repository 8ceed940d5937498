"""What Prometheus has after it scraped three nodes, written by the agent's own renderers, and what
queries may ask for.

One node has an H100 with MIG, one an H100 without, one a T4. All readings are made up, so that
there is a series of everything that can be exported.
"""

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nodeagent.health.readings import RemappedRows
from nodeagent.metrics.agent_metrics import AGENT_METRICS, AgentSample, agent_families
from nodeagent.metrics.agent_samples import ReaderState, Work, reader_samples
from nodeagent.metrics.catalogue import Kind
from nodeagent.metrics.dcgm import families
from nodeagent.metrics.exposition import block, render
from nodeagent.metrics.node_metrics import health_samples, node_samples
from nodeagent.metrics.selection import default_selection
from nodeagent.plan import plan
from nodeagent.plan.observed import Gpu, ObservedNode
from nodeagent.plan.steps import DestroyGpuInstance, SetMigMode
from nodeagent.plan.users import Pod
from nodeagent.telemetry.process_reader import process_samples
from nodeagent.views.claims import Claim, ClaimDevice, ClaimPhase
from nodeagent.views.node_state import NodeState, Phase
from nodeagent.views.shapes import MpsServer
from tests.health.rig import Node
from tests.health.rig import gpu as reading
from tests.metrics.node import gpu, sample
from tests.monitoring.promql import Asked
from tests.plan.cards import card, with_instances
from tests.views.daemons import mps_client, mps_daemon

JOB = "nodeagent"
RECORDED = tuple(
    f"namespace_workload:nodeagent_gpus_{how}:rate5m" for how in ("held", "used", "idle")
)
RECORDED_LABELS = {"namespace", "workload"}
_QUOTA = {"namespace": "team-a", "resourcequota": "gpus", "resource": "requests.nvidia.com/gpu"}
TARGET = ("instance", "job")  # the labels that Prometheus itself adds
_LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Series:
    """One series, its target's labels included."""

    name: str
    labels: Mapping[str, str]
    value: float

    @property
    def text(self) -> str:
        return f"{self.name}{block(self.labels.items())}"


@functools.cache
def scraped() -> tuple[Series, ...]:
    texts = {
        "gpu-node-0": [_dcgm("gpu-node-0", per_gpu=2), _own(Phase.IN_SYNC), _health()],
        "gpu-node-1": [_dcgm("gpu-node-1"), _own(Phase.BLOCKED)],
        "gpu-node-2": [_dcgm("gpu-node-2", "Tesla T4"), _own(Phase.IN_SYNC)],
    }
    own = (series for node, parts in texts.items() for t in parts for series in _read(t, node))
    return (*own, *_others())


def _others() -> Iterator[Series]:
    """What Prometheus records itself, and what kube-state-metrics says of quotas."""
    for name in RECORDED:
        yield Series(name, {"namespace": "team-a", "workload": "job"}, 1.0)
    for kind in ("hard", "used"):
        yield Series("kube_resourcequota", {**_QUOTA, "type": kind}, 8.0)


def labels_by_name() -> dict[str, frozenset[str]]:
    """Each metric that was scraped, with all labels that series of it have."""
    found: dict[str, frozenset[str]] = {}
    for series in scraped():
        found[series.name] = found.get(series.name, frozenset()) | set(series.labels)
    return found


def _read(text: str, node: str) -> Iterator[Series]:
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        met = _LINE.fullmatch(line)
        assert met, line
        # An empty label is none, as for Prometheus; and the metric's own labels come first.
        labels = {name: value for name, value in _LABEL.findall(met[2] or "") if value}
        yield Series(met[1], {"instance": node, "job": JOB, **labels}, float(met[3]))


# --- DCGM's ---------------------------------------------------------------------------------------


def _dcgm(host: str, model: str = "NVIDIA H100 80GB HBM3", *, per_gpu: int = 0) -> str:
    selection = default_selection()
    old = model == "Tesla T4"  # no GPM, no row remapping, no NVLink
    rows = [row for row in selection.fields if not (old and row.min_architecture)]
    readings = sample(rows, [gpu(0, model)], per_gpu=per_gpu)
    return render(families(readings, selection, (("Hostname", host),))).decode()


# --- the agent's own ------------------------------------------------------------------------------


def _own(phase: Phase) -> str:
    divided = with_instances(card("h100-80gb"), [("3g.40gb", 0), ("1g.10gb", 4)])
    client = mps_client(
        4712,
        share="small",
        slot="small-0",
        memory_used=6 << 30,
        memory_limit=8 << 30,
        threads=25.0,
        namespace="team-a",
        pod="job-0",
        container="main",
    )
    daemons = (
        mps_daemon(
            divided.instances[0].compute[0].uuid,
            "Ready",
            restarts=1,
            clients=(client,),
            server=MpsServer(pid=4700, user=1000, status="ACTIVE"),
        ),
    )
    state = NodeState(
        "n",
        "file",
        phase=phase,
        digest="x",
        observed=ObservedNode((divided,)),
        mps=daemons,
        claims=(_claim(divided),),
    )
    work = Work()
    for operation in ("prepare", "release"):
        work.add_claim(operation, 0.04, "")
        work.add_claim(operation, 0.04, "InUse")
    step = SetMigMode(divided.uuid, True, "")
    lost = divided.instances[0]
    gone = DestroyGpuInstance(divided.uuid, lost.id, lost.profile, lost.placement, (), "")
    reports = (
        plan.StepReport(step, plan.StepResult.DONE),
        plan.StepReport(gone, plan.StepResult.DONE, 0.1),
        plan.StepReport(step, plan.StepResult.FAILED),
    )
    for seconds in (0.2, 3.0):
        outcome = plan.GpuOutcome(plan.GpuPlan.in_sync(divided), reports, divided)
        work.add_round(
            plan.NodeOutcome(plan.NodePlan(plan.Verdict.APPLICABLE), (outcome,)), seconds
        )
    readers = (
        ReaderState("fast", succeeded=True, at=99.5, duration=0.02),
        ReaderState("slow", succeeded=True, at=91.0, duration=0.2, gpu="0", uuid=divided.uuid),
    )
    holder = ("main", "team-a", "job-0", "", "")
    held = [
        AgentSample(metric, value, holder)
        for metric, value in (
            ("nodeagent_held_seconds_total", 100.0),
            ("nodeagent_used_seconds_total", 40.0),
            ("nodeagent_held_slice_seconds_total", 400.0),
            ("nodeagent_used_slice_seconds_total", 160.0),
        )
    ]
    place = (str(divided.index), divided.uuid, lost.profile, str(lost.id))
    samples = (
        *node_samples(state),
        AgentSample("nodeagent_held_idle_seconds", 60.0, (*place, *holder)),
        AgentSample("nodeagent_counters_ignored", 1.0),
        *reader_samples(readers, now=100.0),
        *process_samples(),
        *held,
        AgentSample(
            "nodeagent_advice_info", 1, ("main", "team-a", "job", "3g.40gb", "smaller", "1g.10gb")
        ),
        AgentSample("nodeagent_build_info", 1, ("0.1.0", "3.11")),
    )
    return render([*agent_families(samples), *work.families()]).decode()


def _claim(divided: Gpu) -> Claim:
    """A pod's, of the GPU's first instance."""
    lies = divided.instances[0]
    device = ClaimDevice(
        request="gpu",
        pool="node/gpu",
        device="mig-3g-40gb-0",
        gpu=divided.uuid,
        index=divided.index,
        profile=lies.profile,
        start=lies.placement.start,
        size=lies.placement.size,
        gi=lies.id,
    )
    pod = Pod(namespace="team-a", name="job-0", container="main")
    return Claim(
        namespace="team-a",
        name="job-0-gpu",
        phase=ClaimPhase.READY,
        pods=[pod],
        devices=[device],
        problems=[],
    )


# --- health ---------------------------------------------------------------------------------------


def _health() -> str:
    """An XID of an instance, one of the whole GPU, and a row of memory that waits."""
    node = Node()
    node.read(reading(rows=RemappedRows(0, 1, pending=True, failed=False)))
    node.xid(31, instance=7, compute=0)
    node.xid(79)
    return render(agent_families(health_samples(node.state))).decode()


# --- what queries may ask for -------------------------------------------------------------------

_HISTOGRAM = ("_bucket", "_sum", "_count")


def metric_table() -> Mapping[str, frozenset[str]]:
    """Labels by name: the agent's own as its tables say, the rest as series of them have them."""
    seen = labels_by_name()
    table = {wanted.name: seen[wanted.name] for wanted in default_selection().metrics}
    for metric in AGENT_METRICS:
        labels = frozenset((*metric.labels, *TARGET))
        if metric.type is Kind.HISTOGRAM:
            table |= {metric.name + suffix: labels | {"le"} for suffix in _HISTOGRAM}
        else:
            table[metric.name] = labels
    others = ((series.name, frozenset(series.labels)) for series in _others())
    return {**table, "up": frozenset(TARGET), **dict(others)}  # `up` is Prometheus' own


def unknown(asked: Asked) -> set[str]:
    """The metrics and labels of an expression that there are not."""
    table = metric_table()
    wrong = {s.metric for s in asked.selectors if s.metric not in table}
    known: frozenset[str] = frozenset()
    for selector in asked.selectors:
        labels = table.get(selector.metric, frozenset())
        known |= labels
        wrong |= {f"{selector.metric}.{m.name}" for m in selector.matchers if m.name not in labels}
    return wrong | {label for one in asked.groupings for label in one if label not in known}


def result_labels(asked: Asked) -> frozenset[str]:
    """The labels that a result can have: those it is grouped by, else all of its metrics'."""
    if asked.by is not None:
        return frozenset(asked.by)
    table = metric_table()
    return frozenset().union(*(table[s.metric] for s in asked.selectors))
