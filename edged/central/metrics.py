"""The centre's metrics: a collector's own, the fleet's, the aggregation's; and their listener.

The names stand in `edged/metrics/central.py`.  The listener is prometheus-client's, in threads of
the process: it answers from what it has while that is younger than FRESH_S, and a slow scraper
keeps no page waiting.  Of 4 096 devices, the most that are told of, a scrape takes 2.7 s of a core
(2-core x86-64 VM), in turns with what the collector has to do: scrape such a fleet once a minute.
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
from edged.central.fleet import Device
from edged.central.stats import Stats
from edged.errors import ConfigError
from edged.metrics import Exposition, Histogram
from edged.metrics.central import COLLECTOR, FLEET

FRESH_S = 1.0
JOB_STATES = ("running", "paused", "draining", "drained", "failed")
_SOURCES = ("measured", "modelled", "simulated")


class Times:
    """A histogram of seconds."""

    BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

    def __init__(self, bounds: tuple[float, ...] = BOUNDS) -> None:
        self._bounds, self._counts, self._sum = bounds, [0] * (len(bounds) + 1), 0.0

    def observe(self, seconds: float) -> None:
        """Count one; on one thread."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def told(self) -> Histogram:
        """As it stands."""
        return Histogram(self._bounds, list(self._counts), self._sum)


class _Fresh(Source):
    """Makes an exposition when the last one is too old."""

    def __init__(self, make: Callable[[], Exposition]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._families: list[Family] = []
        self._made_s = -math.inf

    def collect(self) -> Iterable[Family]:
        with self._lock:
            if time.monotonic() - self._made_s > FRESH_S:
                self._families = list(self._make().collect())
                self._made_s = time.monotonic()
            return self._families


def listen(host: str, port: int, make: Callable[[], Exposition]) -> tuple[str, Callable[[], None]]:
    """Serve what `make` makes at `http://host:port/metrics`, from threads.

    Returns the address, and what ends it.  Raises ConfigError where the address cannot be had.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Fresh(make))
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
    stats: Stats, commits: Times, syncs: Times, devices: list[Device], now_us: int
) -> Exposition:
    """What a collector exposes: itself and the fleet."""
    told = Exposition({**COLLECTOR, **FLEET})
    told.add_info("edged_collector_build_info", version=__version__,
                  python=platform.python_version())  # fmt: skip
    for code, count in sorted(stats.codes.items()):
        told.add("edged_collector_requests_total", count, code=code)
    told.add("edged_collector_pages_total", stats.pages)
    told.add("edged_collector_page_bytes_total", stats.bytes)
    told.add("edged_collector_duplicates_total", stats.duplicates)
    problems = {"conflict": stats.conflicts, "gap": stats.gaps, "fenced": stats.fenced,
                "damaged": stats.damaged, "full": stats.full, "quota": stats.quota,
                "other": stats.refused}  # fmt: skip
    for problem, count in problems.items():
        told.add("edged_collector_page_problems_total", count, problem=problem)
    told.add("edged_collector_unauthorized_total", stats.unauthorized)
    told.add_histogram("edged_collector_commit_seconds", commits.told())
    told.add_histogram("edged_collector_fsync_seconds", syncs.told())
    told.add("edged_collector_devices", len(stats.devices))
    for device in devices:
        _device(told, device, now_us)
    return told


def _device(told: Exposition, device: Device, now_us: int) -> None:
    """One device; of one that is silent only that, and since when."""
    name, up = device.name, device.up(now_us)
    told.add("edged_device_up", up, device=name)
    told.add("edged_device_last_seen_timestamp_seconds", device.seen_us / 1e6, device=name)
    row = device.row
    if not up or row is None:
        return
    for metric, column, scale in _COLUMNS:
        value = _number(row.get(column))
        told.add(metric, None if value is None else value * scale, device=name)
    restarts = _number(row.get("session"))
    told.add("edged_device_restarts_total", None if restarts is None else restarts - 1, device=name)
    source = row.get("energy_source")
    if source in _SOURCES:
        told.add("edged_device_power_watts", _number(row.get("watts")), device=name, source=source)
        told.add("edged_device_energy_joules_total", _number(row.get("joules")), device=name,
                 source=source)  # fmt: skip
    told.add("edged_device_desired_refused", bool(row.get("desired_problem")), device=name)
    info = {key: str(row.get(key) or "") for key in ("version", "board", "policy")}
    told.add_info("edged_device_info", device=name, **info)
    for state, count in _jobs(row).items():
        told.add("edged_device_jobs", count, device=name, state=state)


_COLUMNS = (
    ("edged_device_start_time_seconds", "started_at", 1e-6),
    ("edged_device_rows_total", "rows", 1),
    ("edged_device_rows_dropped_total", "rows_dropped", 1),
    ("edged_device_latency_seconds", "latency_s", 1),
    ("edged_device_latency_promise_seconds", "latency_promise_s", 1),
    ("edged_device_backlog_bytes", "backlog_bytes", 1),
    ("edged_device_backlog_age_seconds", "backlog_age_s", 1),
    ("edged_device_store_full", "store_full", 1),
    ("edged_device_uplink_alarms_total", "alarms", 1),
    ("edged_device_limits_taken_over_total", "taken_over", 1),
    ("edged_device_meters_missing", "meters_missing", 1),
    ("edged_device_rails_silent", "rails_silent", 1),
    ("edged_device_energy_budget_forecast_joules", "budget_forecast_joules", 1),
    ("edged_device_desired_version", "desired_version", 1),
    ("edged_device_applied_version", "applied_version", 1),
)
"""Metric, column of the report, and what that is to be multiplied with."""


def _number(value: Any) -> float | None:
    """A finite number as a device may send it; else none."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def _jobs(row: Mapping[str, Any]) -> dict[str, int]:
    """How many jobs are in each state; what is no such text says nothing."""
    try:
        states = [job["state"] for job in json.loads(row["jobs"]).values()]
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return {}
    return {state: states.count(state) for state in JOB_STATES}
