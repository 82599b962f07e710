"""The daemon's metrics, made from the shared snapshot of the door client.

`exposition_of` renders a snapshot; edged/metrics/device.py lists the metrics.  `App` serves them at
`/metrics`, read-only, on a listener of its own.  The daemon is asked at most once in FRESH_S,
whatever the number of scrapes; the text is made once for each snapshot, so slow readers delay no
other.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any

from anyio import fail_after
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.door_client import DoorClient, Snapshot
from api.listeners import ApiListener, bind_tcp
from api.problems import ApiProblem
from edged.errors import ConfigError
from edged.metrics import Exposition, Histogram
from edged.metrics.device import DEVICE, EVENT_KINDS, JOB_STATES

FRESH_S = 1.0
"""Age up to which a snapshot is served again."""
PATIENCE_S = 5.0
"""Longest wait for the daemon; Prometheus gives up after ten seconds."""
TEXTS_MAX = 8
"""Texts kept for one snapshot; the Accept header of a scrape selects the format."""
STATES = ("running", "draining", "stopping")
UPLINK_STATES = ("sending", "down", "unauthorized", "fenced")


class App:
    """The ASGI application of the metrics listener."""

    def __init__(self, door: DoorClient) -> None:
        self._door = door
        self._coming: asyncio.Task[Snapshot | None] | None = None
        self._snapshot: Snapshot | None = None
        self._taken_s = -FRESH_S
        self._texts: dict[str, tuple[bytes, str]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer GET and HEAD of /metrics; 404 and 405 otherwise."""
        if scope["type"] != "http":
            return
        if scope["path"] != "/metrics":
            response = Response("the metrics are at /metrics\n", 404, media_type="text/plain")
        elif scope["method"] not in ("GET", "HEAD"):
            response = Response(status_code=405, headers={"allow": "GET, HEAD"})
        else:
            text, media_type = await self._text(Headers(scope=scope).get("accept", ""))
            response = Response(text, headers={"content-type": media_type})
        await response(scope, receive, send)

    async def _text(self, accept: str) -> tuple[bytes, str]:
        snapshot = await self._newest()
        if accept not in self._texts:
            if len(self._texts) >= TEXTS_MAX:
                self._texts.clear()
            self._texts[accept] = exposition_of(snapshot).encode(accept)
        return self._texts[accept]

    async def _newest(self) -> Snapshot | None:
        """The daemon's state, at most FRESH_S old; None if it does not answer."""
        if time.monotonic() - self._taken_s >= FRESH_S:
            if self._coming is None:
                self._coming = asyncio.create_task(self._fetch())
            await asyncio.shield(self._coming)
        return self._snapshot

    async def _fetch(self) -> Snapshot | None:
        try:
            with fail_after(PATIENCE_S):
                snapshot = await self._door.snapshot(FRESH_S)
        except (ApiProblem, TimeoutError):
            snapshot = None
        self._snapshot, self._taken_s, self._coming = snapshot, time.monotonic(), None
        self._texts.clear()
        return snapshot


def open_listener(listen: str) -> ApiListener | None:
    """The listener of metrics.listen; None if that is not set or cannot be bound.

    A port in use must not prevent control of the daemon: the error is logged, and Prometheus sees
    the target as down.
    """
    if not listen:
        return None
    try:
        return bind_tcp(listen, "metrics.listen")
    except ConfigError as problem:
        logging.getLogger("edged.api").error("no metrics: %s", problem)
        return None


def exposition_of(snapshot: Snapshot | None) -> Exposition:
    """The metrics of a snapshot; None: the daemon did not answer."""
    out = Exposition(DEVICE)
    out.add("edged_up", snapshot is not None)
    if snapshot is None:
        return out
    _process(out, snapshot)
    _beats(out, snapshot)
    for name, job in snapshot["jobs"].items():
        _job(out, name, job)
    for source in snapshot["sources"]:
        _source(out, source)
    _store(out, snapshot)
    if snapshot["uplink"] is not None:
        _uplink(out, snapshot["uplink"])
    if snapshot["energy"] is not None:
        _energy(out, snapshot["energy"])
        _clocks(out, snapshot["energy"])
    out.add("edged_metrics_left_out", out.left_out)
    return out


def _process(out: Exposition, told: Snapshot) -> None:
    build, process, energy = told["build"], told["process"], told["energy"]
    out.add_info("edged_build_info", **build)
    board = energy["board"]["name"] if energy else ""
    out.add_info("edged_daemon_info", name=told["device"], epoch=told["epoch"], board=board)
    _states(out, "edged_state", STATES, told["state"])
    out.add("edged_snapshot_timestamp_seconds", told["wall_us"] / 1e6)
    out.add("edged_start_time_seconds", told["started_wall_us"] / 1e6)
    out.add("edged_restarts_total", told["restarts"])
    out.add("edged_cpu_seconds_total", process["cpu_s"])
    out.add("edged_resident_memory_bytes", process["rss_bytes"])
    out.add("edged_threads", process["threads"])
    out.add("edged_context_switches_total", process["context_switches"])
    out.add("edged_wakeups_total", process["wakeups"])
    for kind in EVENT_KINDS:  # from 0 on: a rate needs a sample before the first event
        out.add("edged_events_total", told["events"].get(kind, 0), kind=kind)


def _beats(out: Exposition, told: Snapshot) -> None:
    out.add("edged_beats_total", told["beats"])
    out.add("edged_beats_idle_total", told["beats_idle"])
    out.add("edged_rows_total", told["rows"])
    out.add("edged_pages_total", told["pages"])
    out.add_histogram("edged_batch_rows", Histogram.of(told["batch_rows"]))
    for leg, histogram in told["legs"].items():
        out.add_histogram("edged_leg_seconds", Histogram.of(histogram), leg=leg)
    for reason, rows in told["drops"].items():
        out.add("edged_rows_dropped_total", rows, reason=reason)


def _job(out: Exposition, name: str, told: Mapping[str, Any]) -> None:
    _states(out, "edged_job_state", JOB_STATES, told["state"], job_name=name)
    out.add("edged_job_version", told["version"], job_name=name)
    promise_us = told["promises"]["latency_us"]
    out.add("edged_job_latency_promise_seconds", promise_us / 1e6, job_name=name)
    out.add_histogram("edged_job_latency_seconds", Histogram.of(told["latency"]), job_name=name)
    for stream, s in told["streams"].items():
        labels = {"job_name": name, "stream": stream}
        out.add("edged_stream_rows_total", s["rows"], **labels)
        out.add("edged_stream_staged_rows", s["staged"], **labels)
        out.add("edged_stream_late_rows_total", s["late"], **labels)
        out.add("edged_stream_ahead_rows_total", s["refused_ahead"], **labels)
        out.add("edged_stream_producers", s["producers"], **labels)
        watermark_us = s["watermark_us"]
        watermark = None if watermark_us is None else watermark_us / 1e6
        out.add("edged_stream_watermark_timestamp_seconds", watermark, **labels)
    for operator, o in told["operators"].items():
        labels = {"job_name": name, "operator": operator}
        out.add("edged_operator_state_bytes", o["state_bytes"], **labels)
        out.add("edged_operator_matches_total", o.get("matches"), **labels)
        out.add("edged_operator_error_rows_total", o.get("rows_in_error"), **labels)
        if "kernel" in o:
            out.add_info("edged_operator_kernel_info", kernel=o["kernel"], **labels)
    for sink, s in told["sinks"].items():
        labels = {"job_name": name, "sink": sink}
        out.add("edged_sink_rows_total", s.get("rows"), **labels)
        out.add("edged_sink_open_rows", s["open_rows"], **labels)
        out.add("edged_sink_pages_total", s.get("pages"), **labels)
        out.add("edged_sink_page_bytes_total", s.get("page_bytes"), **labels)
        out.add("edged_sink_page_raw_bytes_total", s.get("page_bytes_raw"), **labels)


def _source(out: Exposition, told: Mapping[str, Any]) -> None:
    labels = {"kind": told["kind"], "address": told["address"]}
    out.add("edged_source_connections", told["connected"], **labels)
    out.add("edged_source_bytes_total", told["bytes"], **labels)
    out.add("edged_source_rows_total", told["rows"], **labels)
    out.add("edged_source_refused_total", told["refused"], **labels)
    out.add("edged_source_duplicates_total", told.get("duplicates"), **labels)
    held_us = told["backpressure_us"]
    out.add("edged_source_backpressure_seconds_total", held_us / 1e6, **labels)


def _store(out: Exposition, told: Snapshot) -> None:
    store, oldest_us = told["store"], told["store"]["oldest_page_us"]
    out.add("edged_store_bytes", store["bytes"])
    out.add("edged_store_limit_bytes", store["bytes_max"])
    out.add("edged_store_full", store["full"])
    out.add("edged_store_full_seconds_total", store["full_us"] / 1e6)
    out.add("edged_store_fsyncs_total", store["fsyncs"])
    out.add("edged_backlog_bytes", store["backlog_bytes"])
    out.add("edged_backlog_pages", store["backlog_pages"])
    age_s = 0.0 if oldest_us is None else max(0, told["wall_us"] - oldest_us) / 1e6
    out.add("edged_backlog_age_seconds", age_s)


def _uplink(out: Exposition, told: Mapping[str, Any]) -> None:
    out.add("edged_uplink_connected", told["connected"])
    _states(out, "edged_uplink_state", UPLINK_STATES, told["state"])
    out.add("edged_uplink_pages_sent_total", told["pages_sent"])
    out.add("edged_uplink_sent_bytes_total", told["bytes_sent"])
    out.add("edged_uplink_pages_acked_total", told["pages_acked"])
    out.add("edged_uplink_requests_total", told["requests"])
    out.add("edged_uplink_retries_total", told["retries"])
    out.add("edged_uplink_alarms_total", told["alarms"])
    out.add("edged_uplink_starts_total", told["starts"])
    problems = [stuck["problem"] for stuck in told["stuck"]]
    for problem in sorted({"damaged", *problems}):
        out.add("edged_uplink_stuck_partitions", problems.count(problem), problem=problem)
    acked_us = told["last_ack_us"]
    acked = None if acked_us is None else acked_us / 1e6
    out.add("edged_uplink_last_ack_timestamp_seconds", acked)


def _energy(out: Exposition, told: Mapping[str, Any]) -> None:
    whole, watts, budget = told["input"], told["watts"], told["policy"]["budget"]
    if whole is not None:
        source = whole["provenance"]
        out.add("edged_energy_input_joules_total", whole["joules"], source=source)
    if watts is not None:
        out.add("edged_power_input_watts", watts["input"], source=watts["provenance"])
    for rail in told["rails"]:
        at = {"meter": rail["meter"], "rail": rail["rail"]}
        labels = {**at, "part_of": rail["part_of"] or "", "source": rail["provenance"]}
        out.add("edged_energy_rail_joules_total", rail["joules"], **labels)
        out.add("edged_power_rail_watts", rail["watts"], **labels)
        out.add("edged_energy_gap_seconds_total", rail["gap_us"] / 1e6, **at)
        out.add("edged_meter_up", not rail["problem"], **at)
    out.add("edged_meters_missing", len(told["missing"]))
    if told["ledger"] is not None:
        _ledger(out, told["ledger"])
    if budget is not None:
        out.add("edged_energy_budget_left_joules", budget["left_j"])
        out.add("edged_energy_budget_left_seconds", budget["left_us"] / 1e6)
        out.add("edged_energy_budget_forecast_joules", budget["forecast_j"])


def _ledger(out: Exposition, told: Mapping[str, Any]) -> None:
    source = told["provenance"]
    for entry in told["entries"]:
        labels = {"job_name": entry["job"], "operator": entry["operator"]}
        labels |= {"phase": entry["phase"], "source": source}
        above = entry["above_idle"]
        out.add("edged_energy_account_joules", above["joules"], **labels)
        out.add("edged_energy_account_error_joules", above["error_j"], **labels)
        out.add("edged_energy_account_input_joules", entry["whole_input"]["joules"], **labels)
    unattributed = told["unattributed"]["joules"]
    out.add("edged_energy_unattributed_joules", unattributed, source=source)


def _clocks(out: Exposition, told: Mapping[str, Any]) -> None:
    for clock, limits in told["limits"].items():
        out.add("edged_clock_hertz", limits["hz"], clock=clock)
        out.add("edged_clock_min_hertz", limits["min_hz"], clock=clock)
        out.add("edged_clock_max_hertz", limits["max_hz"], clock=clock)
    for clock, spent in told["clock_s"].items():
        for hertz, s in spent["at"].items():
            out.add("edged_clock_seconds_total", s, clock=clock, hertz=hertz, how=spent["how"])
    for hertz, s in told["race_clock_s"].items():
        out.add("edged_race_clock_seconds_total", s, hertz=hertz)
    sleep = told["sleep_s"]
    if sleep is not None:
        for state, s in {"awake": sleep["awake"], **sleep["states"]}.items():
            out.add("edged_idle_state_seconds_total", s, state=state)
        out.add("edged_core_wakeups_total", sleep["wakeups"])
    out.add("edged_limits_taken_over_total", told["taken_over"])
    policy = told["policy"]
    out.add_info("edged_policy_info", policy=policy["policy"])
    out.add("edged_policy_fallback", bool(policy["problem"]))
    out.add("edged_overload", told["overload"])


def _states(
    out: Exposition, name: str, states: Iterable[str], state: str, **labels: object
) -> None:
    """One sample for each state, 1 for the current one."""
    for one in dict.fromkeys([*states, state]):
        out.add(name, one == state, state=one, **labels)
