"""Write dashboard.json and dashboard-use.json in manifests/monitoring, the Grafana dashboards, out
of the rows in dashboard/.

python -m tools.make_dashboard
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.dashboard.agent_rows import AGENT_ROWS
from tools.dashboard.claim_rows import CLAIM_ROWS
from tools.dashboard.gpu_rows import GPU_ROWS
from tools.dashboard.panels import GPU, NODE, Panel, Rows
from tools.dashboard.use_rows import ALL_HELD, USE_ROWS

DASHBOARD = Path(__file__).parents[1] / "manifests/monitoring/dashboard.json"
USE = DASHBOARD.with_name("dashboard-use.json")

Json = dict[str, Any]

SOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
SCHEMA = 42  # the last one of Grafana's version 1 of dashboards; older Grafanas read it too

HEADERS = {"GPU_I_PROFILE": "profile", "GPU_I_ID": "instance id"}  # of labels as DCGM names them

WIDTHS = {"mig_uuid": 350, "resource": 350}  # of columns, in pixels

VARIABLES = (
    ("node", "label_values(nodeagent_build_info, instance)"),
    ("gpu", f"label_values(DCGM_FI_DEV_POWER_USAGE{{{NODE}}}, gpu)"),
    ("slice", f"label_values(nodeagent_mig_device_info{{{GPU}}}, GPU_I_ID)"),
    ("namespace", f"label_values(nodeagent_held_seconds_total{{{NODE}}}, namespace)"),
)


def dashboard() -> str:
    """The dashboard of GPUs as Grafana reads it."""
    return _text(
        uid="nodeagent",
        title="nodeagent: GPUs, slices, MPS",
        about="How the GPUs are divided, who uses the parts, and whether they are well.",
        times=("now-3h", "30s"),
        variables=list(map(_variable, VARIABLES)),
        rows=(*GPU_ROWS, *CLAIM_ROWS, *AGENT_ROWS),
    )


def use_dashboard() -> str:
    """The dashboard of who uses what."""
    price = {
        "type": "textbox",
        "name": "price",
        "label": "price of a GPU-hour",
        "query": "2",
        "current": {"text": "2", "value": "2"},
    }
    return _text(
        uid="nodeagent-use",
        title="nodeagent: who uses what",
        about="Who held GPUs, how much of them was used, and what would do.",
        times=("now-7d", "5m"),
        variables=[_variable(("namespace", f"label_values({ALL_HELD}, namespace)")), price],
        rows=USE_ROWS,
    )


def _text(
    *, uid: str, title: str, about: str, times: tuple[str, str], variables: list[Json], rows: Rows
) -> str:
    begin, refresh = times
    content: Json = {
        "uid": uid,
        "title": title,
        "description": about,
        "tags": ["gpu", "nodeagent"],
        "schemaVersion": SCHEMA,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": refresh,
        "time": {"from": begin, "to": "now"},
        "timezone": "",
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": [_datasource(), *variables]},
        "panels": list(_panels(rows)),
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


def _panels(rows: Rows) -> Iterator[Json]:
    """All panels from left to right and top to bottom, 24 columns wide."""
    y, number = 0, 0
    for title, panels in rows:
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
    defaults: Json = {"thresholds": {"mode": "absolute", "steps": steps}}
    if panel.type == "table":
        defaults["custom"] = {"wrapText": True, "minWidth": 80}
    else:
        defaults |= _unit(panel)
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
    if panel.type != "table":
        return []
    wanted = {panel.value: _unit(panel)} if "Value" in panel.columns else {}
    wanted |= {name: {"custom.width": WIDTHS[name]} for name in panel.columns if name in WIDTHS}
    return [
        {
            "matcher": {"id": "byName", "options": name},
            "properties": [{"id": key, "value": value} for key, value in changed.items()],
        }
        for name, changed in wanted.items()
    ]


def _unit(panel: Panel) -> Json:
    decimals = {} if panel.decimals is None else {"decimals": panel.decimals}
    return {"unit": panel.unit, **decimals}


def _options(panel: Panel) -> Json:
    match panel.type:
        case "timeseries":
            legend = {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull"]}
            return {  # the highest first: a few rows of the legend are seen
                "legend": {"showLegend": True, **legend, "sortBy": "Last *", "sortDesc": True},
                "tooltip": {"mode": "multi", "sort": "desc"},
            }
        case "stat":
            shown = {"calcs": ["lastNotNull"], "fields": "", "values": False}
            return {"reduceOptions": shown, "colorMode": "value", "graphMode": "none"}
        case "state-timeline":
            return {"showValue": "never", "mergeValues": True, "rowHeight": 0.8, "perPage": 20}
        case _:
            # What has a value is ordered by its query.
            by = [] if "Value" in panel.columns else [HEADERS.get(n, n) for n in panel.columns[:3]]
            order = [{"displayName": name, "desc": False} for name in by]
            return {"showHeader": True, "cellHeight": "sm", "sortBy": order}


def _transformations(panel: Panel) -> list[Json]:
    """The columns that are wanted, in their order."""
    return [
        {
            "id": "filterFieldsByName",
            "options": {"include": {"names": list(panel.columns)}},
        },
        {
            "id": "organize",
            "options": {
                "indexByName": {name: n for n, name in enumerate(panel.columns)},
                "renameByName": {
                    name: {"Value": panel.value, **HEADERS}[name]
                    for name in panel.columns
                    if name in {"Value", *HEADERS}
                },
            },
        },
    ]


if __name__ == "__main__":
    DASHBOARD.write_text(dashboard(), encoding="utf-8")
    USE.write_text(use_dashboard(), encoding="utf-8")
