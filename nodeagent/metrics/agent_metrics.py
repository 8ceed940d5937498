"""The agent's own metrics: a table of their names, types and labels.

Their samples are made in the modules that know the values. Labels of GPUs and instances have
dcgm-exporter's names, so that the metrics of both can be joined.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from nodeagent.metrics.catalogue import Kind
from nodeagent.metrics.exposition import Family, block
from nodeagent.metrics.sources import Number
from nodeagent.structs import Struct

_GPU = ("gpu", "UUID")
_SLICE = (*_GPU, "GPU_I_PROFILE", "GPU_I_ID")
_DEVICE = (*_SLICE, "compute_instance", "mig_uuid")
_CLIENT = (*_DEVICE, "pid", "share", "container", "namespace", "pod")
_HOLDER = ("container", "namespace", "pod", "unit", "user")


class AgentMetric(Struct, frozen=True):
    """A metric of the agent's own. A label with an empty value is left out of a series."""

    name: str
    type: Kind
    help: str
    labels: tuple[str, ...] = ()


class AgentSample(Struct, frozen=True):
    """A value of one series; `labels` in the order of the metric's."""

    metric: AgentMetric
    value: Number
    labels: tuple[str, ...] = ()


def _gauge(name: str, meaning: str, *labels: str) -> AgentMetric:
    return AgentMetric(name, Kind.GAUGE, meaning, labels)


def _counter(name: str, meaning: str, *labels: str) -> AgentMetric:
    return AgentMetric(name, Kind.COUNTER, meaning, labels)


# --- the plan -------------------------------------------------------------------------------------

PLAN_APPLIED = _gauge(
    "nodeagent_plan_applied",
    "Whether the node is as the plan in force says (1) or not (0); absent without a plan",
)
PHASE = _gauge("nodeagent_phase", "The node's phase: 1 for the one it is in, 0 for others", "phase")
STEPS = _counter("nodeagent_steps_total", "Steps that were taken to change GPUs", "kind", "result")
RECONCILE_DURATION = AgentMetric(
    "nodeagent_reconcile_duration_seconds",
    Kind.HISTOGRAM,
    "How long a reconciliation took, from looking to looking again",
)

# --- MIG ------------------------------------------------------------------------------------------

MIG_INSTANCES = _gauge(
    "nodeagent_mig_instances", "GPU instances that there are", *_GPU, "GPU_I_PROFILE"
)
MIG_SLOTS_FREE = _gauge(
    "nodeagent_mig_slots_free", "Memory slices of a GPU in MIG mode that no instance has", *_GPU
)
MIG_CREATABLE = _gauge(
    "nodeagent_mig_creatable",
    "How many more instances of a profile fit now, each profile taken alone",
    *_GPU,
    "GPU_I_PROFILE",
)
MIG_LARGEST_CREATABLE = _gauge(
    "nodeagent_mig_largest_creatable_slots",
    "Memory slices of the largest profile that still fits; 0 when none does",
    *_GPU,
)
MIG_UNUSABLE = _gauge(
    "nodeagent_mig_slots_unusable_ratio",
    "Share of the free memory slices that no profile can use as the instances lie (0 to 1)",
    *_GPU,
)
MIG_FRAGMENTATION = _gauge(
    "nodeagent_mig_fragmentation_ratio",
    "Share of further instances that would fit if those that are there lay better (0 to 1)",
    *_GPU,
)
MIG_DEVICE_INFO = _gauge(
    "nodeagent_mig_device_info",
    "A MIG device: where it lies in memory slices, and which share of the GPU's slices it has",
    *_DEVICE,
    "device_profile",
    "start",
    "size",
    "share",
)

MIG_DOWNTIME = _counter(
    "nodeagent_mig_slot_out_of_use_seconds_total",
    "Seconds for which changes kept a memory slice from being used, by its number",
    *_GPU,
    "slot",
)

# --- claims of pods -------------------------------------------------------------------------------

_CLAIM_SHARE = (*_GPU, "namespace", "claim", "request", "pod")
CLAIMS = _gauge(
    "nodeagent_claims", "Resource claims that the node serves, by how far they are", "phase"
)
CLAIM_SLICES = _gauge(
    "nodeagent_claim_slices",
    "Memory slices of a GPU that a claim has; all of them where it has the GPU as a whole",
    *(*_SLICE, "namespace", "claim", "pod"),
)
CLAIM_SHARE_MEMORY_LIMIT = _gauge(
    "nodeagent_claim_share_memory_limit_bytes",
    "Memory of a GPU that a claim may use beside others",
    *_CLAIM_SHARE,
)
CLAIM_SHARE_MEMORY = _gauge(
    "nodeagent_claim_share_memory_used_bytes",
    "Memory of it that the claim's MPS clients use",
    *_CLAIM_SHARE,
)
CLAIM_SHARE_THREADS = _gauge(
    "nodeagent_claim_share_active_thread_percentage",
    "The percentage of the GPU's threads that each of its processes may use",
    *_CLAIM_SHARE,
)
SHARES_FREE_MEMORY = _gauge(
    "nodeagent_shares_free_memory_bytes",
    "Memory that claims could still have of a GPU that they share",
    *_GPU,
)
SHARES_FREE_THREADS = _gauge(
    "nodeagent_shares_free_thread_percentage",
    "The percentage of its threads that they could still have",
    *_GPU,
)
CLAIM_PREPARE_DURATION = AgentMetric(
    "nodeagent_claim_prepare_duration_seconds",
    Kind.HISTOGRAM,
    "How long it took to make or verify the devices of a claim, where that succeeded",
)
CLAIM_RELEASE_DURATION = AgentMetric(
    "nodeagent_claim_release_duration_seconds",
    Kind.HISTOGRAM,
    "How long it took to take down what a claim had, where that succeeded",
)
CLAIM_FAILURES = _counter(
    "nodeagent_claim_failures_total",
    "Attempts to prepare or release a claim that failed, each repeated by the kubelet",
    "operation",
    "reason",
)

# --- MPS ------------------------------------------------------------------------------------------

MPS_DAEMON_UP = _gauge(
    "nodeagent_mps_daemon_up",
    "Whether a device's control daemon serves clients (1) or not",
    *_DEVICE,
)
MPS_RESTARTS = _counter(
    "nodeagent_mps_restarts_total",
    "How often a device's control daemon was started again",
    *_DEVICE,
)
MPS_SERVER_ACTIVE = _gauge(
    "nodeagent_mps_server_active",
    "Whether the server of a device's control daemon is ACTIVE (1) or not; absent without one",
    *_DEVICE,
)
MPS_CLIENTS = _gauge("nodeagent_mps_clients", "Clients of a device's control daemon", *_DEVICE)
MPS_INTRUDERS = _gauge(
    "nodeagent_mps_intruders",
    "Clients of a device's control daemon without a share, or with more than it allows",
    *_DEVICE,
)
MPS_WAITING = _gauge(
    "nodeagent_mps_waiting_clients",
    "Clients of other users than the server's, which wait until its clients have gone",
    *_DEVICE,
)
MPS_CLIENT_MEMORY = _gauge(
    "nodeagent_mps_client_memory_bytes", "Device memory that an MPS client has", *_CLIENT
)
MPS_CLIENT_MEMORY_LIMIT = _gauge(
    "nodeagent_mps_client_memory_limit_bytes", "The most device memory that it may have", *_CLIENT
)
MPS_CLIENT_THREADS = _gauge(
    "nodeagent_mps_client_active_thread_percentage",
    "The percentage of the device's threads that an MPS client may use",
    *_CLIENT,
)

# --- health ---------------------------------------------------------------------------------------

GPU_HEALTH = _gauge(
    "nodeagent_gpu_health",
    "1 healthy, 0.5 degraded, 0 unhealthy; absent: not known",
    "check",
    *_GPU,
)
GPU_FINDING = _gauge(
    "nodeagent_gpu_finding",
    "1 for each finding there is",
    *(*_GPU, "GPU_I_ID", "compute_instance", "check", "cause", "code", "severity", "action"),
)
XID_EVENTS = _counter(
    "nodeagent_gpu_xid_events_total",
    "XIDs of any number, each counted once; 0 before the first",
    *_GPU,
)
XID_TOTAL = _counter(
    "nodeagent_gpu_xid_total", "XIDs by number, each counted once", "xid", *_GPU, "GPU_I_ID"
)
XID_LAST = _gauge(
    "nodeagent_gpu_xid_last_timestamp_seconds",
    "when the XID was last seen, since 1970",
    "xid",
    *_GPU,
    "GPU_I_ID",
)

# --- accounting -----------------------------------------------------------------------------------

GPU_SECONDS_HELD = _counter(
    "nodeagent_gpu_seconds_held_total",
    "Seconds for which GPUs were held, parts of a GPU as parts of a second",
    *_HOLDER,
)
GPU_SECONDS_USED = _counter(
    "nodeagent_gpu_seconds_used_total", "Those of them in which the GPU was active", *_HOLDER
)
SLICE_SECONDS_HELD = _counter(
    "nodeagent_slice_seconds_held_total", "Seconds for which MIG memory slices were held", *_HOLDER
)
SLICE_SECONDS_USED = _counter(
    "nodeagent_slice_seconds_used_total", "Those of them in which the slice was active", *_HOLDER
)

HELD_IDLE = _gauge(
    "nodeagent_held_idle_seconds",
    "For how long a device that is held has done nothing; absent where that is not known",
    *(*_SLICE, *_HOLDER),
)

# --- the readers and the agent itself -------------------------------------------------------------

SAMPLE_AGE = _gauge(
    "nodeagent_sample_age_seconds", "How old the values of a reader are", "reader", *_GPU
)
READER_SUCCESS = _gauge(
    "nodeagent_reader_success",
    "Whether a reader's last attempt went well (1) or not",
    "reader",
    *_GPU,
)
READER_DURATION = _gauge(
    "nodeagent_reader_duration_seconds", "How long a reader's last attempt took", "reader", *_GPU
)
CLUSTER_REACHABLE = _gauge(
    "nodeagent_cluster_reachable",
    "Whether the API server answers the agent (1) or not; absent outside a cluster",
)
COUNTERS_IGNORED = _gauge(
    "nodeagent_counters_ignored", "Lines of the file of counters that could not be used"
)
HTTP_REFUSED = _counter(
    "nodeagent_http_refused_total",
    "Requests and connections that were refused, by the listener (api, metrics or socket) and why",
    "listener",
    "reason",
)
BUILD_INFO = _gauge("nodeagent_build_info", "The agent that runs", "version", "python")
CPU_SECONDS = _counter("process_cpu_seconds_total", "Time the agent had on processors")
RESIDENT_MEMORY = _gauge("process_resident_memory_bytes", "Memory the agent has")
VIRTUAL_MEMORY = _gauge("process_virtual_memory_bytes", "Addresses the agent has mapped")
OPEN_FILES = _gauge("process_open_fds", "Files the agent has open")
MAX_FILES = _gauge("process_max_fds", "How many files the agent may have open")
START_TIME = _gauge("process_start_time_seconds", "When the agent was started, in Unix time")

# All metrics of this module, in the order above.
AGENT_METRICS = tuple(entry for entry in vars().values() if isinstance(entry, AgentMetric))


def agent_families(samples: Iterable[AgentSample]) -> list[Family]:
    """One family for each metric that has samples, in the order of the table.

    The first of two samples with equal labels counts.
    """
    series: dict[str, dict[str, Number]] = {}
    for sample in samples:
        named = zip(sample.metric.labels, sample.labels, strict=True)
        labels = block((name, value) for name, value in named if value)
        series.setdefault(sample.metric.name, {}).setdefault(labels, sample.value)
    return [
        Family(metric.name, metric.type, metric.help, found)
        for metric in AGENT_METRICS
        if (found := series.get(metric.name))
    ]


class Durations(Struct):
    """A histogram of seconds. `bounds` are the buckets' upper ends, the last one is infinite."""

    metric: AgentMetric
    bounds: tuple[float, ...] = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
    _counts: list[int] | None = None
    _sum: float = 0.0

    def add(self, seconds: float) -> None:
        counts = self._counts = self._counts or [0] * (len(self.bounds) + 1)
        counts[bisect_left(self.bounds, seconds)] += 1
        self._sum += seconds

    def family(self) -> Family:
        """The histogram; without series before the first duration."""
        if self._counts is None:
            return Family(self.metric.name, self.metric.type, self.metric.help, {})
        lines, total = [], 0
        for bound, count in zip((*self.bounds, "+Inf"), self._counts, strict=True):
            total += count
            lines.append(f'_bucket{{le="{bound}"}} {total}')
        lines += [f"_sum {self._sum!r}", f"_count {total}"]
        return Family(
            self.metric.name, self.metric.type, self.metric.help, {}, suffixed=tuple(lines)
        )
