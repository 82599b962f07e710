"""Writes dashboards/*.json, which Grafana is provisioned with: `python deploy/grafana/make.py`.

A dashboard is rows of panels; a panel is a title, a unit, and expressions with the name that each
of their series gets.  The help of the metrics that it is made of describes it (edged/metrics).  All
else that Grafana's JSON wants is the same for all and stands at the end.  What is left out there
Grafana fills in by itself: a number, for instance, is red from 80 on, whatever its unit.
`$device` is a device's name at the centre (deploy/prometheus/prometheus.yml); rates are over
`$__rate_interval`, or over the five minutes of a recorded series.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edged.metrics.central import CENTRAL
from edged.metrics.device import DEVICE as OF_A_DEVICE

WIDTH, HEIGHT, STAT_HEIGHT = 24, 8, 4
HERE = Path(__file__).parent / "dashboards"
RUNNING = 'state="running"'
SOURCED = "Every figure of energy says whether it was measured, modelled or simulated."
UP = {1: ("up", "green"), 0: ("silent", "red")}
SCALES = {"short": 1, "rowsps": 1, "percentunit": 0.1}
"""What an axis reaches at least, by unit: one of nothing but zeros would reach to 10 000 %."""
METRICS = {**OF_A_DEVICE, **CENTRAL}
RULES = HERE.parents[1] / "prometheus" / "recording.rules.yml"
RECORDED = dict(
    re.findall(r"record: (\S+)\n\s+expr:((?:.|\n)*?)(?=\n\s+[-#]|\n\n|\Z)", RULES.read_text())
)
"""Expressions of the recorded series, by name."""


@dataclass(frozen=True)
class Panel:
    """`series`: expressions and their legends, or columns.  `unit`: as Grafana calls it."""

    title: str
    unit: str
    series: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    says: str = ""
    red_from: float | None = None
    """From this value on it is red."""
    words: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    """What values are called, and their colours."""
    units: tuple[str, ...] = ()
    """Of the columns of a table."""
    named: bool = False
    """The legend alone is shown: its value says nothing."""
    signed: bool = False
    """Values may be below zero."""
    aside: bool = False
    """The legend is long, and stands at the side."""


def lines(title: str, unit: str, *series: tuple[str, str], says: str = "", **more: Any) -> Panel:
    """Lines over time."""
    return Panel(title, unit, series, says=says, **more)


def stat(
    title: str, unit: str, expression: str, legend: str = "", says: str = "", **more: Any
) -> Panel:
    """One number of now, or one a label; none of what is silent now."""
    return Panel(title, unit, ((expression, legend),), "stat", says, **more)


def table(title: str, *columns: tuple[str, str, str], says: str = "", **more: Any) -> Panel:
    """A row for each label set; a column, with its unit, for each expression."""
    series = tuple((expression, name) for expression, name, _ in columns)
    return Panel(title, "short", series, "table", says, units=tuple(c[2] for c in columns), **more)


def of(metric: str, *conditions: str) -> str:
    """The device's series of a metric."""
    asked = ", ".join(('device="$device"', *conditions))
    return f"{metric}{{{asked}}}"


def rate(metric: str, *conditions: str) -> str:
    """The device's rate of a counter."""
    return f"rate({of(metric, *conditions)}[$__rate_interval])"


def by_device(recorded: str, *labels: str) -> str:
    """A recorded series of all devices without its name: a table joins rows where all labels that
    two of its columns share are the same, and `__name__` is one of them."""
    return f"max by ({', '.join(('device', *labels))}) (device:edged_{recorded})"


def in_mhz(expression: str) -> str:
    """The series with the label `mhz` after `hertz`: nobody reads ten digits."""
    return f'label_replace({expression}, "mhz", "$1", "hertz", "([0-9]+)[0-9]{{6}}")'


FLEET = (
    (
        stat("Devices", "short", "count(device:edged_up:max)",
             says="Scraped, or known to a collector; the silent ones too."),
        stat("Silent", "short", "count(device:edged_up:max == 0) or vector(0)", red_from=1,
             says="Devices that neither a scrape nor a report has told of lately."),
        stat("Alerts", "short",
             'count(ALERTS{alertstate="firing", alertname=~"Edged.*"}) or vector(0)', red_from=1,
             says="Alerts of deploy/prometheus/alerts.rules.yml that fire."),
        stat("Rows taken", "rowsps", "sum(device:edged_rows:rate5m)"),
        stat("Power", "watt", "sum by (source) (device:edged_power_watts:max)", "{{source}}",
             SOURCED),
        stat("Backlog", "bytes", "sum(device:edged_backlog_bytes:max)"),
    ),
    (
        table(
            "Devices",
            (by_device("up:max"), "state", "short"),
            (by_device("rows:rate5m"), "rows", "rowsps"),
            (by_device("power_watts:max", "source"), "power", "watt"),
            (f"1e6 * {by_device('energy_joules_per_row:ratio_rate5m', 'source')}",
             "per million rows", "joule"),
            (by_device("backlog_bytes:max"), "backlog", "bytes"),
            (by_device("backlog_age_seconds:max"), "oldest page", "s"),
            words=UP,
            says="A device that is silent has only its name: nobody knows the rest. `source` says "
                 f"where power and energy come from. {SOURCED}",
        ),
    ),
    (
        lines("Rows taken, the ten busiest", "rowsps",
              ("topk(10, device:edged_rows:rate5m)", "{{device}}")),
        lines("Power, the ten highest", "watt",
              ("topk(10, device:edged_power_watts:max)", "{{device}} ({{source}})"), says=SOURCED),
    ),
    (
        lines("Backlog, the ten largest", "bytes",
              ("topk(10, device:edged_backlog_bytes:max)", "{{device}}")),
        lines("Oldest page, the ten oldest", "s",
              ("topk(10, device:edged_backlog_age_seconds:max)", "{{device}}")),
    ),
    (
        lines("Energy per million rows", "joule",
              ("1e6 * topk(10, device:edged_energy_joules_per_row:ratio_rate5m)",
               "{{device}} ({{source}})"),
              says="Of the whole input, what the idle board takes included."),
        lines("Rows dropped in 15 minutes", "short",
              ("topk(10, device:edged_rows_dropped:increase15m)", "{{device}}")),
    ),
    (
        lines("Collectors: pages landed", "count:pages/s",
              ("rate(edged_collector_pages_total[$__rate_interval])", "{{instance}}")),
        lines("Collectors: commit, 99th percentile", "s",
              ("collector:edged_collector_commit_seconds:p99_5m", "{{instance}}")),
        lines("Collectors: answers", "reqps",
              ("sum by (code) (rate(edged_collector_requests_total[$__rate_interval]))",
               "{{code}}")),
        lines("Collectors: pages that did not land", "short",
              ("sum by (problem) (increase(edged_collector_page_problems_total[$__rate_interval]))",
               "{{problem}}")),
    ),
)  # fmt: skip

DEVICE = (
    (
        stat("State", "short", 'device:edged_up:max{device="$device"}', words=UP),
        stat("Jobs running", "short", f"sum({of('edged_job_state', RUNNING)})"),
        stat("Rows taken", "rowsps", 'device:edged_rows:rate5m{device="$device"}'),
        stat("Power", "watt", of("edged_power_input_watts"), "{{source}}", SOURCED),
        stat("Backlog", "bytes", of("edged_backlog_bytes")),
        stat("Restarts", "short", of("edged_restarts_total")),
    ),
    (
        lines("Rows in and out", "rowsps",
              (f"sum({rate('edged_rows_total')})", "taken"),
              (f"sum by (job_name, sink) ({rate('edged_sink_rows_total')})",
               "out: {{job_name}} {{sink}}")),
        lines("Latency, 99th percentile, and its promise", "s",
              ('job:edged_job_latency_seconds:p99_5m{device="$device"}', "{{job_name}}"),
              (of("edged_job_latency_promise_seconds"), "{{job_name}}: promised"),
              says="Arrival of a beat's oldest row to durable. Exact at the promise."),
    ),
    (
        lines("Legs, 99th percentile", "s",
              ('leg:edged_leg_seconds:p99_5m{device="$device"}', "{{leg}}"),
              says="arrival_to_race is meant to be long: the device sleeps meanwhile."),
        lines("Beats", "count:beats/s",
              (rate("edged_beats_total"), "durable"), (rate("edged_beats_idle_total"), "idle")),
        lines("Rows of a beat", "short",
              (f"{rate('edged_batch_rows_sum')} / ({rate('edged_batch_rows_count')} > 0)",
               "mean")),
    ),
    (
        lines("Backlog", "bytes", (of("edged_backlog_bytes"), "bytes")),
        lines("Oldest page", "s", (of("edged_backlog_age_seconds"), "age")),
        lines("Uplink", "binBps", (rate("edged_uplink_sent_bytes_total"), "sent")),
        lines("Store", "bytes", (of("edged_store_bytes"), "taken")),
    ),
    (
        lines("Senders kept waiting", "percentunit",
              (rate("edged_source_backpressure_seconds_total"), "{{kind}} {{address}}")),
        lines("Rows staged", "short", (of("edged_stream_staged_rows"), "{{job_name}} {{stream}}")),
        lines("Watermark behind", "s",
              (f"time() - {of('edged_stream_watermark_timestamp_seconds')}",
               "{{job_name}} {{stream}}"),
              says="Event time against Prometheus' clock; large where old data is replayed.",
              signed=True),
        lines("Rows dropped", "rowsps", (rate("edged_rows_dropped_total"), "{{reason}}")),
    ),
    (
        lines("State of operators", "bytes",
              (of("edged_operator_state_bytes"), "{{job_name}} {{operator}}")),
        lines("Pairs found", "count:pairs/s",
              (rate("edged_operator_matches_total"), "{{job_name}} {{operator}}")),
        table("Kernels", (of("edged_operator_kernel_info"), "", "short")),
        table("Jobs", (f"{of('edged_job_state')} == 1", "", "short")),
    ),
    (
        lines("CPU", "percentunit", (rate("edged_cpu_seconds_total"), "cores")),
        lines("Memory", "bytes", (of("edged_resident_memory_bytes"), "resident")),
        lines("Wakeups", "count:/s",
              (rate("edged_wakeups_total"), "of the loop"),
              (rate("edged_context_switches_total"), "context switches")),
        lines("Events", "short",
              (f"sum by (kind) (increase({of('edged_events_total')}[$__rate_interval])) > 0",
               "{{kind}}")),
    ),
)  # fmt: skip

ENERGY = (
    (
        stat("Power", "watt", of("edged_power_input_watts"), "{{source}}", SOURCED),
        stat("Mean power", "watt", 'device:edged_energy_joules:rate5m{device="$device"}',
             "{{source}}"),
        stat("Per million rows", "joule",
             '1e6 * device:edged_energy_joules_per_row:ratio_rate5m{device="$device"}',
             "{{source}}", "Of the whole input, what the idle board takes included."),
        stat("In the time shown", "joule",
             f"increase({of('edged_energy_input_joules_total')}[$__range])", "{{source}}"),
        stat("Policy", "short", of("edged_policy_info"), "{{policy}}", named=True),
        stat("Budget at its end", "joule", of("edged_energy_budget_forecast_joules"), "",
             "What is left at the present power; nothing where the policy keeps no budget."),
    ),
    (
        lines("Power by rail", "watt",
              (of("edged_power_rail_watts"), "{{rail}} ({{source}})"),
              says=f"{SOURCED} A rail may be part of another: do not add them."),
        lines("Energy above idle by phase and operator, mean power", "watt",
              (f"deriv({of('edged_energy_account_joules')}[10m])",
               "{{phase}} {{job_name}} {{operator}} ({{source}})"),
              says="Estimated from the input's meter; see docs/energy.md, The ledger.",
              signed=True),
    ),
    (
        lines("Energy above idle since the start", "joule",
              (of("edged_energy_account_joules"),
               "{{phase}} {{job_name}} {{operator}} ({{source}})"),
              (of("edged_energy_unattributed_joules"), "unattributed ({{source}})"), signed=True),
        lines("Half of its 95 % interval", "joule",
              (of("edged_energy_account_error_joules"),
               "{{phase}} {{job_name}} {{operator}} ({{source}})")),
    ),
    (
        lines("Clocks", "hertz",
              (of("edged_clock_hertz"), "{{clock}}"),
              (of("edged_clock_max_hertz"), "{{clock}}: upper limit")),
        lines("Time at each operating point", "percentunit",
              (in_mhz(rate("edged_clock_seconds_total")), "{{clock}} {{mhz}} MHz ({{how}})"),
              aside=True),
        lines("Time of races by clock", "percentunit",
              (in_mhz(rate("edged_race_clock_seconds_total")), "{{mhz}} MHz")),
    ),
    (
        lines("Cores in each idle state", "short",
              (rate("edged_idle_state_seconds_total"), "{{state}}"),
              says="Core-seconds a second: 1 is one core all the time."),
        lines("Wakeups of cores", "count:/s", (rate("edged_core_wakeups_total"), "wakeups")),
        lines("Limits taken over", "short",
              (f"increase({of('edged_limits_taken_over_total')}[$__rate_interval])", "by others")),
    ),
    (
        lines("Meters that read well", "short", (of("edged_meter_up"), "{{meter}} {{rail}}")),
        lines("Time that nobody read", "percentunit",
              (rate("edged_energy_gap_seconds_total"), "{{meter}} {{rail}}")),
    ),
)  # fmt: skip

DASHBOARDS = {
    "fleet": ("edged: fleet", FLEET),
    "device": ("edged: a device", DEVICE),
    "energy": ("edged: energy of a device", ENERGY),
}


def dashboard(name: str) -> dict[str, Any]:
    """Grafana's JSON of one of them."""
    title, rows = DASHBOARDS[name]
    panels: list[dict[str, Any]] = []
    top = 0
    for row in rows:
        tall = STAT_HEIGHT if row[0].kind == "stat" else HEIGHT
        width = WIDTH // len(row)
        for i, panel in enumerate(row):
            place = {"x": i * width, "y": top, "w": width, "h": tall}
            panels.append(_panel(panel, len(panels) + 1, place))
        top += tall
    variables = [_SOURCE] if name == "fleet" else [_SOURCE, _DEVICE]
    links = [{"type": "dashboards", "title": "edged", "tags": ["edged"], "asDropdown": False,
              "keepTime": True, "includeVars": True}]  # fmt: skip
    return {
        "uid": f"edged-{name}", "title": title, "tags": ["edged"], "schemaVersion": 39,
        "editable": False, "graphTooltip": 1, "refresh": "30s", "timezone": "browser",
        "time": {"from": "now-1h", "to": "now"}, "links": links,
        "templating": {"list": variables}, "panels": panels,
    }  # fmt: skip


def text(name: str) -> str:
    """What stands in the file."""
    return json.dumps(dashboard(name), indent=1) + "\n"


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
        "id": number, "type": panel.kind, "title": panel.title, "description": _says(panel),
        "datasource": _DATASOURCE, "gridPos": place,
        "targets": [
            _target(panel.kind, chr(ord("A") + i), expression, legend)
            for i, (expression, legend) in enumerate(panel.series)
        ],
        **shapes[panel.kind](panel),
    }  # fmt: skip


def _says(panel: Panel) -> str:
    """What the panel says of itself, and the help of the metrics that it is made of."""
    text = " ".join(expression for expression, _ in panel.series)
    for _ in range(2):  # some recorded series are made of others
        text = re.sub(r"[a-z]+:edged_\w+:\w+", lambda found: RECORDED[found[0]], text)
    names = [re.sub("_(sum|count|bucket)$", "", name) for name in re.findall(r"edged_\w+", text)]
    helps = [f"- `{name}`: {METRICS[name].help}" for name in dict.fromkeys(names)]
    return "\n".join([panel.says, ""] * bool(panel.says) + helps).strip()


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
    if panel.unit in SCALES:
        defaults["custom"]["axisSoftMax"] = SCALES[panel.unit]
    dashed = {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 8]}}
    limits = {"matcher": {"id": "byRegexp", "options": "/: (promised|upper limit)$/"},
              "properties": [dashed, {"id": "custom.fillOpacity", "value": 0}]}  # fmt: skip
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
    """One column for each expression beside its labels; a device's name leads to its dashboard."""
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


def main() -> None:
    """Write all files; with `--check` none, and end with 1 where one would change."""
    stale = 0
    for name in DASHBOARDS:
        path, made = HERE / f"{name}.json", text(name)
        if "--check" not in sys.argv:
            path.write_text(made)
        stale |= path.read_text() != made
        sys.stdout.write(f"{path}\n")
    sys.exit(stale)


if __name__ == "__main__":
    main()
