"""Grafana's dashboards: `python deploy/grafana/make.py` writes dashboards/*.json.

`$device` is a device's name at the centre (deploy/prometheus/prometheus.yml).  Rates are over
`$__rate_interval`, or over the five minutes of a recorded series.  A device that is not scraped
has only the panels of what it reports to a collector; its other panels are empty.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from panels import dashboard, lines, stat, table

HERE = Path(__file__).parent / "dashboards"
RUNNING = 'state="running"'
SOURCED = "Figures of energy are measured, modelled or simulated, as their label `source` says."
UP = {1: ("up", "green"), 0: ("silent", "red")}
IN_TIME = {0: ("in time", "green"), 1: ("late", "red")}
TAKEN = {0: ("processed", "green"), 1: ("saturated", "red")}


def of(metric: str, *conditions: str) -> str:
    """The device's series of a metric."""
    selector = ", ".join(('device="$device"', *conditions))
    return f"{metric}{{{selector}}}"


def rate(metric: str, *conditions: str) -> str:
    """The device's rate of a counter."""
    return f"rate({of(metric, *conditions)}[$__rate_interval])"


def by_device(recorded: str, *labels: str) -> str:
    """A recorded series of all devices, without the label `__name__`.

    A table joins the rows of two columns where all labels that both have are equal.
    """
    return f"max by ({', '.join(('device', *labels))}) (device:edged_{recorded})"


def in_mhz(expression: str) -> str:
    """The series with a label `mhz` made from `hertz`, which is too long to read."""
    return f'label_replace({expression}, "mhz", "$1", "hertz", "([0-9]+)[0-9]{{6}}")'


def recorded(series: str) -> str:
    """The device's series of a recorded rule, scraped or reported."""
    return f'device:edged_{series}{{device="$device"}}'


def either(scraped: str, reported: str) -> str:
    """The device's series of a scraped metric and of the collector's counterpart."""
    return f'{{__name__=~"{scraped}|{reported}", device="$device"}}'


FLEET = (
    (
        stat("Devices", "short", "count(device:edged_up:max)",
             description="Devices that are scraped or known to a collector, silent ones included."),
        stat("Silent", "short", "count(device:edged_up:max == 0) or vector(0)", red_from=1,
             description="Devices without a recent scrape or report."),
        stat("Alerts", "short",
             'count(ALERTS{alertstate="firing", alertname=~"Edged.*"}) or vector(0)', red_from=1,
             description="Firing alerts of deploy/prometheus/alerts.rules.yml."),
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
            description=f"Of a silent device only the name is known. {SOURCED}",
        ),
    ),
    (
        lines("Rows taken, the ten busiest", "rowsps",
              ("topk(10, device:edged_rows:rate5m)", "{{device}}")),
        lines("Power, the ten highest", "watt",
              ("topk(10, device:edged_power_watts:max)", "{{device}} ({{source}})"),
              description=SOURCED),
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
              description="Of the whole input, idle power included."),
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
        stat("State", "short", recorded("up:max"), words=UP),
        stat("Jobs running", "short",
             f"sum({of('edged_job_state', RUNNING)}) or max({of('edged_device_jobs', RUNNING)})"),
        stat("Rows taken", "rowsps", recorded("rows:rate5m")),
        stat("Power", "watt", recorded("power_watts:max"), "{{source}}", SOURCED),
        stat("Backlog", "bytes", recorded("backlog_bytes:max")),
        stat("Results", "short", of("edged_promise_missed"), words=IN_TIME),
        stat("Input", "short", of("edged_saturated"), words=TAKEN),
        stat("Restarts", "short",
             f"max({either('edged_restarts_total', 'edged_device_restarts_total')})"),
    ),
    (
        lines("Rows in and out", "rowsps",
              (recorded("rows:rate5m"), "taken"),
              (f"sum by (job_name, sink) ({rate('edged_sink_rows_total')})",
               "out: {{job_name}} {{sink}}")),
        lines("Latency, 99th percentile, and its promise", "s",
              ('job:edged_job_latency_seconds:p99_5m{device="$device"}', "{{job_name}}"),
              (of("edged_job_latency_promise_seconds"), "{{job_name}}: promised"),
              (f"max({of('edged_device_latency_seconds')})", "as reported to the centre"),
              (f"max({of('edged_device_latency_promise_seconds')})", "the smallest: promised"),
              description="Arrival of a beat's oldest row to durable. Exact at the promise."),
        lines("Latency, share of the promise", "percentunit",
              ('job:edged_job_latency_seconds:p99_5m{device="$device"} / on (device, job_name) '
               f"{of('edged_job_latency_promise_seconds')}", "{{job_name}}"),
              thresholds=(0.8, 1.0), description="Above 1 the promise is missed."),
    ),
    (
        lines("Legs, 99th percentile", "s",
              ('leg:edged_leg_seconds:p99_5m{device="$device"}', "{{leg}}"),
              description="arrival_to_race is long by design: the device sleeps meanwhile."),
        lines("Beats", "count:beats/s",
              (rate("edged_beats_total"), "durable"), (rate("edged_beats_idle_total"), "idle")),
        lines("Rows of a beat", "short",
              (f"{rate('edged_batch_rows_sum')} / ({rate('edged_batch_rows_count')} > 0)",
               "mean")),
    ),
    (
        lines("Backlog", "bytes", (recorded("backlog_bytes:max"), "bytes")),
        lines("Oldest page", "s", (recorded("backlog_age_seconds:max"), "age")),
        lines("Uplink", "binBps", (rate("edged_uplink_sent_bytes_total"), "sent")),
        lines("Store", "bytes", (of("edged_store_bytes"), "taken"),
              (of("edged_store_limit_bytes"), "store: upper limit"),
              (of("edged_store_disk_free_bytes"), "free on its file system")),
    ),
    (
        lines("Store, fill", "percentunit", (of("edged_store_fill_ratio"), "taken"),
              thresholds=(0.8, 0.95)),
        lines("Silence of streams", "s",
              (of("edged_stream_silent_seconds"), "{{job_name}} {{stream}}"),
              (of("edged_stream_silent_limit_seconds"), "{{job_name}} {{stream}}: upper limit")),
        lines("Rows in error", "rowsps",
              (rate("edged_operator_error_rows_total"), "{{job_name}} {{operator}}")),
    ),
    (
        lines("Backpressure", "percentunit",
              (rate("edged_source_backpressure_seconds_total"), "{{kind}} {{address}}")),
        lines("Rows staged", "short", (of("edged_stream_staged_rows"), "{{job_name}} {{stream}}")),
        lines("Watermark behind", "s",
              (f"time() - {of('edged_stream_watermark_timestamp_seconds')}",
               "{{job_name}} {{stream}}"),
              description="Prometheus' clock minus event time; large where old data is replayed.",
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

JOULES = either("edged_energy_input_joules_total", "edged_device_energy_joules_total")
BUDGET = either("edged_energy_budget_forecast_joules", "edged_device_energy_budget_forecast_joules")
TAKEN_OVER = either("edged_limits_taken_over_total", "edged_device_limits_taken_over_total")

ENERGY = (
    (
        stat("Power", "watt", recorded("power_watts:max"), "{{source}}", SOURCED),
        stat("Mean power", "watt", recorded("energy_joules:rate5m"), "{{source}}"),
        stat("Per million rows", "joule", f"1e6 * {recorded('energy_joules_per_row:ratio_rate5m')}",
             "{{source}}", "Of the whole input, idle power included."),
        stat("In the time shown", "joule",
             f"max by (source) (increase({JOULES}[$__range]))", "{{source}}"),
        stat("Policy", "short",
             f"max by (policy) ({either('edged_policy_info', 'edged_device_info')})", "{{policy}}",
             named=True),
        stat("Budget at its end", "joule", f"min({BUDGET})", "",
             "Energy left at the current power; empty where the policy has no budget."),
    ),
    (
        lines("Power, mean, and its cap", "watt",
              (recorded("energy_joules:rate5m"), "{{source}}"),
              (of("edged_policy_cap_watts"), "policy: upper limit"), description=SOURCED),
        lines("Power, share of the cap", "percentunit",
              (f"{recorded('energy_joules:rate5m')} / on (device) group_left () "
               f"max by (device) ({of('edged_policy_cap_watts')})", "{{source}}"),
              thresholds=(0.95, 1.02),
              description="Mean of 5 minutes. Empty without a policy that has a cap."),
    ),
    (
        lines("Power by rail", "watt",
              (of("edged_power_rail_watts"), "{{rail}} ({{source}})"),
              description=f"{SOURCED} A rail may be part of another one: do not add them."),
        lines("Energy above idle by phase and operator, mean power", "watt",
              (f"deriv({of('edged_energy_account_joules')}[10m])",
               "{{phase}} {{job_name}} {{operator}} ({{source}})"),
              description="Estimated from the input's meter; see docs/energy.md, The ledger.",
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
        lines("Time at each clock", "percentunit",
              (in_mhz(rate("edged_clock_seconds_total")), "{{clock}} {{mhz}} MHz ({{how}})"),
              aside=True),
        lines("Time of races by clock", "percentunit",
              (in_mhz(rate("edged_race_clock_seconds_total")), "{{mhz}} MHz")),
    ),
    (
        lines("Cores in each sleep state", "short",
              (rate("edged_idle_state_seconds_total"), "{{state}}"),
              description="Core-seconds per second: 1 is one core all the time."),
        lines("Wakeups of cores", "count:/s", (rate("edged_core_wakeups_total"), "wakeups")),
        lines("Limits taken over", "short",
              (f"max(increase({TAKEN_OVER}[$__rate_interval]))", "by others")),
    ),
    (
        lines("Temperature", "celsius",
              (of("edged_temperature_celsius"), "{{zone}}"),
              (f"min by (zone) ({of('edged_temperature_trip_celsius')})", "{{zone}}: trip point"),
              aside=True),
        lines("Headroom, and what it costs", "celsius",
              (of("edged_temperature_headroom_celsius"), "headroom"),
              (f"100 * {rate('edged_heat_held_seconds_total')}", "races held, % of the time"),
              (f"100 * {rate('edged_heat_lowered_seconds_total')}", "clock lowered, % of the time"),
              description="EdgedHeldByHeat fires while races are held.", signed=True),
        lines("Distance to the lowest trip point", "celsius",
              (f"min by (zone) ({of('edged_temperature_trip_celsius')}) - on (zone) "
               f"max by (zone) ({of('edged_temperature_celsius')})", "{{zone}}"),
              description="EdgedHot fires below 5 degrees.", signed=True),
        lines("Throttled", "short",
              (of("edged_throttled"), "{{cause}}"),
              (rate("edged_throttled_seconds_total"), "{{cause}}: share of the time"),
              (rate("edged_throttle_events_total"), "{{cause}}: events a second")),
        lines("GPU load", "percentunit", (of("edged_gpu_load_ratio"), "{{gpu}}")),
    ),
    (
        lines("Meters that can be read", "short", (of("edged_meter_up"), "{{meter}} {{rail}}")),
        lines("Time without a reading", "percentunit",
              (rate("edged_energy_gap_seconds_total"), "{{meter}} {{rail}}")),
    ),
)  # fmt: skip

DASHBOARDS = {
    "fleet": ("edged: fleet", FLEET),
    "device": ("edged: a device", DEVICE),
    "energy": ("edged: energy of a device", ENERGY),
}


def text(name: str) -> str:
    """The contents of a dashboard's file."""
    title, rows = DASHBOARDS[name]
    return json.dumps(dashboard(name, title, rows, name != "fleet"), indent=1) + "\n"


def main() -> None:
    """Write all files.  With `--check` write none; exit with 1 where one would change."""
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
