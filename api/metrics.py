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
from edged.metrics.device import DEVICE, EVENT_KINDS, JOB_STATES, LINK_STATES

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
        out.add("edged_uplink_held_pages", snapshot["store"]["held_pages"])
    if snapshot["energy"] is not None:
        _energy(out, snapshot["energy"])
        _clocks(out, snapshot["energy"])
        _health(out, snapshot["energy"])
        _suspends(out, snapshot["energy"])
    out.add("edged_metrics_left_out", out.left_out)
    return out


def _process(out: Exposition, snapshot: Snapshot) -> None:
    build, process, energy = snapshot["build"], snapshot["process"], snapshot["energy"]
    out.add_info("edged_build_info", **build)
    board = energy["board"] if energy else None
    out.add_info(
        "edged_daemon_info", name=snapshot["device"], epoch=snapshot["epoch"],
        board=board["name"] if board else "", simulated=_flag(board),
    )  # fmt: skip
    if board:
        out.add_info(
            "edged_board_info", board=board["name"], profile=board["profile"] or "",
            power_model=board["power_model"] or "", processor=board["processor"],
            simulated=_flag(board),
        )  # fmt: skip
    _states(out, "edged_state", STATES, snapshot["state"])
    out.add("edged_snapshot_timestamp_seconds", snapshot["wall_us"] / 1e6)
    out.add("edged_start_time_seconds", snapshot["started_wall_us"] / 1e6)
    out.add("edged_restarts_total", snapshot["restarts"])
    out.add("edged_cpu_seconds_total", process["cpu_s"])
    out.add("edged_resident_memory_bytes", process["rss_bytes"])
    out.add("edged_threads", process["threads"])
    out.add("edged_context_switches_total", process["context_switches"])
    out.add("edged_wakeups_total", process["wakeups"])
    for kind in EVENT_KINDS:  # from 0 on: a rate needs a sample before the first event
        out.add("edged_events_total", snapshot["events"].get(kind, 0), kind=kind)


def _flag(board: Mapping[str, Any] | None) -> str:
    """The label `simulated`."""
    return "true" if board and board["simulated"] else "false"


def _beats(out: Exposition, snapshot: Snapshot) -> None:
    out.add("edged_beats_total", snapshot["beats"])
    out.add("edged_beats_idle_total", snapshot["beats_idle"])
    out.add("edged_rows_total", snapshot["rows"])
    out.add("edged_pages_total", snapshot["pages"])
    out.add_histogram("edged_batch_rows", Histogram.of(snapshot["batch_rows"]))
    for leg, histogram in snapshot["legs"].items():
        out.add_histogram("edged_leg_seconds", Histogram.of(histogram), leg=leg)
    out.add("edged_promise_missed", snapshot["promise_missed"])
    out.add("edged_saturated", snapshot["saturated"])
    for reason, rows in snapshot["drops"].items():
        out.add("edged_rows_dropped_total", rows, reason=reason)


def _job(out: Exposition, name: str, job: Mapping[str, Any]) -> None:
    _states(out, "edged_job_state", JOB_STATES, job["state"], job_name=name)
    out.add("edged_job_version", job["version"], job_name=name)
    promise_us = job["promises"]["latency_us"]
    out.add("edged_job_latency_promise_seconds", promise_us / 1e6, job_name=name)
    out.add_histogram("edged_job_latency_seconds", Histogram.of(job["latency"]), job_name=name)
    for stream, s in job["streams"].items():
        labels = {"job_name": name, "stream": stream}
        out.add("edged_stream_rows_total", s["rows"], **labels)
        out.add("edged_stream_staged_rows", s["staged"], **labels)
        out.add("edged_stream_late_rows_total", s["late"], **labels)
        out.add("edged_stream_ahead_rows_total", s["refused_ahead"], **labels)
        if "populated" in s:
            out.add("edged_table_populated", s["populated"], **labels)
            out.add("edged_table_expected_rows", s.get("rows_expected"), **labels)
            out.add("edged_table_read_ratio", s.get("read_share"), **labels)
        out.add("edged_stream_producers", s["producers"], **labels)
        out.add("edged_stream_producers_behind", s["producers_behind"], **labels)
        out.add("edged_stream_silent_seconds", _seconds(s["silent_us"]), **labels)
        out.add("edged_stream_silent_limit_seconds", _seconds(s["silent_after_us"]), **labels)
        watermark = _seconds(s["watermark_us"])
        out.add("edged_stream_watermark_timestamp_seconds", watermark, **labels)
    for operator, o in job["operators"].items():
        labels = {"job_name": name, "operator": operator}
        out.add("edged_operator_state_bytes", o["state_bytes"], **labels)
        out.add("edged_operator_matches_total", o.get("matches"), **labels)
        out.add("edged_operator_error_rows_total", o.get("rows_in_error"), **labels)
        if "kernel" in o:
            out.add_info("edged_operator_kernel_info", kernel=o["kernel"], **labels)
    for sink, s in job["sinks"].items():
        labels = {"job_name": name, "sink": sink}
        out.add("edged_sink_rows_total", s.get("rows"), **labels)
        out.add("edged_sink_open_rows", s["open_rows"], **labels)
        if s["open_bytes_max"]:
            out.add("edged_sink_open_bytes", s["open_bytes"], **labels)
            out.add("edged_sink_open_limit_bytes", s["open_bytes_max"], **labels)
        out.add("edged_sink_pages_total", s.get("pages"), **labels)
        out.add("edged_sink_pages_early_total", s.get("pages_early"), **labels)
        out.add("edged_sink_pages_compressed_total", s.get("pages_compressed"), **labels)
        out.add("edged_sink_page_bytes_total", s.get("page_bytes"), **labels)
        out.add("edged_sink_page_raw_bytes_total", s.get("page_bytes_raw"), **labels)
        for link in s.get("links", ()):
            _link(out, link, {**labels, "receiver": link["instance"]})


def _link(out: Exposition, link: Mapping[str, Any], labels: Mapping[str, Any]) -> None:
    out.add("edged_link_rows_total", link["rows"], **labels)
    out.add("edged_link_bytes_total", link["bytes"], **labels)
    out.add("edged_link_connections_total", link["connections"], **labels)
    out.add("edged_link_failures_total", link["failures"], **labels)
    out.add("edged_link_in_flight_bytes", link["in_flight_bytes"], **labels)
    _states(out, "edged_link_state", LINK_STATES, link["state"], **labels)


def _source(out: Exposition, source: Mapping[str, Any]) -> None:
    labels = {"kind": source["kind"], "address": source["address"]}
    out.add("edged_source_connections", source["connected"], **labels)
    out.add("edged_source_bytes_total", source["bytes"], **labels)
    out.add("edged_source_rows_total", source["rows"], **labels)
    out.add("edged_source_refused_total", source["refused"], **labels)
    out.add("edged_source_duplicates_total", source.get("duplicates"), **labels)
    held_us = source["backpressure_us"]
    out.add("edged_source_backpressure_seconds_total", held_us / 1e6, **labels)


def _store(out: Exposition, snapshot: Snapshot) -> None:
    store, oldest_us = snapshot["store"], snapshot["store"]["oldest_page_us"]
    out.add("edged_store_bytes", store["bytes"])
    out.add("edged_store_limit_bytes", store["bytes_max"])
    out.add("edged_store_disk_bytes", store["disk_bytes"])
    out.add("edged_store_disk_free_bytes", store["disk_free_bytes"])
    out.add("edged_store_room_bytes", store["room_bytes"])
    out.add("edged_store_fill_ratio", store["fill"])
    out.add("edged_store_full", store["full"])
    out.add("edged_store_full_seconds_total", store["full_us"] / 1e6)
    out.add("edged_store_fsyncs_total", store["fsyncs"])
    gaps = store.get("gaps", {})
    out.add("edged_store_salvaged_total", store.get("salvaged_count", 0))
    out.add("edged_store_gaps", gaps.get("count"))
    out.add("edged_store_gap_pages", gaps.get("pages"))
    out.add("edged_store_gap_rows", gaps.get("rows"))
    out.add("edged_backlog_bytes", store["backlog_bytes"])
    out.add("edged_backlog_pages", store["backlog_pages"])
    age_s = 0.0 if oldest_us is None else max(0, snapshot["wall_us"] - oldest_us) / 1e6
    out.add("edged_backlog_age_seconds", age_s)


def _uplink(out: Exposition, uplink: Mapping[str, Any]) -> None:
    out.add("edged_uplink_connected", uplink["connected"])
    _states(out, "edged_uplink_state", UPLINK_STATES, uplink["state"])
    out.add("edged_uplink_open", uplink["open"])
    out.add("edged_uplink_pages_sent_total", uplink["pages_sent"])
    out.add("edged_uplink_sent_bytes_total", uplink["bytes_sent"])
    out.add("edged_uplink_pages_acked_total", uplink["pages_acked"])
    out.add("edged_uplink_requests_total", uplink["requests"])
    out.add("edged_uplink_retries_total", uplink["retries"])
    out.add("edged_uplink_alarms_total", uplink["alarms"])
    out.add("edged_uplink_starts_total", uplink["starts"])
    problems = [stuck["problem"] for stuck in uplink["stuck"]]
    for problem in sorted({"damaged", *problems}):
        out.add("edged_uplink_stuck_partitions", problems.count(problem), problem=problem)
    out.add("edged_uplink_last_ack_timestamp_seconds", _seconds(uplink["last_ack_us"]))


def _energy(out: Exposition, energy: Mapping[str, Any]) -> None:
    whole, watts, budget = energy["input"], energy["watts"], energy["policy"]["budget"]
    if whole is not None:
        source = whole["provenance"]
        out.add("edged_energy_input_joules_total", whole["joules"], source=source)
    if watts is not None:
        out.add("edged_power_input_watts", watts["input"], source=watts["provenance"])
    for rail in energy["rails"]:
        at = {"meter": rail["meter"], "rail": rail["rail"]}
        labels = {**at, "part_of": rail["part_of"] or "", "source": rail["provenance"]}
        out.add("edged_energy_rail_joules_total", rail["joules"], **labels)
        out.add("edged_power_rail_watts", rail["watts"], **labels)
        out.add("edged_energy_gap_seconds_total", rail["gap_us"] / 1e6, **at)
        out.add("edged_meter_up", not rail["problem"], **at)
    out.add("edged_meters_missing", len(energy["missing"]))
    if energy["ledger"] is not None:
        _ledger(out, energy["ledger"])
    if budget is not None:
        source = budget["provenance"]
        out.add("edged_energy_budget_left_joules", budget["left_j"], source=source)
        out.add("edged_energy_budget_left_seconds", budget["left_us"] / 1e6, source=source)
        out.add("edged_energy_budget_forecast_joules", budget["forecast_j"], source=source)


def _ledger(out: Exposition, ledger: Mapping[str, Any]) -> None:
    source = ledger["provenance"]
    for entry in ledger["entries"]:
        labels = {"job_name": entry["job"], "operator": entry["operator"]}
        labels |= {"phase": entry["phase"], "source": source}
        above = entry["above_idle"]
        out.add("edged_energy_account_joules", above["joules"], **labels)
        out.add("edged_energy_account_error_joules", above["error_j"], **labels)
        out.add("edged_energy_account_input_joules", entry["whole_input"]["joules"], **labels)
    unattributed = ledger["unattributed"]["joules"]
    out.add("edged_energy_unattributed_joules", unattributed, source=source)


def _clocks(out: Exposition, energy: Mapping[str, Any]) -> None:
    mark = {"simulated": _flag(energy["board"])}
    for clock, limits in energy["limits"].items():
        out.add("edged_clock_hertz", limits["hz"], clock=clock, **mark)
        out.add("edged_clock_min_hertz", limits["min_hz"], clock=clock, **mark)
        out.add("edged_clock_max_hertz", limits["max_hz"], clock=clock, **mark)
    for clock, spent in energy["clock_s"].items():
        for hertz, s in spent["at"].items():
            labels = {"clock": clock, "hertz": hertz, "how": spent["how"], **mark}
            out.add("edged_clock_seconds_total", s, **labels)
    for hertz, s in energy["race_clock_s"].items():
        out.add("edged_race_clock_seconds_total", s, hertz=hertz, **mark)
    sleep = energy["sleep_s"]
    if sleep is not None:
        for state, s in {"awake": sleep["awake"], **sleep["states"]}.items():
            out.add("edged_idle_state_seconds_total", s, state=state, **mark)
        out.add("edged_core_wakeups_total", sleep["wakeups"], **mark)
    out.add("edged_limits_taken_over_total", energy["taken_over"])
    policy = energy["policy"]
    out.add_info("edged_policy_info", policy=policy["policy"], **mark)
    out.add("edged_policy_fallback", bool(policy["problem"]))
    out.add("edged_policy_cap_watts", policy["cap_watts"])
    out.add("edged_board_saturated", energy["saturated"])


def _seconds(us: int | None) -> float | None:
    return None if us is None else us / 1e6


def _health(out: Exposition, energy: Mapping[str, Any]) -> None:
    """Temperatures, throttling and GPU load, as far as the board tells them."""
    mark = {"simulated": _flag(energy["board"])}
    for zone in energy["temperatures"]:
        out.add("edged_temperature_celsius", zone["celsius"], zone=zone["zone"], **mark)
        for trip, celsius in zone["trips"].items():
            labels = {"zone": zone["zone"], "trip": trip, **mark}
            out.add("edged_temperature_trip_celsius", celsius, **labels)
    for found in energy["throttling"]:
        labels = {"cause": found["cause"], **mark}
        out.add("edged_throttled", found["now"], **labels)
        out.add("edged_throttled_since_boot", found["since_boot"], **labels)
        out.add("edged_throttle_events_total", found["events"], **labels)
        out.add("edged_throttled_seconds_total", found["seen_s"], **labels)
    share = energy["gpu_share"]
    if share["gpu"]:
        out.add("edged_gpu_others_ratio", share["others"], gpu=share["gpu"])
        out.add("edged_gpu_kept_off", share["away"], gpu=share["gpu"])
        out.add("edged_gpu_moves_total", share["moves"], gpu=share["gpu"])
    heat = energy["heat"]
    out.add("edged_temperature_limit_celsius", heat["max_celsius"], **mark)
    out.add("edged_temperature_headroom_celsius", heat["headroom_celsius"], **mark)
    out.add("edged_heat_held_seconds_total", heat["held_s"], **mark)
    out.add("edged_heat_lowered_seconds_total", heat["lowered_s"], **mark)
    for gpu in energy["gpu_load"]:
        out.add("edged_gpu_load_ratio", gpu["share"], gpu=gpu["gpu"], **mark)


def _suspends(out: Exposition, energy: Mapping[str, Any]) -> None:
    """Suspends between beats."""
    found = energy["suspend"]
    out.add("edged_suspends_total", found["count"])
    out.add("edged_suspends_late_total", found["late"])
    out.add("edged_suspends_failed_total", found["failed"])
    out.add("edged_suspended_seconds_total", found["seconds"])
    out.add_info("edged_suspend_problem_info", problem=found["problem"])


def _states(
    out: Exposition, name: str, states: Iterable[str], state: str, **labels: object
) -> None:
    """One sample for each state, 1 for the current one."""
    for one in dict.fromkeys([*states, state]):
        out.add(name, one == state, state=one, **labels)
