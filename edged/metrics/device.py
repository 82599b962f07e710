"""The metrics of one daemon, made from its snapshot (docs/control.md).

Counters count since the daemon's process began, and start again with it.  A metric of something
that the device does not have (a board, an uplink, a limit of its store) is left out.
"""

from __future__ import annotations

from edged.metrics.table import counter, gauge, histogram, info, table

_JOB = ("job_name",)
_STREAM = ("job_name", "stream")
_OPERATOR = ("job_name", "operator")
_SINK = ("job_name", "sink")
_INPUT = ("kind", "address")
_RAIL = ("meter", "rail", "part_of", "source")
_ACCOUNT = ("job_name", "operator", "phase", "source")

EVENT_KINDS = (
    *("daemon.started", "daemon.recovered", "daemon.stopping"),
    *("job.created", "job.replaced", "job.paused", "job.resumed", "job.draining", "job.drained"),
    *("job.deleted", "job.failed", "kernel.switched", "policy.switched", "policy.fell_back"),
    *("limits.taken_over", "limits.restored", "meter.lost", "meter.back", "store.full"),
    *("store.room", "uplink.down", "uplink.up", "uplink.alarm", "input.set_aside"),
    *("desired.applied", "desired.refused", "source.refused", "config.reloaded", "config.refused"),
    *("overload.begun", "overload.ended"),
)
"""As in docs/control.md."""

PROCESS = table(
    gauge("edged_up", "Whether the daemon answered; without it there is nothing else."),
    info("edged_build_info", "What runs.", "version", "python", "numba", "platform"),
    info("edged_daemon_info", "Whose figures these are; `epoch` is the store's.", "name",
         "epoch", "board"),
    gauge("edged_state", "The daemon's state.", "state"),
    gauge("edged_snapshot_timestamp_seconds", "When the figures were taken, by its own clock."),
    gauge("edged_start_time_seconds", "When the daemon's process began, by its own clock."),
    counter("edged_restarts_total", "Starts of a daemon on this store, less the first."),
    counter("edged_cpu_seconds_total", "CPU time of the daemon's process."),
    gauge("edged_resident_memory_bytes", "Memory of the daemon's process."),
    gauge("edged_threads", "Threads of the daemon's process."),
    counter("edged_context_switches_total", "Context switches of the daemon's process."),
    counter("edged_wakeups_total", "Times that the daemon's loop ended a sleep."),
    counter("edged_events_total", "Events by kind; docs/control.md lists them.", "kind"),
    gauge("edged_metrics_left_out", "Series left out of this exposition, beyond the bounds."),
)  # fmt: skip

BEAT = table(
    counter("edged_beats_total", "Beats that are durable."),
    counter("edged_beats_idle_total", "Beats that found nothing to do."),
    counter("edged_rows_total", "Rows taken from streams by durable beats."),
    counter("edged_pages_total", "Pages sealed."),
    histogram("edged_batch_rows", "Rows that a beat took."),
    histogram("edged_leg_seconds", "Time of each leg, once a beat that took rows; `arrival_to_…` "
              "is the beat's oldest row's, `durable_to_landed` is once a page.", "leg"),
    counter("edged_rows_dropped_total", "Rows that were not processed.", "reason"),
)  # fmt: skip

JOBS = table(
    gauge("edged_job_state", "A job's state.", "job_name", "state", series_max=320),
    gauge("edged_job_version", "Version of a job's document.", *_JOB),
    gauge("edged_job_latency_promise_seconds", "Latency that a job promises.", *_JOB),
    histogram("edged_job_latency_seconds", "From the arrival of a beat's oldest row to the job's "
              "results being durable.", *_JOB),
    counter("edged_stream_rows_total", "Rows of a stream that beats have taken.", *_STREAM),
    gauge("edged_stream_staged_rows", "Rows of a stream that wait for a beat.", *_STREAM),
    counter("edged_stream_late_rows_total", "Rows that came behind the watermark.", *_STREAM),
    counter("edged_stream_ahead_rows_total", "Rows refused as too far ahead.", *_STREAM),
    gauge("edged_stream_producers", "Producers that a stream has had.", *_STREAM),
    gauge("edged_stream_watermark_timestamp_seconds", "A stream's watermark, in event time; none "
          "before the first row and after the last.", *_STREAM),
    gauge("edged_operator_state_bytes", "State of an operator.", *_OPERATOR),
    counter("edged_operator_matches_total", "Pairs that a join has found.", *_OPERATOR),
    counter("edged_operator_error_rows_total", "Rows in which an expression failed.", *_OPERATOR),
    info("edged_operator_kernel_info", "Kernel that an operator runs on.", "job_name", "operator",
         "kernel", series_max=64),
    counter("edged_sink_rows_total", "Rows that a sink has written.", *_SINK),
    gauge("edged_sink_open_rows", "Rows of a sink that are in no sealed page yet.", *_SINK),
    counter("edged_sink_pages_total", "Pages that a sink has sealed.", *_SINK),
    counter("edged_sink_page_bytes_total", "Bytes of sealed pages.", *_SINK),
    counter("edged_sink_page_raw_bytes_total", "The same before compression.", *_SINK),
)  # fmt: skip

SOURCES = table(
    gauge("edged_source_connections", "Connections to a source.", *_INPUT),
    counter("edged_source_bytes_total", "Bytes received.", *_INPUT),
    counter("edged_source_rows_total", "Rows received.", *_INPUT),
    counter("edged_source_refused_total", "Connections and messages refused.", *_INPUT),
    counter("edged_source_duplicates_total", "Messages that had come before.", *_INPUT),
    counter("edged_source_backpressure_seconds_total", "Time in which input was left with its "
            "senders, because staging or store was full.", *_INPUT),
)  # fmt: skip

STORE = table(
    gauge("edged_store_bytes", "Bytes that the store takes."),
    gauge("edged_store_limit_bytes", "Bytes that it may take; none: what the disk holds."),
    gauge("edged_store_full", "Whether sources wait for room in the store."),
    counter("edged_store_full_seconds_total", "Time in which they did."),
    counter("edged_store_fsyncs_total", "Times that the log was made durable."),
    gauge("edged_backlog_bytes", "Sealed pages that the centre has not acknowledged."),
    gauge("edged_backlog_pages", "The same, in pages."),
    gauge("edged_backlog_age_seconds", "How long the oldest of them has waited; 0 without any. By "
          "the device's clock alone, which may differ from the centre's."),
)  # fmt: skip

UPLINK = table(
    gauge("edged_uplink_connected", "Whether the last request to the collector went well."),
    gauge("edged_uplink_state", "The uplink's state.", "state"),
    counter("edged_uplink_pages_sent_total", "Pages sent, again included."),
    counter("edged_uplink_sent_bytes_total", "Bytes sent, again included."),
    counter("edged_uplink_pages_acked_total", "Pages that the centre has acknowledged."),
    counter("edged_uplink_requests_total", "Requests answered."),
    counter("edged_uplink_retries_total", "Requests that failed and were tried again."),
    counter("edged_uplink_alarms_total", "What should never be: other bytes under a page's name, "
            "or another process that speaks for this device."),
    gauge("edged_uplink_stuck_partitions", "Partitions that do not go on, by why.", "problem"),
    gauge("edged_uplink_last_ack_timestamp_seconds", "When the last page was acknowledged."),
    counter("edged_uplink_starts_total", "Starts of the uplink's process."),
)  # fmt: skip

ENERGY = table(
    counter("edged_energy_input_joules_total", "Energy of the whole input, by the best meter that "
            "there is, else the model's.", "source"),
    gauge("edged_power_input_watts", "Power of the whole input, as last read.", "source"),
    counter("edged_energy_rail_joules_total", "Energy of a rail. Sum rails only where `part_of` is "
            "empty and one meter has read them.", *_RAIL),
    gauge("edged_power_rail_watts", "Power of a rail, as last read.", *_RAIL),
    counter("edged_energy_gap_seconds_total", "Time of which a rail's energy is not known.",
            "meter", "rail"),
    gauge("edged_energy_account_joules", "Energy above idle of a job's operator in a phase, "
          "estimated; a gauge, since an estimate may be corrected downwards.", *_ACCOUNT,
          series_max=512),
    gauge("edged_energy_account_input_joules", "The same with its share of what the idle board "
          "takes.", *_ACCOUNT, series_max=512),
    gauge("edged_energy_account_error_joules", "Half of the 95 % interval of the energy above "
          "idle.", *_ACCOUNT, series_max=512),
    gauge("edged_energy_unattributed_joules", "Energy that was read and fits nobody.", "source"),
    gauge("edged_energy_budget_left_joules", "What the policy may still spend until its end."),
    gauge("edged_energy_budget_left_seconds", "Time until that end."),
    gauge("edged_energy_budget_forecast_joules", "What is left at that end at the present mean "
          "power; below 0 the budget does not last."),
    gauge("edged_meter_up", "Whether a meter's last reading of a rail went well.", "meter", "rail"),
    gauge("edged_meters_missing", "Meters that should be there and cannot be read."),
)  # fmt: skip

CLOCKS = table(
    gauge("edged_clock_hertz", "The clock as it stands.", "clock"),
    gauge("edged_clock_min_hertz", "Its lower limit.", "clock"),
    gauge("edged_clock_max_hertz", "Its upper limit.", "clock"),
    counter("edged_clock_seconds_total", "Time at each operating point.", "clock", "hertz", "how",
            series_max=512),
    counter("edged_race_clock_seconds_total", "Time of races by the CPU's clock.", "hertz"),
    counter("edged_idle_state_seconds_total", "Core-seconds in each idle state, and `awake`.",
            "state"),
    counter("edged_core_wakeups_total", "Times that a core of the board left an idle state."),
    counter("edged_limits_taken_over_total", "Times that somebody else changed a limit which edged "
            "had set."),
    info("edged_policy_info", "The energy policy that runs.", "policy"),
    gauge("edged_policy_fallback", "Whether another policy was asked for and cannot run."),
    gauge("edged_overload", "Whether the simulated board cannot keep up with its load."),
)  # fmt: skip

DEVICE = {**PROCESS, **BEAT, **JOBS, **SOURCES, **STORE, **UPLINK, **ENERGY, **CLOCKS}
"""All of them."""
