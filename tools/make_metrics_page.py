"""Write docs/metrics.md from the catalogue, the shipped file of counters and the own metrics.

python tools/make_metrics_page.py
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import assert_never

from nodeagent.metrics.agent_metrics import AGENT_METRICS
from nodeagent.metrics.catalogue import Field, Level, WithMig, catalogue
from nodeagent.metrics.selection import default_selection
from nodeagent.metrics.sources import (
    ALL_LINKS,
    DeviceCall,
    EventCount,
    FieldRate,
    FieldValue,
    Gpm,
    GpmLink,
    LinkCall,
    PeerCall,
    PortCounter,
    Source,
    SystemCall,
    VerdictCall,
)

PAGE = Path(__file__).parents[1] / "docs/metrics.md"

HEAD = """\
# Metrics

<!-- written by tools/make_metrics_page.py; change the catalogue, not this page -->

Metrics have the names, types, units and labels of NVIDIA's dcgm-exporter, so its dashboards and
rules can be used. Their values come from NVML; there is no DCGM. The agent's own begin with
`nodeagent_`. No value here was compared with DCGM's on hardware yet.

## Which fields are exported

A file in dcgm-exporter's format says it: a line has a field, a type (`gauge`, `counter` or `label`)
and a help. A line that begins with `#` is a comment. A field of type `label` becomes a label of
every metric. Files written for dcgm-exporter can be used as they are; so can DCGM 4.6's new names,
those of dcgm-exporter 1 and `DCGM_FI_DEV_CLOCK_THROTTLE_REASONS`. A line that cannot be used is
named, and the others count.

The file is `metrics.counters` ([settings](settings.md)). A change in it counts at once, without a
hole in the series; one that cannot be used at all leaves the fields of before. What does not count
is named in the log and in `/v1/status`, and counted by `nodeagent_counters_ignored`. A file of more
than 5,000 lines or 1 MiB is refused whole.

Without a file, the fields marked in the column "default" are exported: dcgm-exporter's own default,
`DCGM_FI_PROF_SM_ACTIVE` and `DCGM_FI_PROF_SM_OCCUPANCY`.

## How old they are

A scrape makes no driver calls: it gets the last values, and their age by reader in
`nodeagent_sample_age_seconds`. Utilization, clocks, power and memory are read every
`sample.interval`, and soon after each step of a change; ECC, remapped rows, links and PCIe every
`sample.slow_interval`; processes every 5 s at the most. A GPU whose driver hangs keeps its last
values, and its `nodeagent_reader_success` is 0; those of a GPU that is lost end.

## Labels

`gpu`, `UUID`, `pci_bus_id`, `device`, `modelName`; of a GPU instance also `GPU_I_PROFILE` and
`GPU_I_ID`; then the host, the fields of type `label`, and `container`, `namespace`, `pod`. `UUID`
is always the GPU's. `nodeagent_mig_device_info` has the MIG devices' own, to be joined on `UUID`
and `GPU_I_ID`. Metrics of an NVLink begin with `nvlink`.

`container`, `namespace` and `pod` are those of the pod that has the GPU or the instance: by the
claim that it was made for, by what the kubelet gave it, or by the cgroups of its processes. The pod
of a claim is there from the moment that the claim is ready, its container as soon as the kubelet
lists it. Outside a cluster `container` is the beginning of a container's id; a process in none has
`unit` (of systemd) or `user` (a number). A process of a login session counts for its user. In a
container the agent knows the owners of processes only with the host's process ids
(`hostPID: true`).

Time is counted in the same way: `nodeagent_gpu_seconds_held_total` and its like, and
`nodeagent_held_idle_seconds`, have `namespace` and `pod` for a pod, else one of `container`, `unit`
and `user`. Time counts from the first look that found the process, which is at most 5 s late.

Metrics of a device that several pods share, by MPS or by time-slicing, carry no pod labels,
except two fields:
`DCGM_FI_DEV_FB_USED` and `DCGM_FI_DEV_GPU_UTIL` have a series for each pod, by its processes, and
one without a pod for the rest. So the sum over all series is the GPU's. While MIG is on, the driver
reports no process' share of the time.

## Where this differs from dcgm-exporter

- A value that the driver does not give is absent, never 0. One field is 0 at first, as it is there:
  `DCGM_FI_DEV_XID_ERRORS`, with `err_code="0"` and `err_msg="No Error"`. Each XID ends that series
  and begins one with its own number and name, until a reboot; it is the newest that NVML or the
  kernel log reported. Alert on `> 0`, or on any XID of the
  last five minutes, also the first, by `increase(nodeagent_gpu_xid_events_total[5m]) > 0`: that
  counter is there for each GPU from the start. `nodeagent_gpu_xid_total` begins with the first XID
  of a number, which `increase()` does not see; the numbers of the last five minutes are
  `time() - nodeagent_gpu_xid_last_timestamp_seconds < 300`. The shipped rules go by findings.
- A value of the whole GPU is exported once. dcgm-exporter repeats it for each GPU instance, which
  makes sums of power wrong.
- A field that is exported for GPU instances is not exported for their GPU too.
- Utilization does not exist with MIG on. The GPM figures of each instance replace it (Hopper
  and newer).
- Counters do not decrease when the driver is loaded again or an instance is created again.
- PCIe throughput is the growth of byte counters: the call that DCGM uses blocks for 20 ms.
- `DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL` is a rate. dcgm-exporter calls it a counter, and so does the
  shipped file.
- Three of its `DCGM_EXP_*`, which it makes out of several readings, exist where the file of
  counters names them: `DCGM_EXP_XID_ERRORS_COUNT` and `DCGM_EXP_CLOCK_EVENTS_COUNT`, always of the
  last five minutes and absent without an event, and `DCGM_EXP_GPU_HEALTH_STATUS` (0, 10 or 20),
  whose `health_watch` is a check of [health.md](health.md), without `health_error_code`.

## Claims

These exist where the agent serves claims ([dra.md](dra.md)). `nodeagent_claim_slices` has `pod`
where one pod has the claim; a GPU without MIG counts as one slice. A share of a GPU has no slices
of its own: `nodeagent_claim_share_...` say what it may use and uses, `nodeagent_shares_free_...`
what is left of the GPU. The `reason` of `nodeagent_claim_failures_total` is one of:
`ClaimRefused` (the claim is wrong, or allocated what another one has), `InUse`, `Driver`, `Cluster`
(the API server does not answer), `StateFile` (a record cannot be written), `Cdi`, `UnknownDevice`,
`Other`, `Internal`, or the code of the planner's or a step's problem, such as `StepFailed` or
`GpuUnhealthy`.

## Fragmentation

`nodeagent_mig_fragmentation_ratio` compares two sums over all profiles: how many more instances of
each fit now (`nodeagent_mig_creatable`), and how many would fit if the instances that are there
could be moved to where they leave most room for that profile. The ratio is the share of the second
that the first lacks: 0 where moving would not help, 1 where something would fit and nothing
does. `nodeagent_mig_slots_unusable_ratio` is about memory slices that no profile can use.

`promtool check metrics` has nothing to say of the agent's own. Of DCGM's it dislikes the names:
`modelName`, counters without `_total`.

## The agent's own

Counters of steps, refused clients, failed claims (not by the codes of a planner's problem) and
memory slices out of use are 0 before the first event; so is `nodeagent_mig_creatable` where nothing
more fits.

| metric | type | labels | meaning |
|---|---|---|---|
"""

FIELDS = """\

A label without a value is left out of a series.

## Fields

`with MIG` says what there is while MIG mode is on: the value of the whole GPU (`GPU`), one for each
instance (`instances`), or none. `{n}` in a source stands for a link's number. Architectures are the
oldest that are known to answer.

"""


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.name}: {summary()}")


def summary() -> str:
    """How many fields there are."""
    known = catalogue()
    parts = sum(1 for row in known.fields if row.part is not None)
    return f"{len(known.fields)} numeric fields from NVML, {parts} of them for GPU instances"


def page() -> str:
    """The whole page."""
    known = catalogue()
    default = {metric.field.id for metric in default_selection().metrics}
    default |= {label.field.id for label in default_selection().labels}
    own = "".join(
        f"| `{m.name}` | {m.type} | {', '.join(f'`{name}`' for name in m.labels)} | {m.help} |\n"
        for m in AGENT_METRICS
    )
    texts = "".join(
        f"| `{t.name}` | {_renamed(t.name, t.renamed)} | {'yes' if t.id in default else ''} "
        f"| {t.help} | {_source(t.source)} |\n"
        for t in known.texts
    )
    return (
        HEAD + own + FIELDS + f"There are {summary()}.\n\n"
        "| field | name since DCGM 4.6 | id | default | type | unit | meaning | with MIG | from | "
        "oldest |\n|---|---|---|---|---|---|---|---|---|---|\n"
        + "".join(_row(row, default) for row in known.fields)
        + "\n## Fields that are texts\n\nThey can be labels.\n\n"
        "| field | name since DCGM 4.6 | default | meaning | from |\n|---|---|---|---|---|\n"
        + texts
    )


def _row(row: Field, default: Iterable[int]) -> str:
    cells = (
        f"`{row.name}`",
        _renamed(row.name, row.renamed),
        str(row.id),
        "yes" if row.id in default else "",
        row.type.value,
        row.unit,
        row.help.replace("|", "\\|"),
        _with_mig(row),
        _source(row.whole),
        row.min_architecture,
    )
    return f"| {' | '.join(cells)} |\n"


def _renamed(name: str, renamed: str) -> str:
    return "" if renamed == name else f"`{renamed}`"


def _with_mig(row: Field) -> str:
    if row.level is Level.NODE:
        return "node"
    if row.part is not None:
        return "instances"
    return {WithMig.STAYS: "GPU", WithMig.GONE: "none", WithMig.UNPROVEN: "GPU, not proven"}[
        row.with_mig
    ]


def _source(source: Source) -> str:  # one case for each kind of source
    """In a few words."""
    match source:
        case SystemCall(function) | VerdictCall(function) | PeerCall(function):
            return f"`{function}`"
        case DeviceCall(function, arguments):
            return " ".join(f"`{word}`" for word in (function, *arguments))
        case LinkCall(function, counter, link):
            return f"`{function}` `{counter}`, link {link}"
        case PortCounter(counter):
            return f"`nvmlDeviceReadPRMCounters_v1` `{counter}`"
        case FieldValue(number, constant, scope):
            return f"field value {number} `{constant}`{_scope(scope)}"
        case FieldRate(numbers, constants, scope):
            named = " + ".join(f"{n} `{c}`" for n, c in zip(numbers, constants, strict=True))
            return f"growth of field value {named}{_scope(scope)}"
        case Gpm(numbers, constants):
            named = ", ".join(f"{n} `{c}`" for n, c in zip(numbers, constants, strict=True))
            return f"GPM {named}"
        case GpmLink(first, step, constant):
            return f"GPM {first} + {step}n `{constant}`"
        case EventCount(happening):
            return f"event: {happening.value}"
        case _:
            assert_never(source)


def _scope(scope: object) -> str:
    if scope == 0:
        return ""
    return ", all links" if scope == ALL_LINKS else f", link {scope}"


if __name__ == "__main__":
    main()
