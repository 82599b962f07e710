"""Writes dashboards/*.json, which Grafana is provisioned with: `python deploy/grafana/make.py`.

A dashboard is rows of panels; a panel is a title, a unit, and expressions with the name that each
of their series gets.  All else that Grafana's JSON wants is the same for all and stands at the end.
`$device` is a device's name at the centre (deploy/prometheus/prometheus.yml); rates are over
`$__rate_interval`, or over the five minutes of a recorded series.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WIDTH, HEIGHT, STAT_HEIGHT = 24, 8, 4
HERE = Path(__file__).parent / "dashboards"
RUNNING = 'state="running"'
SOURCED = "Every figure of energy says whether it was measured, modelled or simulated."


@dataclass(frozen=True)
class Panel:
    """`series`: expressions and their legends.  `unit`: as Grafana calls it."""

    title: str
    unit: str
    series: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    says: str = ""


def lines(title: str, unit: str, *series: tuple[str, str], says: str = "") -> Panel:
    """Lines over time."""
    return Panel(title, unit, series, says=says)


def stat(title: str, unit: str, expression: str, legend: str = "", says: str = "") -> Panel:
    """One number, or one a label."""
    return Panel(title, unit, ((expression, legend),), "stat", says)


def table(title: str, *columns: tuple[str, str], says: str = "") -> Panel:
    """A row for each label set; a column for each expression."""
    return Panel(title, "short", columns, "table", says)


def of(metric: str, *conditions: str) -> str:
    """The device's series of a metric."""
    asked = ", ".join(('device="$device"', *conditions))
    return f"{metric}{{{asked}}}"


def rate(metric: str, *conditions: str) -> str:
    """The device's rate of a counter."""
    return f"rate({of(metric, *conditions)}[$__rate_interval])"


FLEET = (
    (
        stat("Devices", "short", "count(device:edged_up:max)"),
        stat("Silent", "short", "count(device:edged_up:max == 0) or vector(0)"),
        stat("Alerts", "short",
             'count(ALERTS{alertstate="firing", alertname=~"Edged.*"}) or vector(0)'),
        stat("Rows taken", "rowsps", "sum(device:edged_rows:rate5m)"),
        stat("Power", "watt", "sum by (source) (device:edged_power_watts:max)", "{{source}}",
             SOURCED),
        stat("Backlog", "bytes", "sum(device:edged_backlog_bytes:max)"),
    ),
    (
        table(
            "Devices",
            ("device:edged_up:max", "up"),
            ("device:edged_rows:rate5m", "rows/s"),
            ("max by (device) (device:edged_power_watts:max)", "W"),
            ("1e6 * max by (device) (device:edged_energy_joules_per_row:ratio_rate5m)",
             "J per million rows"),
            ("device:edged_backlog_bytes:max", "backlog, bytes"),
            ("device:edged_backlog_age_seconds:max", "oldest page, s"),
            says="A device that is silent has only its name and `up` 0: nobody knows the rest.",
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
        lines("Collectors: pages landed", "ops",
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
        stat("Up", "short", 'device:edged_up:max{device="$device"}'),
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
        lines("Beats", "ops",
              (rate("edged_beats_total"), "durable"), (rate("edged_beats_idle_total"), "idle")),
        lines("Rows of a beat", "short",
              (f"{rate('edged_batch_rows_sum')} / ({rate('edged_batch_rows_count')} > 0)",
               "mean")),
    ),
    (
        lines("Backlog", "bytes", (of("edged_backlog_bytes"), "bytes")),
        lines("Oldest page", "s", (of("edged_backlog_age_seconds"), "age")),
        lines("Uplink", "Bps", (rate("edged_uplink_sent_bytes_total"), "sent")),
        lines("Store", "bytes", (of("edged_store_bytes"), "taken")),
    ),
    (
        lines("Senders kept waiting", "percentunit",
              (rate("edged_source_backpressure_seconds_total"), "{{kind}} {{address}}")),
        lines("Rows staged", "short", (of("edged_stream_staged_rows"), "{{job_name}} {{stream}}")),
        lines("Watermark behind", "s",
              (f"time() - {of('edged_stream_watermark_timestamp_seconds')}",
               "{{job_name}} {{stream}}"),
              says="Event time against Prometheus' clock; large where old data is replayed."),
        lines("Rows dropped", "rowsps", (rate("edged_rows_dropped_total"), "{{reason}}")),
    ),
    (
        lines("State of operators", "bytes",
              (of("edged_operator_state_bytes"), "{{job_name}} {{operator}}")),
        lines("Pairs found", "ops",
              (rate("edged_operator_matches_total"), "{{job_name}} {{operator}}")),
        table("Kernels", (of("edged_operator_kernel_info"), "")),
        table("Jobs", (f"{of('edged_job_state')} == 1", "")),
    ),
    (
        lines("CPU", "percentunit", (rate("edged_cpu_seconds_total"), "cores")),
        lines("Memory", "bytes", (of("edged_resident_memory_bytes"), "resident")),
        lines("Wakeups", "ops",
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
        stat("Policy", "short", of("edged_policy_info"), "{{policy}}"),
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
              says="Estimated from the input's meter; see docs/energy.md, The ledger."),
    ),
    (
        lines("Energy above idle since the start", "joule",
              (of("edged_energy_account_joules"), "{{phase}} {{job_name}} {{operator}}"),
              (of("edged_energy_unattributed_joules"), "unattributed")),
        lines("Half of its 95 % interval", "joule",
              (of("edged_energy_account_error_joules"), "{{phase}} {{job_name}} {{operator}}")),
    ),
    (
        lines("Clocks", "hertz",
              (of("edged_clock_hertz"), "{{clock}}"),
              (of("edged_clock_max_hertz"), "{{clock}}: upper limit")),
        lines("Time at each operating point", "percentunit",
              (rate("edged_clock_seconds_total"), "{{clock}} {{hertz}}")),
        lines("Time of races by clock", "percentunit",
              (rate("edged_race_clock_seconds_total"), "{{hertz}}")),
    ),
    (
        lines("Cores in each idle state", "short",
              (rate("edged_idle_state_seconds_total"), "{{state}}"),
              says="Core-seconds a second: 1 is one core all the time."),
        lines("Wakeups of cores", "ops", (rate("edged_core_wakeups_total"), "wakeups")),
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


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "id": number, "type": panel.kind, "title": panel.title, "description": panel.says,
        "datasource": _DATASOURCE, "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": [
            _target(panel.kind, chr(ord("A") + i), expression, legend)
            for i, (expression, legend) in enumerate(panel.series)
        ],
    }  # fmt: skip
    if panel.kind == "table":
        names = {f"Value #{chr(ord('A') + i)}": legend
                 for i, (_, legend) in enumerate(panel.series) if legend}  # fmt: skip
        hidden = {"Time": True, "__name__": True, "instance": True, "job": True, "Value": True}
        made["transformations"] = [
            {"id": "merge", "options": {}},
            {"id": "organize", "options": {"excludeByName": hidden, "renameByName": names}},
        ]
    if panel.kind == "stat":
        made["options"] = {
            "reduceOptions": {"calcs": ["lastNotNull"]}, "graphMode": "area",
            "textMode": "value_and_name" if panel.series[0][1] else "value",
        }  # fmt: skip
    return made


def _target(kind: str, letter: str, expression: str, legend: str) -> dict[str, Any]:
    target = {"refId": letter, "expr": expression, "datasource": _DATASOURCE}
    if kind == "table":
        return {**target, "format": "table", "instant": True}
    return {**target, "legendFormat": legend or "__auto"}


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
