"""Write manifests/monitoring/dashboard.json: the Grafana dashboard, out of the panels below.

python tools/make_dashboard.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DASHBOARD = Path(__file__).parents[1] / "manifests/monitoring/dashboard.json"

Json = dict[str, Any]

SOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
SCHEMA = 42  # the last one of Grafana's version 1 of dashboards; older Grafanas read it too

# What the variables at the top choose. All of them may be everything, so that series without the
# label are found too.
NODE = 'instance=~"$node"'
GPU = f'{NODE}, gpu=~"$gpu"'
SLICE = f'{GPU}, GPU_I_ID=~"$slice"'
HELD = f'{SLICE}, namespace=~"$namespace"'
HOLDER = f'{NODE}, namespace=~"$namespace"'
# Every program has metrics that begin with process_; this keeps the agent's.
OF_AGENT = "and on (job, instance) nodeagent_build_info"

ROUNDS = f"nodeagent_reconcile_duration_seconds_bucket{{{NODE}}}[$__rate_interval]"

NAME = "{{instance}} GPU {{gpu}}"
PART = f"{NAME}/{{{{GPU_I_ID}}}} {{{{GPU_I_PROFILE}}}}"
POD = f"{PART} {{{{pod}}}}"
CLIENT = f"{PART} {{{{share}}}} {{{{pod}}}} {{{{pid}}}}"

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: expressions with their legends. `more` is merged into Grafana's own JSON."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    type: str = "timeseries"
    width: int = 12
    height: int = 8
    about: str = ""
    stacked: bool = False
    limits: tuple[float | None, float | None] = (0, None)
    steps: tuple[tuple[str, float | None], ...] = (("green", None),)
    values: dict[str, tuple[str, str]] = field(default_factory=dict)  # value: text, colour
    columns: tuple[str, ...] = ()  # of a table, in this order


def _one(title: str, expression: str, legend: str = "", **more: Any) -> Panel:
    return Panel(title, ((expression, legend),), **more)


def _figure(title: str, expression: str, **more: Any) -> Panel:
    return _one(title, expression, type="stat", width=4, height=4, **more)


def _table(title: str, expression: str, *columns: str, **more: Any) -> Panel:
    return _one(title, expression, type="table", columns=columns, **more)


def _states(title: str, expression: str, legend: str, **more: Any) -> Panel:
    return _one(title, expression, legend, type="state-timeline", **more)


BAD_ABOVE_0 = (("green", None), ("red", 1.0))
YES_NO = {"1": ("yes", "green"), "0": ("no", "red")}

ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Overview",
        (
            _figure("Nodes with an agent", f"count(nodeagent_build_info{{{NODE}}})"),
            _figure(
                "Nodes not as planned",
                f"count(nodeagent_plan_applied{{{NODE}}} == 0) or vector(0)",
                steps=BAD_ABOVE_0,
            ),
            _figure(
                "Findings: unhealthy",
                f'count(nodeagent_gpu_finding{{{NODE}, severity="unhealthy"}}) or vector(0)',
                steps=BAD_ABOVE_0,
            ),
            _figure("Slices", f"sum(nodeagent_mig_instances{{{GPU}}}) or vector(0)"),
            _figure("Free memory slices", f"sum(nodeagent_mig_slots_free{{{GPU}}}) or vector(0)"),
            _figure("MPS clients", f"sum(nodeagent_mps_clients{{{SLICE}}}) or vector(0)"),
        ),
    ),
    (
        "Slices",
        (
            _table(
                "Layout",
                f"nodeagent_mig_device_info{{{SLICE}}}",
                *("instance", "gpu", "start", "size", "GPU_I_PROFILE", "device_profile"),
                *("GPU_I_ID", "compute_instance", "share", "mig_uuid"),
                width=24,
                about="start and size in memory slices; share of the GPU's memory slices.",
            ),
            _one(
                "Instances",
                f"sum by (GPU_I_PROFILE) (nodeagent_mig_instances{{{GPU}}})",
                "{{GPU_I_PROFILE}}",
                stacked=True,
            ),
            _one(
                "What still fits",
                f"sum by (GPU_I_PROFILE) (nodeagent_mig_creatable{{{GPU}}})",
                "{{GPU_I_PROFILE}}",
                about="Each profile taken alone: they do not all fit at once.",
            ),
            Panel(
                "Free memory slices",
                (
                    (f"nodeagent_mig_slots_free{{{GPU}}}", f"{NAME} free"),
                    (f"nodeagent_mig_largest_creatable_slots{{{GPU}}}", f"{NAME} largest"),
                ),
                about="How many no instance has, and how many of them the largest profile gets.",
            ),
            _one(
                "Fragmentation",
                f"nodeagent_mig_slots_unusable_ratio{{{GPU}}}",
                NAME,
                unit="percentunit",
                limits=(0, 1),
                about="Share of the free memory slices that no profile can use.",
            ),
            _one(
                "Utilization",
                f"DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{HELD}}}",
                POD,
                unit="percentunit",
                limits=(0, 1),
                about="Of slices, and of GPUs without MIG. Hopper and newer.",
            ),
            _one(
                "GPU utilization",
                f"DCGM_FI_DEV_GPU_UTIL{{{HELD}}}",
                POD,
                unit="percent",
                limits=(0, 100),
                about="On cards older than Hopper there is none with MIG on.",
            ),
            Panel(
                "Streaming multiprocessors",
                (
                    (f"DCGM_FI_PROF_SM_ACTIVE{{{HELD}}}", f"{POD} active"),
                    (f"DCGM_FI_PROF_SM_OCCUPANCY{{{HELD}}}", f"{POD} occupancy"),
                ),
                unit="percentunit",
                limits=(0, 1),
            ),
            Panel(
                "Tensor cores and memory interface",
                (
                    (f"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{{HELD}}}", f"{POD} tensor"),
                    (f"DCGM_FI_PROF_DRAM_ACTIVE{{{HELD}}}", f"{POD} memory"),
                ),
                unit="percentunit",
                limits=(0, 1),
            ),
            _one("Memory used", f"DCGM_FI_DEV_FB_USED{{{HELD}}} * {MIB}", POD, unit="bytes"),
            _one("Memory free", f"DCGM_FI_DEV_FB_FREE{{{HELD}}} * {MIB}", POD, unit="bytes"),
        ),
    ),
    (
        "Who has them",
        (
            _one(
                "GPUs held",
                "sum by (namespace) "
                f"(rate(nodeagent_gpu_seconds_held_total{{{HOLDER}}}[$__rate_interval]))",
                "{{namespace}}",
                stacked=True,
                about="A slice counts as its share of the GPU.",
            ),
            _one(
                "GPUs held and idle",
                "sum by (namespace) "
                f"(rate(nodeagent_gpu_seconds_held_total{{{HOLDER}}}[$__rate_interval])"
                f" - rate(nodeagent_gpu_seconds_used_total{{{HOLDER}}}[$__rate_interval]))",
                "{{namespace}}",
                stacked=True,
            ),
            _one(
                "Memory slices held",
                "sum by (namespace) "
                f"(rate(nodeagent_slice_seconds_held_total{{{HOLDER}}}[$__rate_interval]))",
                "{{namespace}}",
                stacked=True,
            ),
            _one(
                "Memory slices held and idle",
                "sum by (namespace) "
                f"(rate(nodeagent_slice_seconds_held_total{{{HOLDER}}}[$__rate_interval])"
                f" - rate(nodeagent_slice_seconds_used_total{{{HOLDER}}}[$__rate_interval]))",
                "{{namespace}}",
                stacked=True,
            ),
            _table(
                "Held and idle for",
                f"nodeagent_held_idle_seconds{{{HELD}}}",
                *("instance", "gpu", "GPU_I_ID", "GPU_I_PROFILE", "namespace", "pod"),
                *("container", "Value"),
                unit="s",
                width=24,
                about="Devices that are allocated, and since when they have done nothing.",
            ),
        ),
    ),
    (
        "MPS",
        (
            _states(
                "Daemons that serve",
                f"nodeagent_mps_daemon_up{{{SLICE}}}",
                f"{PART} {{{{mig_uuid}}}}",
                values=YES_NO,
            ),
            _states(
                "Servers that are active",
                f"nodeagent_mps_server_active{{{SLICE}}}",
                f"{PART} {{{{mig_uuid}}}}",
                values=YES_NO,
                about="A gap: no client has come yet, so the daemon has no server.",
            ),
            _one(
                "Restarts in an hour",
                f"increase(nodeagent_mps_restarts_total{{{SLICE}}}[1h])",
                PART,
            ),
            _one("Clients", f"nodeagent_mps_clients{{{SLICE}}}", PART),
            _one(
                "Threads that a client may use",
                f"nodeagent_mps_client_active_thread_percentage{{{HELD}}}",
                CLIENT,
                unit="percent",
                limits=(0, 100),
            ),
            _one(
                "Memory of clients",
                f"nodeagent_mps_client_memory_bytes{{{HELD}}}",
                CLIENT,
                unit="bytes",
            ),
            _one(
                "Memory of clients against their limit",
                f"nodeagent_mps_client_memory_bytes{{{HELD}}}"
                f" / nodeagent_mps_client_memory_limit_bytes{{{HELD}}}",
                CLIENT,
                unit="percentunit",
                limits=(0, 1),
                steps=(("green", None), ("orange", 0.8), ("red", 0.95)),
            ),
        ),
    ),
    (
        "Health",
        (
            _table(
                "Findings",
                f'nodeagent_gpu_finding{{{NODE}, gpu=~"$gpu"}} == 1',
                *("instance", "gpu", "GPU_I_ID", "compute_instance", "check", "cause", "code"),
                *("severity", "action"),
                width=24,
                about="What is wrong now, and what would help: docs/health.md.",
            ),
            _states(
                "Checks",
                f"min by (instance, gpu, check) (nodeagent_gpu_health{{{GPU}}})",
                f"{NAME} {{{{check}}}}",
                height=12,
                values={
                    "1": ("healthy", "green"),
                    "0.5": ("degraded", "orange"),
                    "0": ("unhealthy", "red"),
                },
                about="A gap: the driver does not say.",
            ),
            _one(
                "XIDs",
                f"increase(nodeagent_gpu_xid_total{{{GPU}}}[$__rate_interval])",
                f"{NAME}/{{{{GPU_I_ID}}}} XID {{{{xid}}}}",
                height=12,
                about="The very first of a number is not seen here, but in the next table.",
            ),
            _table(
                "When which XID was last seen",
                f"nodeagent_gpu_xid_last_timestamp_seconds{{{GPU}}} * 1000",
                *("instance", "gpu", "GPU_I_ID", "xid", "Value"),
                unit="dateTimeFromNow",
            ),
            Panel(
                "Temperature",
                (
                    (f"DCGM_FI_DEV_GPU_TEMP{{{GPU}}}", NAME),
                    (f"DCGM_FI_DEV_MEMORY_TEMP{{{GPU}}}", f"{NAME} memory"),
                ),
                unit="celsius",
            ),
            _one("Power", f"DCGM_FI_DEV_POWER_USAGE{{{GPU}}}", NAME, unit="watt"),
            Panel(
                "Remapped rows of memory",
                (
                    (f"DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS{{{GPU}}}", f"{NAME} uncorrectable"),
                    (f"DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS{{{GPU}}}", f"{NAME} correctable"),
                ),
            ),
            _one(
                "PCIe replays",
                f"increase(DCGM_FI_DEV_PCIE_REPLAY_COUNTER{{{GPU}}}[$__rate_interval])",
                NAME,
            ),
        ),
    ),
    (
        "Changes",
        (
            _states(
                "As planned",
                f"nodeagent_plan_applied{{{NODE}}}",
                "{{instance}}",
                values=YES_NO,
            ),
            _states(
                "Phase",
                f"nodeagent_phase{{{NODE}}}",
                "{{instance}} {{phase}}",
                values={"1": ("now", "blue"), "0": ("", "transparent")},
            ),
            _one(
                "Steps taken",
                "sum by (kind, result) "
                f"(increase(nodeagent_steps_total{{{NODE}}}[$__rate_interval]))",
                "{{kind}} {{result}}",
                about="The very first of a kind is not seen.",
            ),
            _one(
                "Memory slices out of use",
                "sum by (instance, gpu) "
                f"(increase(nodeagent_mig_slot_out_of_use_seconds_total{{{GPU}}}[$__rate_interval]))",
                NAME,
                unit="s",
                about="Seconds for which changes kept slices from being used, all slices together.",
            ),
            Panel(
                "How long a round takes",
                tuple(
                    (
                        f"histogram_quantile({quantile}, sum by (le) (rate({ROUNDS})))",
                        name,
                    )
                    for quantile, name in ((0.5, "half of them"), (0.95, "95 %"))
                ),
                unit="s",
            ),
        ),
    ),
    (
        "The agent itself",
        (
            _one(
                "Processor",
                f"rate(process_cpu_seconds_total{{{NODE}}}[$__rate_interval]) {OF_AGENT}",
                "{{instance}}",
                unit="percentunit",
                about="1 is one core.",
            ),
            _one(
                "Memory",
                f"process_resident_memory_bytes{{{NODE}}} {OF_AGENT}",
                "{{instance}}",
                unit="bytes",
            ),
            _one(
                "How long a reader takes",
                f"max by (instance, reader) (nodeagent_reader_duration_seconds{{{NODE}}})",
                "{{instance}} {{reader}}",
                unit="s",
            ),
            _one(
                "How old its values are",
                f"max by (instance, reader) (nodeagent_sample_age_seconds{{{NODE}}})",
                "{{instance}} {{reader}}",
                unit="s",
            ),
            _states(
                "Readers that succeed",
                f"min by (instance, reader) (nodeagent_reader_success{{{NODE}}})",
                "{{instance}} {{reader}}",
                values=YES_NO,
            ),
            _one(
                "Lines of the file of counters that are not used",
                f"nodeagent_counters_ignored{{{NODE}}}",
                "{{instance}}",
                about="The log and /v1/status name them.",
            ),
            _one("Open files", f"process_open_fds{{{NODE}}} {OF_AGENT}", "{{instance}}"),
        ),
    ),
)

VARIABLES = (
    ("node", "label_values(nodeagent_build_info, instance)"),
    ("gpu", f"label_values(DCGM_FI_DEV_POWER_USAGE{{{NODE}}}, gpu)"),
    ("slice", f"label_values(nodeagent_mig_device_info{{{GPU}}}, GPU_I_ID)"),
    ("namespace", f"label_values(nodeagent_gpu_seconds_held_total{{{NODE}}}, namespace)"),
)


def dashboard() -> str:
    """The dashboard as Grafana reads it."""
    content: Json = {
        "uid": "nodeagent",
        "title": "nodeagent: GPUs, slices, MPS",
        "description": "How the GPUs are divided, who uses the parts, and whether they are well.",
        "tags": ["gpu", "nodeagent"],
        "schemaVersion": SCHEMA,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "",
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": [_datasource(), *map(_variable, VARIABLES)]},
        "panels": list(_panels()),
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _datasource() -> Json:
    return {"type": "datasource", "name": "datasource", "label": "source", "query": "prometheus"}


def _variable(variable: tuple[str, str]) -> Json:
    name, query = variable
    return {
        "type": "query",
        "name": name,
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": ["All"], "value": ["$__all"]},
        "refresh": 2,  # whenever the time range changes
        "sort": 3,  # by number
    }


def _panels() -> Iterator[Json]:
    """All panels from left to right and top to bottom, 24 columns wide."""
    y, number = 0, 0
    for title, panels in ROWS:
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "gridPos": {"x": 0, "y": y, "w": 24, "h": 1},
            "panels": [],
        }
        y, x, height = y + 1, 0, 0
        for panel in panels:
            if x + panel.width > 24:
                x, y, height = 0, y + height, 0
            number += 1
            place = {"x": x, "y": y, "w": panel.width, "h": panel.height}
            yield {"id": number, "gridPos": place, **_panel(panel)}
            x, height = x + panel.width, max(height, panel.height)
        y += height


def _panel(panel: Panel) -> Json:
    instant = panel.type in {"table", "stat"}
    return {
        "type": panel.type,
        "title": panel.title,
        **({"description": panel.about} if panel.about else {}),
        "datasource": SOURCE,
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides(panel)},
        "options": _options(panel),
        "targets": [
            {
                "refId": chr(ord("A") + n),
                "datasource": SOURCE,
                "expr": expression,
                "legendFormat": legend,
                "instant": instant,
                "range": not instant,
                "format": "table" if panel.type == "table" else "time_series",
            }
            for n, (expression, legend) in enumerate(panel.queries)
        ],
        **({"transformations": _transformations(panel)} if panel.columns else {}),
    }


def _defaults(panel: Panel) -> Json:
    least, most = panel.limits
    steps = [{"color": color, "value": value} for color, value in panel.steps]
    defaults: Json = {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}}
    if panel.type == "timeseries":
        stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
        defaults["custom"] = {
            "lineWidth": 1,
            "fillOpacity": 30 if panel.stacked else 5,
            "showPoints": "never",
            "stacking": stacking,
            "thresholdsStyle": {"mode": "dashed" if len(panel.steps) > 1 else "off"},
        }
        defaults |= {"min": least} | ({"max": most} if most is not None else {})
    if panel.values:
        options = {
            value: {"text": text, "color": color, "index": n}
            for n, (value, (text, color)) in enumerate(panel.values.items())
        }
        defaults["mappings"] = [{"type": "value", "options": options}]
    return defaults


def _overrides(panel: Panel) -> list[Json]:
    """A table's unit is that of its value alone."""
    if panel.type != "table" or panel.unit == "short":
        return []
    others = [name for name in panel.columns if name != "Value"]
    return [
        {
            "matcher": {"id": "byNames", "options": {"mode": "include", "names": others}},
            "properties": [{"id": "unit", "value": "string"}],
        }
    ]


def _options(panel: Panel) -> Json:
    match panel.type:
        case "timeseries":
            legend = {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull"]}
            return {
                "legend": {"showLegend": True, **legend},
                "tooltip": {"mode": "multi", "sort": "desc"},
            }
        case "stat":
            shown = {"calcs": ["lastNotNull"], "fields": "", "values": False}
            return {"reduceOptions": shown, "colorMode": "value", "graphMode": "none"}
        case "state-timeline":
            return {"showValue": "never", "mergeValues": True, "rowHeight": 0.8}
        case _:
            return {"showHeader": True, "cellHeight": "sm"}


def _transformations(panel: Panel) -> list[Json]:
    """The columns that are wanted, in their order."""
    return [
        {
            "id": "filterFieldsByName",
            "options": {"include": {"names": list(panel.columns)}},
        },
        {
            "id": "organize",
            "options": {"indexByName": {name: n for n, name in enumerate(panel.columns)}},
        },
    ]


if __name__ == "__main__":
    DASHBOARD.write_text(dashboard(), encoding="utf-8")
