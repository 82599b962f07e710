"""Figures of a run of the equipment job: as a whole, or in slices of equal numbers of records.

The first slice is the start: the tasks of Flink, the JVM's compiler.  It is not counted.  The last
one has the end of all jobs.  Where a slice begins and ends is interpolated between samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class RunSample:
    """A run at one moment."""

    at_s: float
    rows: float
    """Records of all jobs so far; where a run is taken as a whole, known at its end only."""
    cpu_s: float
    rss: int
    """Memory in bytes."""


def as_whole(samples: Sequence[RunSample]) -> dict[str, float]:
    """The figures of a run; `samples` are those from begin to end."""
    first, last = samples[0], samples[-1]
    rows = last.rows - first.rows
    return {
        "tuples_per_s": rows / (last.at_s - first.at_s),
        "cpu_s_per_mtuple": (last.cpu_s - first.cpu_s) / rows * 1e6,
        "rss_mb": max(sample.rss for sample in samples) / 1e6,
    }


def in_slices(samples: Sequence[RunSample], count: int) -> list[dict[str, float]]:
    """The figures of each slice but the first, of `count` and one."""
    rows, at_s, cpu_s = (
        np.array([getattr(sample, name) for sample in samples], np.float64)
        for name in ("rows", "at_s", "cpu_s")
    )
    bounds = np.linspace(rows[0], rows[-1], count + 2)[1:]
    each = bounds[1] - bounds[0]
    times, used = np.interp(bounds, rows, at_s), np.interp(bounds, rows, cpu_s)
    found = []
    for k in range(count):
        inside = [s.rss for s in samples if times[k] <= s.at_s <= times[k + 1]]
        after = next(s.rss for s in samples if s.at_s >= times[k + 1])
        found.append({
            "tuples_per_s": float(each / (times[k + 1] - times[k])),
            "cpu_s_per_mtuple": float((used[k + 1] - used[k]) / each * 1e6),
            "rss_mb": max([*inside, after]) / 1e6,
        })  # fmt: skip
    return found
