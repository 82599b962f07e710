"""The figures of one row of `edged bench shuffle`.

Throughput is that of the fastest run, as the copy's is, over pages that are used again, first in,
first out, after a run that faults them in; latencies are medians over runs.  Memory is that of a
run which keeps its pages, long enough for four pages in each partition where the effort allows it.
A third run, of few tuples, is checked.
"""

from __future__ import annotations

import resource
import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from edged.bench.shuffle_check import is_exact
from edged.bench.shuffle_grid import TUPLEWISE, ShuffleCell
from edged.pages.shuffle import Shuffle, ShuffleRun, copy_limit
from edged.pages.shuffle_plan import sizes_of

COPY_BLOCK = 1 << 17
"""Bytes of a batch: what the copy reads again and again, as a member reads its batch."""
FULL_PAGES = 4
"""Pages that each partition fills at least in a run whose memory has an aim."""


@dataclass(frozen=True)
class ShuffleEffort:
    """How long a row is measured."""

    seconds: float
    """Least length of all measured runs of a row."""
    run_bytes: int
    """Bytes written by a run."""
    memory_bytes: int
    """Most bytes of a run whose memory is counted."""
    exact_tuples: int = 10_000
    pool_bytes: int = 256 << 20
    runs_min: int = 5
    slower: int = 8
    """Runs of members that insert tuple by tuple are so many times shorter."""

    def tuples(self, member: str, cell: ShuffleCell, size: int) -> int:
        """Tuples that fill `size` bytes, of a faster member."""
        size //= self.slower if member in TUPLEWISE else 1
        return max(1000, size // cell.source(1, False).shape.tuple_bytes)


SHORT = ShuffleEffort(0.12, 256 << 20, 320 << 20)
LONG = ShuffleEffort(2.0, 1 << 30, 1 << 30, pool_bytes=512 << 20, slower=4)
SMOKE = ShuffleEffort(0.0, 1 << 20, 1 << 20, exact_tuples=2000, pool_bytes=2 << 20, runs_min=1)


def steady(
    member: str, cell: ShuffleCell, effort: ShuffleEffort, **settings: bool | int
) -> dict[str, Any]:
    """Throughput, latency, waits and context switches."""
    plan = cell.plan(member, pool_bytes=effort.pool_bytes, **settings)
    tuples = effort.tuples(member, cell, effort.run_bytes)
    shuffle = Shuffle(plan, cell.source(tuples, fresh=False))
    shuffle.run()
    runs: list[dict[str, float]] = []
    switches = _switches()
    while len(runs) < effort.runs_min or sum(r["seconds"] for r in runs) < effort.seconds:
        runs.append(_figures(shuffle.run()))
    switches = _switches() - switches
    seconds = sum(r["seconds"] for r in runs)
    middle = {name: statistics.median(r[name] for r in runs) for name in runs[0]}
    return {
        "tuples_per_s": round(max(r["tuples_per_s"] for r in runs)),
        "gb_per_s": max(r["gb_per_s"] for r in runs),
        "ms_p50": middle["ms_p50"],
        "ms_p99": middle["ms_p99"],
        "cas_retries": round(sum(r["cas_retries"] for r in runs)),
        "lock_waits": round(sum(r["waits"] for r in runs)),
        "context_switches_per_s": round(switches / seconds),
        "measured_s": round(seconds, 3),
    }


def _figures(run: ShuffleRun) -> dict[str, float]:
    return {
        "seconds": run.seconds,
        "tuples_per_s": run.tuples / run.seconds,
        "gb_per_s": run.page_bytes_written / run.seconds / 1e9,
        "ms_p50": run.latency_ns(0.5) / 1e6,
        "ms_p99": run.latency_ns(0.99) / 1e6,
        "cas_retries": run.counters["cas_retries"],
        "waits": run.counters["waits"],
    }


def memory(member: str, cell: ShuffleCell, effort: ShuffleEffort) -> dict[str, Any]:
    """Most memory in use and pages, both over the least."""
    wanted = (FULL_PAGES + 1) * cell.partitions * cell.page_bytes
    size = min(wanted, effort.memory_bytes)
    tuples = effort.tuples(member, cell, size)
    run = Shuffle(cell.plan(member), cell.source(tuples, fresh=False)).run()
    pages = np.bincount([p.partition for p in run.handed()], minlength=cell.partitions)
    return {
        "memory_ratio": run.peak_bytes / run.least_bytes,
        "pages_ratio": run.pages / run.pages_least,
        "pages_of_a_partition": int(pages.min()),
    }


def row(member: str, cell: ShuffleCell, effort: ShuffleEffort, limit: float) -> dict[str, Any]:
    """All figures; `limit` is the copy's GB/s."""
    source = cell.source(effort.exact_tuples, fresh=True)
    plan = cell.plan(member)
    figures = steady(member, cell, effort)
    sizes = sizes_of(plan, source.shape, cell.morsel, source.batch_tuples)
    buffers = sizes.buffer_stride if plan.recipe.buffered else 0
    return {
        "member": member, "layout": cell.layout, "threads": cell.threads,
        "partitions": cell.partitions, "tuple_bytes": cell.tuple_bytes,
        "page_bytes": cell.page_bytes, "buffer_bytes": buffers, "keys": cell.keys,
        "morsel": sizes.batch, "units": plan.units, **figures,
        "fraction_of_memcpy": figures["gb_per_s"] / limit, "copy_gb_per_s": limit,
        **memory(member, cell, effort), "exact": is_exact(plan, source),
    }  # fmt: skip


def limit_of(threads: int, effort: ShuffleEffort) -> float:
    """The copy's GB/s: the better of memcpy and non-temporal stores."""
    return max(copy_limit(effort.run_bytes, threads, min(COPY_BLOCK, effort.run_bytes // 8)))


def checksum_gb_per_s() -> float:
    """GB/s of sealing pages on one core: header and CRC-32."""
    cell = ShuffleCell(partitions=16)
    run = Shuffle(cell.plan("ranges"), cell.source(400_000, fresh=False)).run()
    pages = list(run.handed())
    best = 0.0
    for _ in range(3):
        began = time.perf_counter()
        size = sum(len(run.sealed(page)) for page in pages)
        best = max(best, size / (time.perf_counter() - began) / 1e9)
    return best


def _switches() -> int:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_nvcsw + usage.ru_nivcsw
