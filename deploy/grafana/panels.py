"""Rows of panels as Grafana's JSON of a dashboard.

A panel is a title, a unit, and expressions with legends.  Its description is made from the help of
its metrics (edged/metrics).  All other fields are the same for all panels.  A field that is missing
here gets Grafana's default: a number, for instance, would be red from 80 on whatever its unit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edged.metrics.central import CENTRAL
from edged.metrics.device import DEVICE as OF_A_DEVICE

WIDTH, HEIGHT, STAT_HEIGHT = 24, 8, 4
SCALES = {"short": 1, "rowsps": 1, "percentunit": 0.1}
"""Least upper end of an axis, by unit: an axis of zeros would reach to 10 000 %."""
METRICS = {**OF_A_DEVICE, **CENTRAL}
RULES = Path(__file__).parents[1] / "prometheus" / "recording.rules.yml"
RECORDED = dict(
    re.findall(r"record: (\S+)\n\s+expr:((?:.|\n)*?)(?=\n\s+[-#]|\n\n|\Z)", RULES.read_text())
)
"""Expressions of recorded series, by name."""


@dataclass(frozen=True)
class Panel:
    """One panel.  `series`: expressions with legends, or columns.  `unit`: Grafana's name."""

    title: str
    unit: str
    series: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    description: str = ""
    red_from: float | None = None
    """Values from this one on are red."""
    thresholds: tuple[float, float] | None = None
    """Values from which lines are in the yellow and in the red; both are drawn dashed."""
    words: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    """Words and colours of values."""
    units: tuple[str, ...] = ()
    """Units of a table's columns."""
    named: bool = False
    """Whether only the legend is shown, without the value."""
    signed: bool = False
    """Whether values may be below zero."""
    aside: bool = False
    """Whether the legend is at the side, for long legends."""


def lines(
    title: str, unit: str, *series: tuple[str, str], description: str = "", **more: Any
) -> Panel:
    """A panel of lines over time."""
    return Panel(title, unit, series, description=description, **more)


def stat(
    title: str, unit: str, expression: str, legend: str = "", description: str = "", **more: Any
) -> Panel:
    """A panel of current numbers, one a label; none of silent devices."""
    return Panel(title, unit, ((expression, legend),), "stat", description, **more)


def table(title: str, *columns: tuple[str, str, str], description: str = "", **more: Any) -> Panel:
    """A table: one row a label set; one column, with its unit, an expression."""
    series = tuple((expression, name) for expression, name, _ in columns)
    return Panel(
        title, "short", series, "table", description, units=tuple(c[2] for c in columns), **more
    )


Rows = Sequence[Sequence[Panel]]


def dashboard(name: str, title: str, rows: Rows, of_a_device: bool) -> dict[str, Any]:
    """Grafana's JSON of a dashboard; one `of_a_device` has a variable for the device."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row in rows:
        tall = STAT_HEIGHT if row[0].kind == "stat" else HEIGHT
        width = WIDTH // len(row)
        for i, panel in enumerate(row):
            place = {"x": i * width, "y": top, "w": width, "h": tall}
            panels.append(_panel(panel, len(panels) + 1, place))
        top += tall
    variables = [_SOURCE, _DEVICE] if of_a_device else [_SOURCE]
    links = [{"type": "dashboards", "title": "edged", "tags": ["edged"], "asDropdown": False,
              "keepTime": True, "includeVars": True}]  # fmt: skip
    return {
        "uid": f"edged-{name}", "title": title, "tags": ["edged"], "schemaVersion": 39,
        "editable": False, "graphTooltip": 1, "refresh": "30s", "timezone": "browser",
        "time": {"from": "now-1h", "to": "now"}, "links": links,
        "templating": {"list": variables}, "panels": panels,
    }  # fmt: skip


_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_SOURCE = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
_DEVICE = {
    "name": "device", "type": "query", "datasource": _DATASOURCE, "label": "Device", "refresh": 2,
    "sort": 1, "query": {"query": "label_values(device:edged_up:max, device)", "refId": "device"},
}  # fmt: skip
_HIDDEN = ("Time", "__name__", "instance", "job", "epoch", "Value")
_OPEN = [
    {"title": "Open it", "url": "/d/edged-device?var-device=${__value.raw}&${__url_time_range}"}
]


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    shapes = {"timeseries": _lines, "stat": _stat, "table": _table}
    return {
        "id": number, "type": panel.kind, "title": panel.title, "description": _description(panel),
        "datasource": _DATASOURCE, "gridPos": place,
        "targets": [
            _target(panel.kind, chr(ord("A") + i), expression, legend)
            for i, (expression, legend) in enumerate(panel.series)
        ],
        **shapes[panel.kind](panel),
    }  # fmt: skip


def _description(panel: Panel) -> str:
    """The panel's description: its own text, and the help of its metrics."""
    text = " ".join(expression for expression, _ in panel.series)
    for _ in range(2):  # some recorded series are made of others
        text = re.sub(r"[a-z]+:edged_\w+:\w+", lambda found: RECORDED[found[0]], text)
    names = [re.sub("_(sum|count|bucket)$", "", name) for name in re.findall(r"edged_\w+", text)]
    helps = [f"- `{name}`: {METRICS[name].help}" for name in dict.fromkeys(names)]
    return "\n".join([panel.description, ""] * bool(panel.description) + helps).strip()


def _target(kind: str, letter: str, expression: str, legend: str) -> dict[str, Any]:
    target = {"refId": letter, "expr": expression, "datasource": _DATASOURCE}
    now = {"instant": True, "range": False}
    if kind == "table":
        return {**target, **now, "format": "table"}
    return {**target, **(now if kind == "stat" else {}), "legendFormat": legend or "__auto"}


def _lines(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "unit": panel.unit, "custom": {"fillOpacity": 8, "showPoints": "never", "spanNulls": False},
    }  # fmt: skip
    if not panel.signed:
        defaults["min"] = 0
    if panel.thresholds is not None:
        colours = (("yellow", panel.thresholds[0]), ("red", panel.thresholds[1]))
        steps = [{"value": None, "color": "green"}]
        steps += [{"value": value, "color": color} for color, value in colours]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
        defaults["custom"]["thresholdsStyle"] = {"mode": "dashed"}
    if panel.unit in SCALES:
        defaults["custom"]["axisSoftMax"] = SCALES[panel.unit]
    dashed = {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 8]}}
    red = {"id": "color", "value": {"mode": "fixed", "fixedColor": "red"}}
    limits = {"matcher": {"id": "byRegexp", "options": "/: (promised|upper limit)$/"},
              "properties": [dashed, {"id": "custom.fillOpacity", "value": 0}, red]}  # fmt: skip
    return {
        "fieldConfig": {"defaults": defaults, "overrides": [limits]},
        "options": {
            "legend": {"showLegend": True, "displayMode": "list", "calcs": [],
                       "placement": "right" if panel.aside else "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    }  # fmt: skip


def _stat(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, **_called(panel.words)}
    if panel.red_from is not None:
        steps = [{"value": None, "color": "green"}, {"value": panel.red_from, "color": "red"}]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
        defaults["color"] = {"mode": "thresholds"}
    else:
        defaults["color"] = {"mode": "fixed", "fixedColor": "text"}
    legend = panel.series[0][1]
    return {
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {
            "reduceOptions": {"calcs": ["lastNotNull"]},
            "graphMode": "none",
            "colorMode": "value",
            "textMode": "name" if panel.named else "value_and_name" if legend else "value",
        },
    }  # fmt: skip


def _table(panel: Panel) -> dict[str, Any]:
    """Columns for labels and expressions; a device's name links to its dashboard."""
    letters = {f"Value #{chr(ord('A') + i)}": name for i, (_, name) in enumerate(panel.series)}
    names = {letter: name for letter, name in letters.items() if name}
    overrides = [
        {
            "matcher": {"id": "byName", "options": name},
            "properties": [{"id": "unit", "value": unit}],
        }
        for name, unit in zip(names.values(), panel.units, strict=False)
    ]
    if panel.words:
        first = overrides[0]["properties"]
        first += [{"id": id_, "value": value} for id_, value in _called(panel.words).items()]
        first.append({"id": "custom.cellOptions", "value": {"type": "color-text"}})
    overrides.append({"matcher": {"id": "byName", "options": "device"},
                      "properties": [{"id": "links", "value": _OPEN}]})  # fmt: skip
    return {
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": overrides},
        "transformations": [
            {"id": "merge", "options": {}},
            {"id": "organize", "options": {"excludeByName": dict.fromkeys(_HIDDEN, True),
                                           "renameByName": names}},
        ],
    }  # fmt: skip


def _called(words: Mapping[int, tuple[str, str]]) -> dict[str, Any]:
    """Grafana's mapping of values to words and colours."""
    if not words:
        return {}
    options = {str(value): {"text": text, "color": color, "index": i}
               for i, (value, (text, color)) in enumerate(words.items())}  # fmt: skip
    return {"mappings": [{"type": "value", "options": options}]}
