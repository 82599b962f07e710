"""The aggregation's Prometheus metrics: its batches, and how far the tables are behind."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edged.central import segments
from edged.central.metrics import DurationHistogram
from edged.central.spec import Spec
from edged.central.tables import TableDirectory
from edged.errors import CentralError
from edged.metrics import Exposition
from edged.metrics.central import AGGREGATION

BOUNDS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)


class AggregationMetrics:
    """Counts an aggregation's events; `exposition` is safe on any thread."""

    def __init__(self, spec: Spec, landing: str, output: str, trigger_us: int | None) -> None:
        self._spec, self._landing, self._output = spec, landing, output
        self._batches = {"ok": 0, "failed": 0}
        self._rows = 0
        self._times = DurationHistogram(BOUNDS_S)
        self._last_s: float | None = None
        self._started_s, self._trigger_us = time.time(), trigger_us

    def on_event(self, event: Mapping[str, Any]) -> None:
        """Count an event of `edged.central.aggregate`."""
        if event["event"] == "batch":
            self._batches["ok"] += 1
            self._rows += event["rows"]
            self._times.observe(event["seconds"])
            self._last_s = time.time()

    def on_failure(self) -> None:
        """Count a failed batch, which ends the aggregation."""
        self._batches["failed"] += 1

    def exposition(self) -> Exposition:
        """The current metrics."""
        metrics = Exposition(AGGREGATION)
        for result, count in self._batches.items():
            metrics.add("edged_aggregate_batches_total", count, result=result)
        metrics.add("edged_aggregate_rows_total", self._rows)
        metrics.add_histogram("edged_aggregate_batch_seconds", self._times.snapshot())
        lags = [lag(self._spec, name, self._landing, self._output) for name in self._spec.tables]
        metrics.add("edged_aggregate_lag_segments", max(count for count, _ in lags))
        metrics.add("edged_aggregate_lag_bytes", max(size for _, size in lags))
        metrics.add("edged_aggregate_last_success_timestamp_seconds", self._last_s)
        metrics.add("edged_aggregate_start_time_seconds", self._started_s)
        metrics.add("edged_aggregate_trigger_seconds", (self._trigger_us or 0) / 1e6)
        return metrics


def lag(spec: Spec, table: str, landing: str, output: str) -> tuple[int, int]:
    """Segments with pages of the table's stream that are not in the published table, and the bytes
    of those pages."""
    try:
        manifest = TableDirectory(Path(output) / table).current()
    except CentralError:
        manifest = None
    read = _position(manifest.offset if manifest is not None else "")
    hashes = _hashes(landing, spec.streams[spec.tables[table].source])
    behind, size = 0, 0
    for name in segments.list_segments(landing):
        try:
            rows = segments.read_rows(landing, name, int(read.get(name, 0)))
        except FileNotFoundError:  # deleted by retention in the meantime
            continue
        mine = rows[np.isin(rows["stream_hash"], hashes)]
        behind += len(mine) > 0
        size += int(mine["length"].sum())
    return behind, size


def _position(offset: str) -> Mapping[str, Any]:
    try:
        found = json.loads(offset)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _hashes(landing: str, stream: str) -> npt.NDArray[np.uint64]:
    """The hashes of the stream in index rows: of its version, or without one of its latest."""
    name, _, version = stream.partition("@")
    known = [p.stem.rpartition("@")[2] for p in Path(landing, "schemas").glob(f"{name}@*.json")]
    versions = [int(version)] if version else sorted(int(v) for v in known if v.isdigit())[-1:]
    return np.array([segments.stream_hash(name, v) for v in versions], np.uint64)
