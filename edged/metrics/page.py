"""docs/metrics.md, made from the tables: `python -m edged.metrics.page > docs/metrics.md`."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from edged.metrics import central, device
from edged.metrics.table import LABEL_CHARS_MAX, LABELS, SERIES_MAX, Metric

_HEAD = f"""\
# Metrics

<!-- Made by `python -m edged.metrics.page > docs/metrics.md` from edged/metrics/: change that. -->

| process | listens on | exposes |
|---|---|---|
| `edged-api` | `[metrics] listen`, 127.0.0.1:9464 | its device |
| `edged central collect` | `--metrics` | itself, the fleet by its reports, compaction |
| `edged central aggregate` | `--metrics` | itself |

All are read-only, at `/metrics`. Names, types and units follow
[Prometheus' rules](https://prometheus.io/docs/practices/naming/). An unknown value is left out and
never zero. Energy has the label `source`: `measured`, `modelled` or `simulated`. Each metric has at
most {SERIES_MAX} label sets where the table has no other number, values of labels are cut at
{LABEL_CHARS_MAX} characters, and what is left out is counted. Prometheus computes rates.

No counter falls while its process lives. A job that is replaced, or deleted and put again, goes on
from the counters of its name, as a source does from those of its kind and address; the series of a
job that is gone are gone. Totals over all jobs keep what deleted jobs have counted. A start of the
daemon may begin at 0.

The API polls the daemon once a second at most; scrapes within that second get the same status.
While the daemon is down, `edged_up` is 0 and stands alone. For devices behind NAT telemetry
replaces scrapes ([centre](central.md#the-fleet-telemetry)).

## Prometheus and Grafana

| in `deploy/` | |
|---|---|
| `prometheus/prometheus.yml` | scrape configuration; it gives each target its label `device` |
| `prometheus/recording.rules.yml` | common names, `device:edged_…`, of all devices |
| `prometheus/alerts.rules.yml` | alerts, each with advice |
| `prometheus/tests/` | `promtool test rules`: each alert with and without its cause |
| `grafana/dashboards/` | the fleet, a device, its energy; written by `grafana/make.py` |
| `grafana/provisioning/` | makes Grafana load them from files |

Prometheus reads its targets from files, so that nothing is scraped, and no alert fires, for a part
that is not there. An aggregation that was never up raises no alert; one that was, and is gone,
does.

### Silent streams

`EdgedNoInput` fires for a stream that has had rows and has none for longer than expected:
`edged_stream_silent_seconds` above `edged_stream_silent_limit_seconds`. The limit is the stream's
`silent_after` ([jobs](jobs.md#streams)). Without it the daemon learns: three times the longest
pause between two arrivals since its start, at least 15 minutes, once rows have come over 15
minutes. Before the first row, after the end of the stream, and while the stream is not read (its
job is paused or drains, the store is full) there is no silence.

### Late and saturated

Two states have hysteresis: `edged_promise_missed` (results are [late](glossary.md)) and
`edged_saturated` (input arrives faster than it is processed). Each begins when more than one beat
in four has its condition, after 15 beats and 2 s at least. It ends when the others outweigh these,
after 45 beats and 10 s without one at least, or when no beats come. At 14 % of late beats neither
begins. `EdgedLatencyOverPromise` is stricter: it fires where one beat in a hundred is late over ten
minutes.

### Reports

A device that is known by its reports only raises the same alerts when it is silent, restarts often,
has a failed job, a lost meter, a clock that was taken over, a budget that does not last, a growing
backlog, a full store, dropped rows or a missed promise. Only a scrape has the name of the job or
rail. The device's dashboard has the panels of what it reports.

`tests/metrics/` runs Prometheus 2.42: it scrapes a daemon on a simulated board, every expression of
the dashboards returns data, and each alert is provoked by its cause, with seconds for minutes. The
dashboards are checked against the types of Grafana 11.6 (`grafana-foundation-sdk`): unknown fields,
values and units are errors. Grafana's server was not run; its components (`@grafana/ui`) drew the
dashboards once. Numbers and tables show current values: the last value of a silent device is not
shown. Each panel is described by the help of its metrics.
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
    ("", "Compaction", central.COMPACTION),
)


def page() -> str:
    """The text of docs/metrics.md."""
    parts = [_HEAD]
    for chapter, title, table in _PARTS:
        if chapter:
            parts.append(f"## {chapter}\n")
        rows = "\n".join(_row(metric) for metric in table.values())
        parts.append(
            f"### {title}\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n{rows}\n"
        )
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
