"""Generate Grafana's dashboards, packaging/grafana/*.json, from the panels that the TOML files there list.

python tools/generate_dashboards.py           writes them
python tools/generate_dashboards.py --check   exits 1 and names those that are not fresh

Only panels of Grafana's core; the data source is a variable. A test runs every expression against a real Prometheus.
"""

import json
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "packaging" / "grafana"
NAMES = ("fleet", "host", "central")

_SCHEMA_VERSION = 39  # Grafana 11's; newer ones take it over
_SCREEN = 24  # columns
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
#: Width and height of a panel by its kind.
_SIZES = {"timeseries": (8, 8), "stat": (4, 4), "table": (12, 8), "state-timeline": (24, 8)}
_LEGEND = {"displayMode": "list", "placement": "bottom", "showLegend": True}
_OPTIONS: dict[str, dict[str, Any]] = {
    "timeseries": {"legend": _LEGEND, "tooltip": {"mode": "multi", "sort": "desc"}},
    "stat": {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "textMode": "auto",
    },
    "table": {"showHeader": True, "cellHeight": "sm"},
    "state-timeline": {"mergeValues": True, "showValue": "never", "rowHeight": 0.9, "legend": _LEGEND},
}

Table = dict[str, Any]


def _targets(panel: Table, kind: str) -> list[Table]:
    queries = panel.get("queries") or [[panel["expr"], panel.get("legend", "")]]
    is_now = kind in {"table", "stat"}
    return [
        {
            "refId": chr(ord("A") + number),
            "datasource": _SOURCE,
            "expr": expression,
            "legendFormat": legend or "__auto",
            "editorMode": "code",
            "format": "table" if kind == "table" else "time_series",
            "instant": is_now,
            "range": not is_now,
        }
        for number, (expression, legend) in enumerate(queries)
    ]


def _defaults(panel: Table, kind: str) -> Table:
    steps: list[Table] = [{"color": "green", "value": None}]
    if "is_bad_from" in panel:
        steps.append({"color": "red", "value": panel["is_bad_from"]})
    words = panel.get("words", [])
    found: Table = {
        "unit": panel.get("unit", "none"),
        "color": {"mode": "thresholds" if words or len(steps) > 1 else "palette-classic"},
        "thresholds": {"mode": "absolute", "steps": steps},
        "mappings": [],
    }
    if words:
        options = {
            value: {"text": text, "color": color, "index": number} for number, (value, text, color) in enumerate(words)
        }
        found["mappings"] = [{"type": "value", "options": options}]
    if kind == "timeseries":
        is_stacked = panel.get("stack", False)
        found["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 20 if is_stacked else 0,
            "showPoints": "never",
            "stacking": {"mode": "normal" if is_stacked else "none", "group": "A"},
        }
        if panel.get("from_zero", True):
            found["min"] = 0
    return found


def _panels(listed: Sequence[Table]) -> list[Table]:
    """Lay panels out from left to right, and a heading on a line of its own."""
    found: list[Table] = []
    x = y = line = 0
    for number, panel in enumerate(listed, 1):
        kind = panel.get("kind", "timeseries")
        width, height = (_SCREEN, 1) if "row" in panel else _SIZES[kind]
        width = panel.get("width", width)
        if x + width > _SCREEN:
            x, y, line = 0, y + line, 0
        place = {"h": height, "w": width, "x": x, "y": y}
        x, line = x + width, max(line, height)
        if "row" in panel:
            found.append(
                {"id": number, "type": "row", "title": panel["row"], "collapsed": False, "gridPos": place, "panels": []}
            )
            continue
        made: Table = {
            "id": number,
            "type": kind,
            "title": panel["title"],
            "description": panel.get("about", ""),
            "datasource": _SOURCE,
            "gridPos": place,
            "targets": _targets(panel, kind),
            "fieldConfig": {"defaults": _defaults(panel, kind), "overrides": []},
            "options": _OPTIONS[kind],
        }
        if kind == "table":
            hidden = {"Time": True, "__name__": True, "vm": True}
            made["transformations"] = [{"id": "organize", "options": {"excludeByName": hidden}}]
        found.append(made)
    return found


def _variable(variable: Table) -> Table:
    query = variable["query"]
    return {
        "name": variable["name"],
        "label": variable["label"],
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": variable["name"]},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def dashboard(listed: Table) -> Table:
    """Return a dashboard as Grafana imports it, of what its TOML file says."""
    source = {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
        "refresh": 1,
    }
    link = {"title": "whitepanda", "type": "dashboards", "tags": ["whitepanda"], "keepTime": True}
    return {
        "uid": listed["uid"],
        "title": listed["title"],
        "tags": ["whitepanda"],
        "schemaVersion": _SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [link],
        "templating": {"list": [source, *map(_variable, listed["variable"])]},
        "panels": _panels(listed["panel"]),
    }


def main(arguments: list[str]) -> int:
    """Do what the module's docstring says."""
    stale = []
    for name in NAMES:
        listed = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
        path = FOLDER / f"{name}.json"
        text = json.dumps(dashboard(listed), indent=1) + "\n"
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(f"packaging/grafana/{name}.json is not fresh; run tools/generate_dashboards.py")
    for line in stale:
        print(line, file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
