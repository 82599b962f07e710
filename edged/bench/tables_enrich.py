"""Enrichment end to end: producer → daemon → collector over loopback, with a table on disk.

The table comes from a Parquet file and is populated before the load starts.  Its state has an
eighth of the job's memory, which is less than the table.  Each row of the stream (16 bytes, of a
uniform key) meets its row of the table and is shipped in a page.  `exact` compares the order-free
hash of all rows in the landing with that of the rows that numpy finds.  CPU seconds are those of
all processes.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from edged.bench.e2e import landed_digest
from edged.bench.load import START_US, Load
from edged.bench.rig import Rig, Sample, rig
from edged.bench.tables_data import Row, Tick
from edged.bench.verify import RowDigest
from edged.errors import EdgedError

MEMORY = "1GiB"
_PER_US = 5
_PATIENCE_S = 300
_CHUNK_ROWS = 1 << 22


def enrich_job(address: str, path: Path) -> dict[str, Any]:
    """Stream r enriched from the file's table by its key."""
    stream = {"key": "int32", "value": "float32", "ts": "timestamp"}
    table = {"key": "int32", "factor": "float32", "since": "timestamp"}
    columns = {
        "key": "input.key", "r_value": "input.value", "r_ts": "input.ts",
        "s_value": "table.factor", "s_ts": "table.since",
    }  # fmt: skip
    return {
        "name": "bench",
        "promises": {"latency": "250ms", "memory": MEMORY, "durability": "exactly_once"},
        "streams": {
            "r": {
                "source": {"type": "tcp", "listen": address},
                "columns": stream,
                "time": "ts",
                "idle_after": "60s",
            }
        },
        "tables": {"t": {"source": {"type": "file", "path": str(path)}, "columns": table}},
        "operators": {
            "e": {"type": "enrich", "input": "r", "table": "t", "on": ["key"], "columns": columns}
        },
        "sinks": {
            "out": {
                "type": "pages",
                "input": "e",
                "stream": "matches",
                "partitions": 4,
                "partition_by": ["key"],
            }
        },
    }


def measure_enrich(rows: int, seconds: float, tick: Tick) -> Row:
    """Rows of the stream a second, over `seconds` at full speed, with a table of `rows` rows.

    Raises EdgedError where the table is not populated, or pages are not acknowledged, in time.
    """
    rng = np.random.default_rng(6)
    factor = rng.random(rows, dtype=np.float32)
    since = rng.integers(0, START_US, rows)
    with rig() as bench:
        path = bench.directory / "table.parquet"
        _write_table(path, factor, since)
        start_s = time.monotonic()
        bench.start(enrich_job(bench.address, path))
        _wait(lambda: bool(_table_rows(bench) >= rows), "the table is not populated")
        populated_s = time.monotonic() - start_s
        tick(f"enrichment: {rows:,} rows populated in {populated_s:.1f} s")
        load = Load(bench.address, 1, 32_768, rows, seconds=seconds, tuples_per_us=_PER_US,
                    streams="r")  # fmt: skip
        generator = bench.load(load)
        samples = _watch(bench, generator, tick)
        sent = int(generator.events.get(timeout=_PATIENCE_S)["sent"])
        _wait(bench.drained, "pages are not acknowledged")
        first, last = samples[1], samples[-1]
        passed, took_s = last.rows - first.rows, last.at_s - first.at_s
        cpu = {name: used - first.cpu_s.get(name, 0.0) for name, used in last.cpu_s.items()}
        tick("comparing the rows in the landing")
        got, want = landed_digest(bench.landing), _expected(load, sent, factor, since)
    return {
        "tuples_per_s": passed / took_s, "exact": got == want, "rows": sent, "table_rows": rows,
        "populated_s": populated_s, "cpu_s_per_mtuple": sum(cpu.values()) / passed * 1e6,
        "cpu_s_per_mtuple_by_process": {k: v / passed * 1e6 for k, v in cpu.items()},
    }  # fmt: skip


def _write_table(path: Path, factor: np.ndarray[Any, Any], since: np.ndarray[Any, Any]) -> None:
    keys = np.arange(factor.size, dtype=np.int32)
    stamps = pa.array(since).cast(pa.timestamp("us", tz="UTC"))
    pa.parquet.write_table(pa.table({"key": keys, "factor": factor, "since": stamps}), path)


def _table_rows(bench: Rig) -> int:
    operators = bench.sample().status["jobs"]["bench"]["operators"]
    return int(operators["e"].get("table_applied_rows", 0))


def _wait(is_there: Any, problem: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not is_there():
        if time.monotonic() > deadline:
            raise EdgedError(f"{problem} within {_PATIENCE_S} s")
        time.sleep(0.2)


def _watch(bench: Rig, generator: Any, tick: Tick) -> list[Sample]:
    """Samples, one a second, while the load sends."""
    samples = [bench.sample()]
    while generator.running() and generator.events.empty():
        time.sleep(1.0)
        samples.append(bench.sample())
        for part in bench.parts.values():
            part.check()
    rows = samples[-2].rows - samples[1].rows
    tick(f"enrichment: {rows / max(1e-9, samples[-2].at_s - samples[1].at_s) / 1e6:.2f} M rows/s")
    return samples[:-1]


def _expected(
    load: Load, sent: int, factor: np.ndarray[Any, Any], since: np.ndarray[Any, Any]
) -> RowDigest:
    key, value = load.pool("r")
    digest = RowDigest()
    for start in range(0, sent, _CHUNK_ROWS):
        index = np.arange(start, min(sent, start + _CHUNK_ROWS))
        at = index % key.size
        digest.add(pa.table({
            "key": key[at], "r_value": value[at], "r_ts": START_US + index // _PER_US,
            "s_value": factor[key[at]], "s_ts": since[key[at]],
        }))  # fmt: skip
    return digest
