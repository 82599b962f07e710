"""The metrics of the centre: a collector's, the fleet's as it reports itself, the aggregation's.

A device behind NAT cannot be scraped: its telemetry rides the uplink, and the collector that took
the last of it exposes it.  Once telemetry has been away for some of its intervals only
`edged_device_up` 0 and `edged_device_last_seen_timestamp_seconds` are left of the device.
"""

from __future__ import annotations

from edged.metrics.table import counter, gauge, histogram, info, table

DEVICES_MAX = 4096

COLLECTOR = table(
    info("edged_collector_build_info", "What runs.", "version", "python"),
    counter("edged_collector_requests_total", "Requests answered.", "code"),
    counter("edged_collector_pages_total", "Pages landed."),
    counter("edged_collector_page_bytes_total", "Bytes of pages landed."),
    counter("edged_collector_duplicates_total", "Pages that had landed before."),
    counter("edged_collector_page_problems_total", "Pages that did not land, by why; `damaged` are "
            "those whose bytes are not what was sealed.", "problem"),
    gauge("edged_collector_device_share_ratio", "The largest part of its share of the landing's "
          "disk that a device's pages take; at 1 it has to wait."),
    counter("edged_collector_unauthorized_total", "Requests without a valid token."),
    histogram("edged_collector_commit_seconds", "Time of a commit, the landing's fsync included."),
    histogram("edged_collector_fsync_seconds", "Time to make the pages of a commit durable."),
    gauge("edged_collector_devices", "Devices seen by this collector."),
    gauge("edged_collector_metrics_left_out", "Devices and series left out of this exposition, "
          "beyond the bounds."),
)  # fmt: skip

FLEET = table(
    gauge("edged_device_up", "Whether the device has been heard of within its time.", "device",
          series_max=DEVICES_MAX),
    gauge("edged_device_last_seen_timestamp_seconds", "When it was heard of last.", "device",
          series_max=DEVICES_MAX),
    gauge("edged_device_start_time_seconds", "When its daemon began, by its own clock.", "device",
          series_max=DEVICES_MAX),
    counter("edged_device_restarts_total", "Starts of a daemon on its store, less the first.",
            "device", series_max=DEVICES_MAX),
    counter("edged_device_rows_total", "Rows taken.", "device", series_max=DEVICES_MAX),
    counter("edged_device_rows_dropped_total", "Rows that were not processed.", "device",
            series_max=DEVICES_MAX),
    gauge("edged_device_latency_seconds", "The 99th percentile from arrival to durable, of its "
          "last 1024 beats.", "device", series_max=DEVICES_MAX),
    gauge("edged_device_latency_promise_seconds", "The smallest latency that its jobs promise.",
          "device", series_max=DEVICES_MAX),
    gauge("edged_device_backlog_bytes", "Sealed pages that wait for the centre.", "device",
          series_max=DEVICES_MAX),
    gauge("edged_device_backlog_age_seconds", "How long the oldest has waited, by its own clock.",
          "device", series_max=DEVICES_MAX),
    gauge("edged_device_store_full", "Whether its sources wait for room in the store.", "device",
          series_max=DEVICES_MAX),
    counter("edged_device_uplink_alarms_total", "What should never be: other bytes under a page's "
            "name, or another process that speaks for it.", "device", series_max=DEVICES_MAX),
    counter("edged_device_limits_taken_over_total", "Times that somebody else changed a limit that "
            "it had set.", "device", series_max=DEVICES_MAX),
    gauge("edged_device_meters_missing", "Meters that should be there and cannot be read.",
          "device", series_max=DEVICES_MAX),
    gauge("edged_device_power_watts", "Power of the whole input.", "device", "source",
          series_max=DEVICES_MAX),
    counter("edged_device_energy_joules_total", "Energy of the whole input.", "device", "source",
            series_max=DEVICES_MAX),
    gauge("edged_device_rails_silent", "Rails whose meters cannot be read any more.", "device",
          series_max=DEVICES_MAX),
    gauge("edged_device_energy_budget_forecast_joules", "What its policy's budget has left at its "
          "end at the present mean power; below 0 it does not last.", "device",
          series_max=DEVICES_MAX),
    gauge("edged_device_desired_version", "Newest version of its desired state that has reached "
          "it.", "device", series_max=DEVICES_MAX),
    gauge("edged_device_applied_version", "Version that it has applied.", "device",
          series_max=DEVICES_MAX),
    gauge("edged_device_desired_refused", "Whether it has refused the newest; `edged central "
          "devices` says why.", "device", series_max=DEVICES_MAX),
    info("edged_device_info", "What runs on it.", "device", "version", "board", "policy",
         series_max=DEVICES_MAX),
    gauge("edged_device_jobs", "Its jobs by state.", "device", "state",
          series_max=5 * DEVICES_MAX),
)  # fmt: skip

AGGREGATION = table(
    counter("edged_aggregate_batches_total", "Batches, by how they ended.", "result"),
    counter("edged_aggregate_rows_total", "Rows read from the landing."),
    histogram("edged_aggregate_batch_seconds", "Time of a batch."),
    gauge("edged_aggregate_lag_segments", "Segments with pages that are not in the table "
          "that is furthest behind."),
    gauge("edged_aggregate_lag_bytes", "Bytes of those pages."),
    gauge("edged_aggregate_last_success_timestamp_seconds", "When the last batch ended well."),
)  # fmt: skip

CENTRAL = {**COLLECTOR, **FLEET, **AGGREGATION}
"""All of them."""
