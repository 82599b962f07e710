"""Speed of materialisation: gathering rows by number and writing them into dense pages.

The output row is (int32 key, float32 value, int64 time), 16 bytes. `edged.data.gather.take` gathers
random rows of a window, and `edged.pages.write` copies them into an open page, one page at a time.
Sealing (the entropy sample, CRC-32 and the copy of the page's bytes) is timed separately.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

from edged.data.columns import Batch, Column
from edged.data.flow import BeatContext
from edged.data.gather import take
from edged.data.schema import TYPES, Field, Schema
from edged.data.scratch import Scratch
from edged.data.workers import Workers
from edged.pages.read import read_page
from edged.pages.write import PageStream, PageWriter

ROW_BYTES = 16
MATCHES = 65_000
"""Rows of a beat. They fit one page of 1 MiB."""
_SCHEMA = Schema.of([Field("key", TYPES["int32"]), Field("value", TYPES["float32"]),
                     Field("time", TYPES["timestamp"])])  # fmt: skip
_LISTS = 16


def measure_pages(window: int, seconds: float, repeats: int) -> dict[str, Any]:
    """The figures of one row of `edged bench join`: matches/s gathered and written on one core, and
    matches/s sealed, from a window of `window` rows.

    `exact` is true if each first page, read back, holds the gathered rows.
    """
    dice = np.random.default_rng(window)
    columns = (
        Column(dice.integers(0, 2**31 - 1, window, np.int32)),
        Column(dice.random(window, np.float32)),
        Column(np.arange(window)),
    )
    source = Batch(_SCHEMA, window, columns)
    lists = [dice.integers(0, window, MATCHES) for _ in range(_LISTS)]
    stream = PageStream("bench", 1, "bench", 1, _SCHEMA, "time")
    writer, scratch, workers = PageWriter(stream), Scratch(), Workers(1)
    beat = BeatContext(1, 0, workers)
    runs, exact = [], True
    for number in range(repeats + 1):
        written_s = sealed_s = cpu_s = 0.0
        matches = 0
        while written_s < (seconds if number else 0.0) or not matches:
            rows = lists[matches // MATCHES % _LISTS]
            cpu, before = time.process_time(), time.perf_counter()
            writer.write(beat, take(source, rows, scratch))
            between = time.perf_counter()
            cpu_s += time.process_time() - cpu
            pages = writer.seal(beat, flush=True)
            written_s += between - before
            sealed_s += time.perf_counter() - between
            if not matches:
                exact = exact and len(pages) == 1 and _same(pages[0].data, source, rows)
            matches += MATCHES
        runs.append((matches / written_s, matches / sealed_s, cpu_s / matches * 1e6))
    workers.close()
    return {
        "batch": MATCHES,
        "tuples_per_s": round(statistics.median(r[0] for r in runs[1:])),
        "cpu_s_per_mtuple": statistics.median(r[2] for r in runs[1:]),
        "repeats_tuples_per_s": [round(r[0]) for r in runs[1:]],
        "matches_per_s_core": round(statistics.median(r[0] for r in runs[1:])),
        "sealed_matches_per_s": round(statistics.median(r[1] for r in runs[1:])),
        "exact": exact,
    }


def _same(page: bytes, source: Batch, rows: Any) -> bool:
    """Whether the page read back holds the gathered rows."""
    found = Batch.from_arrow(read_page(page, _SCHEMA), _SCHEMA)
    return all(
        np.array_equal(got.values, given.values[rows])
        for got, given in zip(found.columns, source.columns, strict=True)
    )
