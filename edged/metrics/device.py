"""The metrics of one daemon, made from its status document (docs/control.md).

Counters start at 0 with the daemon's process.  A metric of something that the device does not have
(a board, an uplink, a limit of its store) is left out.
"""

from __future__ import annotations

from edged.metrics.table import counter, gauge, histogram, info, table

_JOB = ("job_name",)
_STREAM = ("job_name", "stream")
_OPERATOR = ("job_name", "operator")
_SINK = ("job_name", "sink")
_LINK = (*_SINK, "receiver")
_INPUT = ("kind", "address")
_RAIL = ("meter", "rail", "part_of", "source")
_ACCOUNT = ("job_name", "operator", "phase", "source")

JOB_STATES = ("running", "paused", "draining", "drained", "failed", "shelved")
LINK_STATES = ("idle", "connecting", "greeting", "connected", "backing_off", "refused")
EVENT_KINDS = (
    *("daemon.started", "daemon.recovered", "daemon.stopping"),
    "sources.ended",
    *("job.created", "job.replaced", "job.paused", "job.resumed", "job.draining", "job.drained"),
    *("job.deleted", "job.failed", "job.shelved", "kernel.switched", "policy.switched"),
    *("gpu.left", "gpu.returned"),
    *("suspend.late", "suspend.failed", "suspend.ended"),
    *("policy.fell_back", "heat.holds", "heat.eased"),
    *("limits.taken_over", "limits.restored", "meter.lost", "meter.back", "store.full"),
    *("store.room", "store.gap", "uplink.down", "uplink.up", "uplink.alarm", "input.set_aside"),
    *("plugin.failed", "store.migrated", "store.salvaged", "operator.refused"),
    *(
        "desired.applied",
        "desired.refused",
        "source.refused",
        "peer.defect",
        "config.reloaded",
        "config.refused",
    ),
    *("stream.late", "stream.ahead", "producer.behind", "producer.in_time"),
    *("promise.missed", "promise.kept", "saturation.begun", "saturation.ended"),
)
"""The kinds of events; docs/control.md describes them."""

PROCESS = table(
    gauge("edged_up", "Whether the daemon answered; if not, there are no other metrics."),
    info("edged_build_info", "Versions.", "version", "python", "numba", "platform", "kernels"),
    info(
        "edged_daemon_info",
        "The device, its board, and the epoch of its store.",
        "name",
        "epoch",
        "board",
        "simulated",
    ),
    info(
        "edged_board_info",
        "The board; `simulated`: its power, clocks and sleep states are not this machine's.",
        "board",
        "profile",
        "power_model",
        "processor",
        "simulated",
    ),
    gauge("edged_state", "The daemon's state.", "state"),
    gauge("edged_snapshot_timestamp_seconds", "When the status was taken, by the device's clock."),
    gauge("edged_start_time_seconds", "When the daemon's process began, by the device's clock."),
    counter("edged_restarts_total", "Starts of a daemon on this store, without the first."),
    counter("edged_cpu_seconds_total", "CPU time of the daemon's process."),
    gauge("edged_resident_memory_bytes", "Memory of the daemon's process."),
    gauge("edged_threads", "Threads of the daemon's process."),
    counter("edged_context_switches_total", "Context switches of the daemon's process."),
    counter("edged_wakeups_total", "Wakes of the daemon's main loop."),
    counter("edged_events_total", "Events by kind; docs/control.md lists them.", "kind"),
    gauge("edged_metrics_left_out", "Series beyond the bounds, left out of this exposition."),
)

BEAT = table(
    counter("edged_beats_total", "Durable beats."),
    counter("edged_beats_idle_total", "Beats without work."),
    counter("edged_rows_total", "Rows taken from streams by durable beats."),
    counter("edged_pages_total", "Pages sealed."),
    histogram("edged_batch_rows", "Rows that a beat took."),
    histogram(
        "edged_leg_seconds",
        "Time of each leg, one observation per beat that took rows. "
        "`arrival_to_…` counts from the beat's oldest row; `durable_to_landed` has one "
        "observation per page.",
        "leg",
    ),
    counter("edged_rows_dropped_total", "Rows that were not processed, by reason.", "reason"),
    gauge(
        "edged_promise_missed",
        "Whether results are late: a latency promise is missed by more than one beat in four, with "
        "hysteresis.",
    ),
    gauge(
        "edged_saturated",
        "Whether input arrives faster than it is processed, so that senders wait; with hysteresis. "
        "A join that waits for its other stream is not saturated.",
    ),
)

JOBS = table(
    gauge("edged_job_state", "A job's state.", "job_name", "state", series_max=320),
    gauge("edged_job_version", "Version of a job's document.", *_JOB),
    gauge("edged_job_latency_promise_seconds", "Latency that a job promises.", *_JOB),
    histogram(
        "edged_job_latency_seconds",
        "From the arrival of a beat's oldest row until the job's results are durable.",
        *_JOB,
    ),
    counter("edged_stream_rows_total", "Rows of a stream that beats have taken.", *_STREAM),
    gauge("edged_stream_staged_rows", "Rows of a stream that wait in staging.", *_STREAM),
    counter("edged_stream_late_rows_total", "Rows behind the watermark.", *_STREAM),
    counter(
        "edged_stream_ahead_rows_total",
        "Rows refused because their time is too far ahead.",
        *_STREAM,
    ),
    gauge(
        "edged_stream_silent_seconds",
        "Time since a stream's last rows; absent before the first, after the last, and while the "
        "stream is not read.",
        *_STREAM,
    ),
    gauge(
        "edged_stream_silent_limit_seconds",
        "Longest silence of a stream that is expected; absent while it is not known.",
        *_STREAM,
    ),
    gauge(
        "edged_table_populated",
        "Whether a table's first rows are there; until then `edged_stream_rows_total` counts them.",
        *_STREAM,
    ),
    gauge(
        "edged_table_expected_rows",
        "Rows that a table's source has, where it knows.",
        *_STREAM,
    ),
    gauge(
        "edged_table_read_ratio",
        "Part of a table's input that is read, where its source knows.",
        *_STREAM,
    ),
    gauge("edged_stream_producers", "Producers that a stream has had.", *_STREAM),
    gauge(
        "edged_stream_producers_behind",
        "Producers so far behind that their stream no longer waits for them.",
        *_STREAM,
    ),
    gauge(
        "edged_stream_watermark_timestamp_seconds",
        "A stream's watermark, in event time; none before the first row and after the last.",
        *_STREAM,
    ),
    gauge("edged_operator_state_bytes", "Size of an operator's state.", *_OPERATOR),
    counter("edged_operator_matches_total", "Pairs found by a join.", *_OPERATOR),
    counter("edged_operator_error_rows_total", "Rows on which an expression failed.", *_OPERATOR),
    info(
        "edged_operator_kernel_info",
        "Kernel that an operator runs.",
        "job_name",
        "operator",
        "kernel",
        series_max=64,
    ),
    counter("edged_sink_rows_total", "Rows written by a sink.", *_SINK),
    gauge("edged_sink_open_rows", "Rows of a sink in pages that are not sealed yet.", *_SINK),
    gauge("edged_sink_open_bytes", "Memory of a sink's pages that are not sealed yet.", *_SINK),
    gauge("edged_sink_open_limit_bytes", "Memory that a sink's open pages may take.", *_SINK),
    counter("edged_sink_pages_total", "Pages sealed by a sink.", *_SINK),
    counter(
        "edged_sink_pages_early_total", "Pages sealed to bound the memory of open pages.", *_SINK
    ),
    counter("edged_sink_pages_compressed_total", "Pages of a sink that are compressed.", *_SINK),
    counter("edged_sink_page_bytes_total", "Bytes of sealed pages.", *_SINK),
    counter("edged_sink_page_raw_bytes_total", "Bytes of sealed pages before compression.", *_SINK),
    counter("edged_link_rows_total", "Rows sent to a receiver, resends included.", *_LINK),
    counter("edged_link_bytes_total", "Bytes sent to a link's receiver.", *_LINK),
    counter("edged_link_connections_total", "Connections made to a link's receiver.", *_LINK),
    counter("edged_link_failures_total", "Connections to a receiver that have failed.", *_LINK),
    gauge("edged_link_in_flight_bytes", "Bytes that a receiver has not acknowledged.", *_LINK),
    gauge("edged_link_state", "State of a link's connection.", *_LINK, "state"),
)

SOURCES = table(
    gauge("edged_source_connections", "Connections to a source.", *_INPUT),
    counter("edged_source_bytes_total", "Bytes received.", *_INPUT),
    counter("edged_source_rows_total", "Rows received.", *_INPUT),
    counter("edged_source_refused_total", "Connections and messages refused.", *_INPUT),
    counter("edged_source_duplicates_total", "Messages dropped as duplicates.", *_INPUT),
    counter(
        "edged_source_backpressure_seconds_total",
        "Time in which a source did not read because staging, store or links were full.",
        *_INPUT,
    ),
)

STORE = table(
    gauge("edged_store_bytes", "Size of the store."),
    gauge("edged_store_limit_bytes", "Limit of the store's size; absent without a limit."),
    gauge("edged_store_disk_bytes", "Size of the file system that holds the store."),
    gauge("edged_store_disk_free_bytes", "Free bytes of the file system that holds the store."),
    gauge(
        "edged_store_room_bytes",
        "Bytes that the store may still take: up to its limit, and at most what its file system "
        "has free.",
    ),
    gauge(
        "edged_store_fill_ratio",
        "Share of the store's limit that it may not take any more; without a limit, of its file "
        "system.",
    ),
    gauge("edged_store_full", "Whether sources wait because the store is full."),
    counter("edged_store_full_seconds_total", "Time in which sources waited for the store."),
    counter("edged_store_fsyncs_total", "Syncs of the log."),
    counter(
        "edged_store_salvaged_total", "Damaged places of the store that this process has passed."
    ),
    gauge("edged_store_gaps", "Ranges of pages and of inputs that this store has lost for good."),
    gauge("edged_store_gap_pages", "Pages in these ranges."),
    gauge("edged_store_gap_rows", "Rows in these ranges, as far as they are known."),
    gauge("edged_backlog_bytes", "Sealed pages that the centre has not acknowledged."),
    gauge("edged_backlog_pages", "Sealed pages that the centre has not acknowledged, by number."),
    gauge(
        "edged_backlog_age_seconds",
        "Age of the oldest unacknowledged page; 0 without any. By the device's clock.",
    ),
)

UPLINK = table(
    gauge("edged_uplink_connected", "Whether the last request to the collector succeeded."),
    gauge("edged_uplink_state", "The uplink's state.", "state"),
    gauge("edged_uplink_open", "Whether pages may be sent now; 0 outside the upload windows."),
    gauge(
        "edged_uplink_held_pages",
        "Pages of the backlog that wait by design: for an upload window, or within a job's "
        "`upload_within`.",
    ),
    counter("edged_uplink_pages_sent_total", "Pages sent, resends included."),
    counter("edged_uplink_sent_bytes_total", "Bytes sent, resends included."),
    counter("edged_uplink_pages_acked_total", "Pages acknowledged by the centre."),
    counter("edged_uplink_requests_total", "Requests answered."),
    counter("edged_uplink_retries_total", "Requests that failed and were retried."),
    counter(
        "edged_uplink_alarms_total",
        "Errors that must not occur: other bytes under a page's "
        "name, or another process under this device's name.",
    ),
    gauge(
        "edged_uplink_stuck_partitions",
        "Partitions whose pages are not accepted, by reason.",
        "problem",
    ),
    gauge("edged_uplink_last_ack_timestamp_seconds", "When the last page was acknowledged."),
    counter("edged_uplink_starts_total", "Starts of the uplink's process."),
)

ENERGY = table(
    counter(
        "edged_energy_input_joules_total",
        "Energy of the whole input, by the best available meter, else by the model.",
        "source",
    ),
    gauge("edged_power_input_watts", "Power of the whole input, as last read.", "source"),
    counter(
        "edged_energy_rail_joules_total",
        "Energy of a rail. Add rails only where `part_of` is empty and one meter reads them.",
        *_RAIL,
    ),
    gauge("edged_power_rail_watts", "Power of a rail, as last read.", *_RAIL),
    counter(
        "edged_energy_gap_seconds_total",
        "Time for which a rail's energy is unknown.",
        "meter",
        "rail",
    ),
    gauge(
        "edged_energy_account_joules",
        "Estimated energy above idle of a job's operator in a "
        "phase; a gauge, since an estimate may be corrected downwards.",
        *_ACCOUNT,
        series_max=512,
    ),
    gauge(
        "edged_energy_account_input_joules",
        "Estimated energy of a job's operator in a "
        "phase, with its share of the idle board's energy.",
        *_ACCOUNT,
        series_max=512,
    ),
    gauge(
        "edged_energy_account_error_joules",
        "Half of the 95 % interval of the energy above idle.",
        *_ACCOUNT,
        series_max=512,
    ),
    gauge(
        "edged_energy_unattributed_joules", "Measured energy that no account explains.", "source"
    ),
    gauge("edged_energy_budget_left_joules", "Energy that the policy may still spend.", "source"),
    gauge("edged_energy_budget_left_seconds", "Time until the budget ends.", "source"),
    gauge(
        "edged_energy_budget_forecast_joules",
        "Energy left at the budget's end at the current "
        "mean power; below 0 the budget does not last.",
        "source",
    ),
    gauge("edged_meter_up", "Whether a meter's last reading of a rail succeeded.", "meter", "rail"),
    counter("edged_suspends_total", "Suspends of the machine between beats."),
    counter("edged_suspends_late_total", "Suspends after which the machine was back too late."),
    counter("edged_suspends_failed_total", "Suspends that failed for another reason."),
    counter("edged_suspended_seconds_total", "Time for which the machine was suspended."),
    info(
        "edged_suspend_problem_info",
        "Why the machine is not suspended although `energy.suspend` asks for it; empty: it is, or "
        "nothing asks.",
        "problem",
    ),
    gauge("edged_meters_missing", "Configured or detected meters that cannot be read."),
)

CLOCKS = table(
    gauge("edged_clock_hertz", "Current clock.", "clock", "simulated"),
    gauge("edged_clock_min_hertz", "Lower limit of the clock.", "clock", "simulated"),
    gauge("edged_clock_max_hertz", "Upper limit of the clock.", "clock", "simulated"),
    counter(
        "edged_clock_seconds_total",
        "Time at each operating point.",
        "clock",
        "hertz",
        "how",
        "simulated",
        series_max=512,
    ),
    counter(
        "edged_race_clock_seconds_total",
        "Time of races, by clock of the CPU.",
        "hertz",
        "simulated",
    ),
    counter(
        "edged_idle_state_seconds_total",
        "Core-seconds in each sleep state, and `awake`.",
        "state",
        "simulated",
    ),
    counter("edged_core_wakeups_total", "Times that a core left a sleep state.", "simulated"),
    counter(
        "edged_limits_taken_over_total",
        "Times that another process changed a limit that edged had set.",
    ),
    gauge("edged_temperature_celsius", "Temperature of a thermal zone.", "zone", "simulated"),
    gauge(
        "edged_temperature_trip_celsius",
        "Lowest trip point of a thermal zone, by kind: passive, hot, critical.",
        "zone",
        "trip",
        "simulated",
    ),
    gauge("edged_throttled", "Whether the board is throttled now.", "cause", "simulated"),
    gauge(
        "edged_throttled_since_boot",
        "Whether the board has been throttled since its boot.",
        "cause",
        "simulated",
    ),
    counter(
        "edged_throttle_events_total",
        "Throttling events since the board's boot.",
        "cause",
        "simulated",
    ),
    gauge("edged_gpu_others_ratio", "Share of a GPU's time that other processes use.", "gpu"),
    gauge("edged_gpu_kept_off", "Whether joins keep off a GPU because of others.", "gpu"),
    counter("edged_gpu_moves_total", "Times that joins left a GPU or might return to it.", "gpu"),
    counter(
        "edged_throttled_seconds_total",
        "Time for which a cause of throttling was seen at work, from look to look.",
        "cause",
        "simulated",
    ),
    gauge(
        "edged_temperature_limit_celsius",
        "Highest temperature that the limit allows; absent without one.",
        "simulated",
    ),
    gauge(
        "edged_temperature_headroom_celsius",
        "From the hottest zone to the limit, else to its lowest trip point.",
        "simulated",
    ),
    counter(
        "edged_heat_held_seconds_total",
        "Time for which the limit of the temperature held races.",
        "simulated",
    ),
    counter(
        "edged_heat_lowered_seconds_total",
        "Time for which the limit of the temperature lowered the clock of races.",
        "simulated",
    ),
    gauge("edged_gpu_load_ratio", "Share of time in which a GPU works.", "gpu", "simulated"),
    info("edged_policy_info", "The running energy policy.", "policy", "simulated"),
    gauge("edged_policy_fallback", "Whether the chosen policy cannot run here."),
    gauge("edged_policy_cap_watts", "Lowest power cap of the running policies; absent without."),
    gauge(
        "edged_board_saturated",
        "Whether a simulated board cannot carry its load; with hysteresis.",
    ),
)

DEVICE = {**PROCESS, **BEAT, **JOBS, **SOURCES, **STORE, **UPLINK, **ENERGY, **CLOCKS}
"""All metrics of a daemon."""
