"""Write docs/metrics.md from the catalogue, the shipped file of counters and the own metrics.

python tools/make_metrics_page.py
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import assert_never

from nodeagent.metrics.agent_metrics import AGENT_METRICS
from nodeagent.metrics.catalogue import Field, Level, WithMig, catalogue
from nodeagent.metrics.selection import default_selection
from nodeagent.metrics.sources import (
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

Those in the file `metrics.counters` ([settings](settings.md)), in dcgm-exporter's format: a line
has a field, a type (`gauge`, `counter` or `label`) and a help; `#` begins a comment. A field of
type `label` becomes a label of every metric. Files written for dcgm-exporter can be used as they
are, also with DCGM 4.6's names, those of dcgm-exporter 1 and `DCGM_FI_DEV_CLOCK_THROTTLE_REASONS`.

A change in the file counts at once, without a hole in the series. A line that cannot be used is
named in the log and in `/v1/status` and counted by `nodeagent_counters_ignored`; the others count.
A file that cannot be used at all, or has more than 5,000 lines or 1 MiB, leaves the fields of
before.

Without a file, the fields in bold are exported: dcgm-exporter's own default,
`DCGM_FI_PROF_SM_ACTIVE` and `DCGM_FI_PROF_SM_OCCUPANCY`.

## How old they are

A scrape makes no driver calls: it gets the last values, and their age by reader in
`nodeagent_sample_age_seconds`. Utilization, clocks, power and memory are read every
`sample.interval`, and soon after each step of a change; ECC, remapped rows, links and PCIe every
`sample.slow_interval`; processes every 5 s at the most. A GPU whose driver hangs keeps its last
values, with `nodeagent_reader_success` 0; those of a GPU that is lost end.

## Labels

`gpu`, `UUID` (always the GPU's), `pci_bus_id`, `device`, `modelName`; of a GPU instance also
`GPU_I_PROFILE` and `GPU_I_ID`; then the host, the fields of type `label`, and `container`,
`namespace`, `pod`. `nodeagent_mig_device_info` has the MIG devices' UUIDs, to be joined on `UUID`
and `GPU_I_ID`. Metrics of an NVLink begin with `nvlink`. A label without a value is left out.

`container`, `namespace` and `pod` are those of the pod that has the GPU or the instance: by its
claim (from the moment that the claim is ready), by what the kubelet gave it, or by the cgroups of
its processes. Outside a cluster `container` is the beginning of a container's id; a process in none
has `unit` (of systemd) or, as those of a login session, `user` (a number). In a container the agent
knows the owners of processes only with `hostPID: true`.

Time is counted in the same way, from the first look that found the process (at most 5 s late):
`nodeagent_held_seconds_total` and its like, and `nodeagent_held_idle_seconds`, have `namespace`
and `pod` for a pod, else one of `container`, `unit` and `user`.
A second of a 3g.40gb, which has four of a GPU's eight memory slices, is half a GPU-second and four
slice-seconds; of a whole GPU it is one GPU-second and no slice-seconds. A device that several hold
is divided among them evenly. Used is what was held times the device's activity: where that was not
measured for a part of the time it is too low, and where it never was, as of MIG devices before
Hopper, the series is absent.
`nodeagent_advice_info` is about workloads
([which slice would do](operations.md#which-slice-would-do)): of those that hold something now the
ones that free most, no more than GPUs and slices are held. So it is at most 5 % of a page, also
where many clients share a GPU; `/v1/advice` has all of them.

Metrics of a device that several pods share, by MPS or by time-slicing, carry no pod labels, except
`DCGM_FI_DEV_FB_USED` and `DCGM_FI_DEV_GPU_UTIL`: they have a series for each pod, by its processes,
and one for the rest, so that the sum is the GPU's. While MIG is on, the driver reports no process'
share of the time.

## Where this differs from dcgm-exporter

- A value that the driver does not give is absent, never 0. Only `DCGM_FI_DEV_XID_ERRORS` is 0 at
  first, as it is there, with `err_code="0"` and `err_msg="No Error"`. Each XID, from NVML or the
  kernel log, ends that series and begins one with its own number and name, until a reboot. Alert on
  `> 0`, or on any XID of the last five minutes by
  `increase(nodeagent_gpu_xid_events_total[5m]) > 0`: that counter is there from the start.
  `nodeagent_gpu_xid_total` begins with the first XID of a number, which `increase()` does not see;
  for numbers use `time() - nodeagent_gpu_xid_last_timestamp_seconds < 300`. The shipped rules go by
  findings.
- A value of the whole GPU is exported once. dcgm-exporter repeats it for each GPU instance, which
  makes sums of power wrong. A field that is exported for GPU instances is not exported for their
  GPU.
- Utilization does not exist with MIG on. Each instance's GPM figures replace it (Hopper and newer).
- Counters do not decrease when the driver is loaded again or an instance is created again.
- PCIe throughput is the growth of byte counters: the call that DCGM uses blocks for 20 ms.
- `DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL` is a rate, though dcgm-exporter and the shipped file call it
  a counter.
- Three of its `DCGM_EXP_*` exist where the file of counters names them: `DCGM_EXP_XID_ERRORS_COUNT`
  and `DCGM_EXP_CLOCK_EVENTS_COUNT`, always of the last five minutes and absent without an event,
  and `DCGM_EXP_GPU_HEALTH_STATUS` (0, 10 or 20), whose `health_watch` is a check of
  [health.md](health.md), without `health_error_code`.
- `promtool check metrics` dislikes names of DCGM's: `modelName`, counters without `_total`.

## The agent's own

Counters of steps, refused clients, failed claims (not by the codes of a planner's problem) and
memory slices out of use are 0 before the first event; so is `nodeagent_mig_creatable` where nothing
more fits.

- **Claims**: these metrics exist where the agent serves claims ([dra.md](dra.md)).
  `nodeagent_claim_slices` has `pod` where one pod has the claim; a GPU without MIG counts as one
  slice. A share of a GPU has no slices: `nodeagent_claim_share_...` say what it may use and uses,
  `nodeagent_shares_free_...` what is left of the GPU. The `reason` of
  `nodeagent_claim_failures_total` is a problem's code ([runbook](runbook.md#problems)).
- **Fragmentation**: `nodeagent_mig_fragmentation_ratio` compares two sums over all profiles: how
  many more instances fit now, and how many would fit if those that are there lay where they leave
  most room for that profile. It is the share of the second that the first lacks: 0 where moving
  would not help, 1 where something would fit and nothing does.

Of labels, GPU stands for {gpu}; instance for these, {instance}; device for these and {device};
owner for {owner}.

| metric | type | labels | meaning |
|---|---|---|---|
"""

FIELDS = """\

## Fields

Some fields in one row differ only by what is in braces, as in a shell: look for the beginning of a
name. The second name is that since DCGM 4.6. Types without a unit are counts or have none. `from`
is NVML's function, field value, GPM metric or port counter, and the oldest cards that are known to
answer.

"""
TITLES = {
    "instances": "With MIG on, one for each GPU instance",
    "GPU": "With MIG on, of the whole GPU",
    "unproven": "With MIG on, of the whole GPU: not proven",
    "none": "With MIG on, none",
    "node": "Of the node",
}
# Label sets of the agent's own metrics; each contains those before it, but for the last.
LABELS = {
    "GPU": ("gpu", "UUID"),
    "instance": ("GPU_I_PROFILE", "GPU_I_ID"),
    "device": ("compute_instance", "mig_uuid"),
    "owner": ("container", "namespace", "pod", "unit", "user"),
}
# Fields that differ in nothing else are one row. Each word goes with those below it.
EITHER = (
    (("SBE", "DBE"), ("Single", "Double"), ("single", "double"), ("CORRECTED", "UNCORRECTED")),
    (("VOL", "AGG"), ("volatile", "aggregate"), ("VOLATILE", "AGGREGATE")),
    (("TX", "RX"), ("sent", "received"), ("XMIT", "RCV")),
    (("FLIT", "DATA"), ("flow-control", "data")),
    (("CORRECTABLE", "UNCORRECTABLE"), ("correctable", "uncorrectable"), ("COR", "UNC")),
    (("MAX", "HIGH", "PARTIAL", "LOW", "NONE"), ("max", "high", "partial", "low", "none")),
    (("MAX", "MIN"), ("Highest", "Lowest"), ("max", "min")),
    (("TOTAL", "USED", "FREE"), ("Total", "Used", "Free")),
)

Cells = tuple[str, ...]  # name, type, meaning, source


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
    own = (_line(f"`{m.name}`", m.type.value, _labels(m.labels), m.help) for m in AGENT_METRICS)
    sections: dict[str, list[Cells]] = {title: [] for title in TITLES}
    for row in known.fields:
        sections[_with_mig(row)].append(_cells(row, row.id in default))
    texts = (
        _line(_name(t.name, t.renamed, t.id in default), t.help, _source(t.source))
        for t in known.texts
    )
    named = {key: ", ".join(f"`{name}`" for name in names) for key, names in LABELS.items()}
    return (
        HEAD.replace("{gpu}", named["GPU"]).format_map(named)
        + "".join(own)
        + FIELDS
        + f"There are {summary()}.\n"
        + "".join(_section(TITLES[key], rows) for key, rows in sections.items())
        + "\n### Texts\n\nThey can be labels.\n\n| field | meaning | from |\n|---|---|---|\n"
        + "".join(texts)
    )


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n"


def _labels(names: tuple[str, ...]) -> str:
    """With the names of the label sets in it."""
    rest, found = list(names), list[str]()
    for key, members in LABELS.items():
        if set(members) <= set(rest):
            rest = [name for name in rest if name not in members]
            found = [*found, key] if key == "owner" else [key]
    return ", ".join((*found, *(f"`{name}`" for name in rest)))


def _section(title: str, rows: list[Cells]) -> str:
    rows = _numbered(rows)
    for words in EITHER:
        rows = _joined(rows, words)
    table = "".join(_line(*cells) for cells in rows)
    return f"\n### {title}\n\n| field | type | meaning | from |\n|---|---|---|---|\n{table}"


def _cells(row: Field, default: bool) -> Cells:
    unit = "" if row.unit == "count" else row.unit
    meaning = re.sub(r" \(in [^)]+\)$|^Total number of ", "", row.help)
    subject, _, words = meaning.partition(": ")
    if row.name.endswith(words.upper().replace(" ", "_")):
        meaning = subject  # the rest is the name again
    return (
        _name(row.name, row.renamed, default),
        ", ".join(filter(None, (row.type.value, unit))),
        meaning[0].upper() + meaning[1:],
        "; ".join(filter(None, (_source(row.whole), row.min_architecture))),
    )


def _name(name: str, renamed: str, default: bool) -> str:
    new = "" if renamed == name else f"<br>`{renamed}`"
    return f"**`{name}`**{new}" if default else f"`{name}`{new}"


def _numbered(rows: list[Cells]) -> list[Cells]:
    """With one row for those that differ by a number."""
    alike: dict[Cells, list[Cells]] = {}
    for cells in rows:
        alike.setdefault(tuple(re.sub(r"\d+", "#", cell) for cell in cells), []).append(cells)
    return [_family(members) for members in alike.values()]


def _family(members: list[Cells]) -> Cells:
    if len(members) == 1:
        return members[0]
    numbers = [re.findall(r"\d+", cells[0]) for cells in members]
    (differing,) = {column for column in zip(*numbers, strict=True) if len(set(column)) > 1}
    values = sorted(map(int, differing))
    whole = len(values) > 2 and values == list(range(values[0], values[-1] + 1))
    named = f"{values[0]}..{values[-1]}" if whole else ",".join(map(str, values))
    name, kind, meaning, source = (
        re.sub(rf"(?<!\d){differing[0]}(?!\d)", f"{{{named}}}", cell) for cell in members[0]
    )
    return name, kind, meaning.replace(f" {{{named}}}", " n"), source.replace(f"{{{named}}}", "{n}")


def _joined(rows: list[Cells], words: tuple[tuple[str, ...], ...]) -> list[Cells]:
    """With one row for those that differ by these words."""
    alike: dict[Cells, list[Cells]] = {}
    for cells in rows:
        alike.setdefault(tuple(_either(cell, words) for cell in cells), []).append(cells)
    whole = len(words[0])
    return [
        cells
        for joined, members in alike.items()
        for cells in ([joined] if len(members) == whole else members)
    ]


def _either(text: str, words: tuple[tuple[str, ...], ...]) -> str:
    for choice in words:
        any_of_them = rf"(?<![A-Za-z{{])(?:{'|'.join(choice)})(?![A-Za-z}}])"
        text = re.sub(any_of_them, f"{{{','.join(choice)}}}", text)
    return text


def _with_mig(row: Field) -> str:
    if row.level is Level.NODE:
        return "node"
    if row.part is not None:
        return "instances"
    return {WithMig.STAYS: "GPU", WithMig.GONE: "none", WithMig.UNPROVEN: "unproven"}[row.with_mig]


def _source(source: Source) -> str:  # one case for each kind of source
    """In a few words."""
    match source:
        case SystemCall(function) | VerdictCall(function) | PeerCall(function):
            return f"`{function}`"
        case DeviceCall(function, arguments):
            return " ".join(f"`{word}`" for word in (function, *arguments))
        case LinkCall(function, counter):
            return f"`{function}` `{counter}`"
        case PortCounter(constant) | FieldValue(_, constant) | GpmLink(_, _, constant):
            return f"`{constant}`"
        case FieldRate(_, constants):
            return f"growth of {' + '.join(f'`{name}`' for name in constants)}"
        case Gpm(_, constants):
            return ", ".join(f"`{name}`" for name in constants)
        case EventCount(happening):
            return f"event: {happening.value}"
        case _:
            assert_never(source)


if __name__ == "__main__":
    main()
