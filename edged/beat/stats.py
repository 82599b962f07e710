"""What the heart counts: beats, stage times, latencies.  Read as one immutable snapshot.

With a trace file, every beat leaves one JSON line when it is durable: its number, wall clock, rows,
bytes, pages, and the microseconds of each stage.  The benchmarks read it.
"""

from __future__ import annotations

import json
import threading
from collections import Counter, deque
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edged.beat.committer import Committed
from edged.clock import Clock


@dataclass(slots=True)
class BeatTimes:
    """One beat's times (monotonic µs) and sizes, known when its race ends."""

    beat: int
    oldest_us: int
    woke_us: int
    ingested_us: int
    raced_us: int
    sealed_us: int
    rows_logged: int
    rows_taken: int


class Stats:
    """Counters of the heart.  `raced` is called on the beat's thread, `durable` on the commit's."""

    def __init__(self, clock: Clock, trace: Path | None) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._trace = trace.open("a", buffering=1 << 16) if trace else None
        self._latency_us: deque[int] = deque(maxlen=1024)
        self.beats = 0
        self.rows = 0
        self.pages = 0
        self.stage_us: Counter[str] = Counter()

    def durable(self, times: BeatTimes, commit: Committed) -> None:
        """A beat is durable and its acks are sent."""
        stages = {
            "ingest": times.ingested_us - times.woke_us,
            "race": times.raced_us - times.ingested_us,
            "seal": times.sealed_us - times.raced_us,
            "commit": commit.durable_us - commit.started_us,
            "ack": commit.acked_us - commit.durable_us,
            "hand_over": commit.finished_us - commit.acked_us,
        }
        with self._lock:
            self.beats += 1
            self.rows += times.rows_taken
            self.pages += len(commit.pages)
            self.stage_us.update(stages)
            if times.rows_taken:
                self._latency_us.append(commit.durable_us - times.oldest_us)
            if self._trace is not None:
                wall = self._clock.wall_us() - self._clock.monotonic_us()
                row = {**asdict(times), "durable_wall_us": commit.durable_us + wall}
                row |= {"stages": stages, "pages": commit.pages}
                self._trace.write(json.dumps(row) + "\n")

    def snapshot(self) -> dict[str, Any]:
        """Beats, rows, pages, stage times in µs, and latency from arrival to sealed and durable."""
        with self._lock:
            latency = np.array(self._latency_us or [0], np.int64) / 1000
            p50, p99 = np.percentile(latency, [50, 99])
            return {
                "beats": self.beats,
                "rows": self.rows,
                "pages": self.pages,
                "stage_us": dict(self.stage_us),
                "latency_ms_p50": round(float(p50), 3),
                "latency_ms_p99": round(float(p99), 3),
            }

    def close(self) -> None:
        """Flush the trace."""
        if self._trace is not None:
            self._trace.close()
