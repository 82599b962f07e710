"""docs/metrics.md, made from the tables: `python -m edged.metrics.page > docs/metrics.md`."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from edged.metrics import central, device
from edged.metrics.table import LABEL_CHARS_MAX, LABELS, SERIES_MAX, Metric

_HEAD = f"""\
# Metrics

Made from `edged/metrics/`: `python -m edged.metrics.page > docs/metrics.md`; a test keeps it true.

| process | listens on | tells of |
|---|---|---|
| `edged-api` | `[metrics] listen`, 127.0.0.1:9464 | its device |
| `edged central collect` | `--metrics` | itself, and the fleet as it reports itself |
| `edged central aggregate` | `--metrics` | itself |

All are read-only, at `/metrics`. Names, types and units follow
[Prometheus' rules](https://prometheus.io/docs/practices/naming/). What nobody told is left out and
never zero; energy has the label `source`: `measured`, `modelled` or `simulated`. Of each metric
at most {SERIES_MAX} label sets are exposed where the table says no other number, values of labels
are cut at {LABEL_CHARS_MAX} characters, and what is left out is counted. Rates are Prometheus' to
compute.

A device is asked by its API's process, once a second at most: whoever scrapes within that second
gets the same snapshot, and the daemon has nothing to do with HTTP. While the daemon is down
`edged_up` is 0 and stands alone. Behind NAT, telemetry takes the place of scrapes
([centre](central.md)).

## Prometheus and Grafana

| in `deploy/` | |
|---|---|
| `prometheus/prometheus.yml` | scrape configuration; it gives each target its label `device` |
| `prometheus/recording.rules.yml` | one vocabulary, `device:edged_…`, for both kinds of device |
| `prometheus/alerts.rules.yml` | alerts; each says what to do |
| `prometheus/tests/` | `promtool test rules`: each alert with its cause, and without |
| `grafana/dashboards/` | a fleet, a device, its energy; written by `grafana/make.py` |
| `grafana/provisioning/` | what makes Grafana load them from files |

A device that is only heard of through a collector raises the same alerts when it is silent, starts
again and again, has a failed job, a lost meter, a clock that was taken over, a budget that does
not last, a backlog that grows, a full store, dropped rows or a promise that it breaks; which job or
rail it is only a scrape tells. On the dashboards of a device it has the panels of what it reports.

Tested with Prometheus 2.42 (`tests/metrics/`): it scrapes a running daemon on a simulated board,
every expression of the dashboards returns data, and each alert is provoked live, by what it is
about, with times of seconds for minutes: daemons that die, a clock a minute ahead, a full store, a
landing on a slow disk, an aggregation that is gone, and so on.

The dashboards are held against the types that Grafana Labs publish of Grafana 11.6
(`grafana-foundation-sdk`): fields, values and units that Grafana does not know are errors. Its
server could not be had here and was not run. Drawn once with Grafana's own components of 11.6
(`@grafana/ui`, `@grafana/data`) and looked at, they show the figures of a simulated board. Numbers
and tables are of now: what a device that is silent said last is not shown. The help of its metrics
describes each panel.
"""
_PARTS: tuple[tuple[str, str, Mapping[str, Metric]], ...] = (
    ("A device", "The process", device.PROCESS),
    ("", "Beats", device.BEAT),
    ("", "Jobs", device.JOBS),
    ("", "Sources", device.SOURCES),
    ("", "Store", device.STORE),
    ("", "Uplink", device.UPLINK),
    ("", "Energy", device.ENERGY),
    ("", "Clocks", device.CLOCKS),
    ("The centre", "A collector", central.COLLECTOR),
    ("", "The fleet", central.FLEET),
    ("", "The aggregation", central.AGGREGATION),
)


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    for chapter, title, table in _PARTS:
        if chapter:
            parts.append(f"## {chapter}\n")
        rows = "\n".join(_row(metric) for metric in table.values())
        parts.append(f"### {title}\n\n| metric | type | labels | |\n|---|---|---|---|\n{rows}\n")
    labels = "\n".join(f"| `{name}` | {meaning} |" for name, meaning in sorted(LABELS.items()))
    parts.append(f"## Labels\n\n| label | values |\n|---|---|\n{labels}\n")
    return "\n".join(parts)


def _row(metric: Metric) -> str:
    labels = " ".join(f"`{label}`" for label in metric.labels)
    bound = f" ≤ {metric.bound}" if metric.labels and metric.bound != SERIES_MAX else ""
    bound = "" if metric.bound == 1 else bound
    return f"| `{metric.name}` | {metric.kind.value} | {labels}{bound} | {metric.help} |"


if __name__ == "__main__":
    sys.stdout.write(page())
