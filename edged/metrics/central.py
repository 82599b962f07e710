"""The metrics of the centre: a collector, the fleet by its reports, the aggregation.

A device behind NAT cannot be scraped: its telemetry comes through the uplink, and the collector
exposes the last report.  When reports are missing for some intervals, only `edged_device_up` 0 and
`edged_device_last_seen_timestamp_seconds` remain of the device.
"""

from __future__ import annotations

from dataclasses import replace

from edged.metrics.table import Metric, counter, gauge, histogram, info, table

DEVICES_MAX = 1 << 14
"""Devices of the fleet's view and metrics, unless `edged central collect --devices-max` says
otherwise."""

COLLECTOR = table(
    info("edged_collector_build_info", "Versions.", "version", "python"),
    counter("edged_collector_requests_total", "Requests answered.", "code"),
    counter("edged_collector_pages_total", "Pages landed."),
    counter("edged_collector_page_bytes_total", "Bytes of pages landed."),
    counter("edged_collector_duplicates_total", "Pages dropped as duplicates."),
    counter(
        "edged_collector_page_problems_total",
        "Pages that did not land, by reason; `damaged`: the bytes differ from what was sealed.",
        "problem",
    ),
    gauge(
        "edged_collector_device_share_ratio",
        "Largest use by any device of its share of the landing's disk; at 1 that device waits.",
    ),
    counter("edged_collector_unauthorized_total", "Requests without a valid token."),
    histogram("edged_collector_commit_seconds", "Time of a commit, fsync included."),
    histogram("edged_collector_fsync_seconds", "Time to make the pages of a commit durable."),
    counter(
        "edged_collector_reports_dropped_total",
        "Contacts of devices that found the queue of the fleet's view full; their pages landed.",
    ),
    gauge("edged_collector_devices", "Devices seen by this collector."),
    gauge(
        "edged_collector_metrics_left_out",
        "Devices and series beyond the bounds, left out of this exposition.",
    ),
)

FLEET = table(
    gauge(
        "edged_device_up",
        "Whether the device has reported within its time.",
        "device",
        series_max=DEVICES_MAX,
    ),
    gauge(
        "edged_device_last_seen_timestamp_seconds",
        "Time of the device's last report.",
        "device",
        series_max=DEVICES_MAX,
    ),
    gauge(
        "edged_device_upload_open",
        "Whether the upload windows of the device's last report are open; 1 without windows.",
        "device",
        series_max=DEVICES_MAX,
    ),
    gauge(
        "edged_device_start_time_seconds",
        "When the device's daemon began, by its own clock.",
        "device",
        series_max=DEVICES_MAX,
    ),
    counter(
        "edged_device_restarts_total",
        "Starts of a daemon on the device's store, without the first.",
        "device",
        series_max=DEVICES_MAX,
    ),
    counter(
        "edged_device_rows_total", "Rows taken from streams.", "device", series_max=DEVICES_MAX
    ),
    counter(
        "edged_device_rows_dropped_total",
        "Rows that were not processed.",
        "device",
        series_max=DEVICES_MAX,
    ),
    gauge(
        "edged_device_latency_seconds",
        "99th percentile from arrival to durable, of the device's last minute.",
        "device",
        series_max=DEVICES_MAX,
    ),
    gauge(
        "edged_device_latency_promise_seconds",
        "Tightest latency promise of the device's jobs.",
        "device",
        series_max=DEVICES_MAX,
    ),
    gauge(
        "edged_device_backlog_bytes",
        "Sealed pages that the centre has not acknowledged.",
        "device",
        series_max=DEVICES_MAX,
    ),
    gauge(
        "edged_device_backlog_pages",
        "Sealed pages that the centre has not acknowledged, by number.",
        "device",
        series_max=DEVICES_MAX,
    ),
    gauge(
        "edged_device_held_pages",
        "Pages of the backlog that wait by design: for an upload window, or within a job's "
        "`upload_within`.",
        "device",
        series_max=DEVICES_MAX,
    ),
    gauge(
        "edged_device_backlog_age_seconds",
        "Age of the oldest unacknowledged page, by the device's clock.",
        "device",
        series_max=DEVICES_MAX,
    ),
    gauge(
        "edged_device_store_full",
        "Whether the device's sources wait because the store is full.",
        "device",
        series_max=DEVICES_MAX,
    ),
    gauge(
        "edged_device_gaps",
        "Ranges of pages and of inputs that the device's store has lost for good.",
        "device",
        series_max=DEVICES_MAX,
    ),
    gauge(
        "edged_device_gap_pages",
        "Pages in these ranges.",
        "device",
        series_max=DEVICES_MAX,
    ),
    counter(
        "edged_device_uplink_alarms_total",
        "Errors that must not occur: other bytes under a "
        "page's name, or another process under the device's name.",
        "device",
        series_max=DEVICES_MAX,
    ),
    counter(
        "edged_device_limits_taken_over_total",
        "Times that another process changed a limit that the device had set.",
        "device",
        series_max=DEVICES_MAX,
    ),
    gauge(
        "edged_device_meters_missing",
        "Configured or detected meters that cannot be read.",
        "device",
        series_max=DEVICES_MAX,
    ),
    gauge(
        "edged_device_power_watts",
        "Power of the whole input.",
        "device",
        "source",
        series_max=DEVICES_MAX,
    ),
    counter(
        "edged_device_energy_joules_total",
        "Energy of the whole input.",
        "device",
        "source",
        series_max=DEVICES_MAX,
    ),
    gauge(
        "edged_device_rails_silent",
        "Rails whose meters can no longer be read.",
        "device",
        series_max=DEVICES_MAX,
    ),
    gauge(
        "edged_device_energy_budget_forecast_joules",
        "Energy left at the budget's end at the "
        "current mean power; below 0 the budget does not last.",
        "device",
        series_max=DEVICES_MAX,
    ),
    gauge(
        "edged_device_desired_version",
        "Newest version of the desired state that has reached the device.",
        "device",
        series_max=DEVICES_MAX,
    ),
    gauge(
        "edged_device_applied_version",
        "Version of the desired state that the device has applied.",
        "device",
        series_max=DEVICES_MAX,
    ),
    gauge(
        "edged_device_desired_refused",
        "Whether the device has refused the newest version; `edged central devices` says why.",
        "device",
        series_max=DEVICES_MAX,
    ),
    info(
        "edged_device_info",
        "Version, board and policy of the device.",
        "device",
        "version",
        "board",
        "policy",
        series_max=DEVICES_MAX,
    ),
    gauge(
        "edged_device_jobs",
        "Jobs of the device, by state.",
        "device",
        "state",
        series_max=5 * DEVICES_MAX,
    ),
)


def fleet_of(devices_max: int) -> dict[str, Metric]:
    """FLEET for so many devices."""
    return {
        name: replace(row, series_max=row.series_max // DEVICES_MAX * devices_max)
        for name, row in FLEET.items()
    }


AGGREGATION = table(
    counter("edged_aggregate_batches_total", "Batches, by result.", "result"),
    counter("edged_aggregate_rows_total", "Rows read from the landing."),
    histogram("edged_aggregate_batch_seconds", "Time of a batch."),
    gauge(
        "edged_aggregate_lag_segments", "Segments with pages that the slowest table has not read."
    ),
    gauge("edged_aggregate_lag_bytes", "Bytes of the pages that the slowest table has not read."),
    gauge("edged_aggregate_last_success_timestamp_seconds", "When the last batch succeeded."),
    gauge("edged_aggregate_start_time_seconds", "When the aggregation's process began."),
    gauge("edged_aggregate_trigger_seconds", "Time between two batches; 0: as soon as possible."),
)

COMPACTION = table(
    gauge(
        "edged_compaction_segments", "Segments whose rows are in Parquet, deleted ones included."
    ),
    gauge("edged_compaction_rows", "Rows in the landing's Parquet files."),
    gauge("edged_compaction_bytes", "Bytes of the landing's Parquet files."),
    gauge(
        "edged_compaction_waiting_segments",
        "Sealed segments that are not compacted, without the damaged ones.",
    ),
    gauge("edged_compaction_damaged_segments", "Segments that stay because of damage."),
    gauge(
        "edged_compaction_last_commit_timestamp_seconds",
        "When the newest Parquet files replaced their segments.",
    ),
    gauge(
        "edged_compaction_manifest_unreadable",
        "Whether both lines of the manifest are damaged; the other values are unknown then.",
    ),
)
"""Of the landing, whichever process compacts it: each of its collectors exposes them."""

CENTRAL = {**COLLECTOR, **FLEET, **AGGREGATION, **COMPACTION}
"""All metrics of the centre."""
