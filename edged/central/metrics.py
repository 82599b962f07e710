"""The centre's metrics (a collector's own, the fleet's, the aggregation's), and their listener.

The names are defined in `edged/metrics/central.py`.  The listener is prometheus-client's, in
threads of the process.  It answers from a cached exposition while that is younger than CACHE_S, and
a slow scraper delays no page.  A scrape with 4 096 devices takes 2.7 s of a core (2-core x86-64
VM), interleaved with the collector's work, and one with DEVICES_MAX four times that: scrape a large
fleet once a minute.
"""

from __future__ import annotations

import json
import math
import platform
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector as Source

from edged import __version__
from edged.central.fleet import FleetDevice
from edged.central.stats import CollectorStats
from edged.errors import ConfigError
from edged.metrics import Exposition, Histogram
from edged.metrics.central import COLLECTOR, COMPACTION, DEVICES_MAX, fleet_of
from edged.metrics.device import JOB_STATES

CACHE_S = 1.0
_SOURCES = ("measured", "modelled", "simulated")


class DurationHistogram:
    """A histogram of durations in seconds."""

    BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

    def __init__(self, bounds: tuple[float, ...] = BOUNDS) -> None:
        self._bounds, self._counts, self._sum = bounds, [0] * (len(bounds) + 1), 0.0

    def observe(self, seconds: float) -> None:
        """Count a duration; for one thread."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def snapshot(self) -> Histogram:
        """A copy of the current state."""
        return Histogram(self._bounds, list(self._counts), self._sum)


class _CachedMetrics(Source):
    """Caches an exposition for CACHE_S."""

    def __init__(self, make: Callable[[], Exposition]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._families: list[Family] = []
        self._made_s = -math.inf

    def collect(self) -> Iterable[Family]:
        with self._lock:
            if time.monotonic() - self._made_s > CACHE_S:
                self._families = list(self._make().collect())
                self._made_s = time.monotonic()
            return self._families


def listen(host: str, port: int, make: Callable[[], Exposition]) -> tuple[str, Callable[[], None]]:
    """Serve the exposition of `make` at `http://host:port/metrics`, from threads.

    Returns the address, and a function that ends it.  Raises ConfigError if the address cannot be
    bound.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_CachedMetrics(make))
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as problem:
        reason = problem.strerror or problem
        raise ConfigError(f"--metrics: cannot listen on {host}:{port}: {reason}") from problem

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    at = server.server_port
    return (f"[{host}]:{at}" if ":" in host else f"{host}:{at}"), close


def centre(
    stats: CollectorStats,
    commits: DurationHistogram,
    syncs: DurationHistogram,
    devices: list[FleetDevice],
    now_us: int,
    devices_max: int = DEVICES_MAX,
) -> Exposition:
    """The metrics of a collector: its own and the fleet's."""
    metrics = Exposition({**COLLECTOR, **fleet_of(devices_max), **COMPACTION})
    metrics.add_info("edged_collector_build_info", version=__version__,
                  python=platform.python_version())  # fmt: skip
    for code, count in sorted(stats.codes.items()):
        metrics.add("edged_collector_requests_total", count, code=code)
    metrics.add("edged_collector_pages_total", stats.pages)
    metrics.add("edged_collector_page_bytes_total", stats.bytes)
    metrics.add("edged_collector_duplicates_total", stats.duplicates)
    problems = {"conflict": stats.conflicts, "gap": stats.gaps, "fenced": stats.fenced,
                "damaged": stats.damaged, "full": stats.full, "quota": stats.quota,
                "other": stats.refused}  # fmt: skip
    for problem, count in problems.items():
        metrics.add("edged_collector_page_problems_total", count, problem=problem)
    metrics.add("edged_collector_unauthorized_total", stats.unauthorized)
    metrics.add_histogram("edged_collector_commit_seconds", commits.snapshot())
    metrics.add_histogram("edged_collector_fsync_seconds", syncs.snapshot())
    metrics.add("edged_collector_devices", len(stats.devices))
    for device in devices:
        _device(metrics, device, now_us)
    return metrics


def _device(metrics: Exposition, device: FleetDevice, now_us: int) -> None:
    """The metrics of one device; of a silent one only that, since when, and whether its upload
    windows are open."""
    name, up = device.name, device.up(now_us)
    metrics.add("edged_device_up", up, device=name)
    metrics.add("edged_device_last_seen_timestamp_seconds", device.seen_us / 1e6, device=name)
    metrics.add("edged_device_upload_open", device.upload_open(now_us), device=name)
    row = device.row
    if not up or row is None:
        return
    for metric, column, scale in _COLUMNS:
        value = _number(row.get(column))
        metrics.add(metric, None if value is None else value * scale, device=name)
    restarts = _number(row.get("session"))
    metrics.add(
        "edged_device_restarts_total", None if restarts is None else restarts - 1, device=name
    )
    source = row.get("energy_source")
    if source in _SOURCES:
        metrics.add(
            "edged_device_power_watts", _number(row.get("watts")), device=name, source=source
        )
        metrics.add("edged_device_energy_joules_total", _number(row.get("joules")), device=name,
                 source=source)  # fmt: skip
    metrics.add("edged_device_desired_refused", bool(row.get("desired_problem")), device=name)
    info = {key: str(row.get(key) or "") for key in ("version", "board", "policy")}
    metrics.add_info("edged_device_info", device=name, **info)
    for state, count in _jobs(row).items():
        metrics.add("edged_device_jobs", count, device=name, state=state)


_COLUMNS = (
    ("edged_device_start_time_seconds", "started_at", 1e-6),
    ("edged_device_rows_total", "rows", 1),
    ("edged_device_rows_dropped_total", "rows_dropped", 1),
    ("edged_device_latency_seconds", "latency_s", 1),
    ("edged_device_latency_promise_seconds", "latency_promise_s", 1),
    ("edged_device_backlog_bytes", "backlog_bytes", 1),
    ("edged_device_backlog_pages", "backlog_pages", 1),
    ("edged_device_held_pages", "held_pages", 1),
    ("edged_device_backlog_age_seconds", "backlog_age_s", 1),
    ("edged_device_store_full", "store_full", 1),
    ("edged_device_gaps", "gaps", 1),
    ("edged_device_gap_pages", "gap_pages", 1),
    ("edged_device_uplink_alarms_total", "alarms", 1),
    ("edged_device_limits_taken_over_total", "taken_over", 1),
    ("edged_device_meters_missing", "meters_missing", 1),
    ("edged_device_rails_silent", "rails_silent", 1),
    ("edged_device_energy_budget_forecast_joules", "budget_forecast_joules", 1),
    ("edged_device_desired_version", "desired_version", 1),
    ("edged_device_applied_version", "applied_version", 1),
)
"""Metric, column of the report, and scale factor."""


def _number(value: Any) -> float | None:
    """A finite number from a device's report; None for anything else."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def _jobs(row: Mapping[str, Any]) -> dict[str, int]:
    """The number of jobs in each state; empty for an invalid text."""
    try:
        states = [job["state"] for job in json.loads(row["jobs"]).values()]
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return {}
    return {state: states.count(state) for state in JOB_STATES}
