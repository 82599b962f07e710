"""`edged bench spark`: Spark reading landed pages, against the same rows read from Parquet.

    SELECT key % 1000, count(*), sum(value) … GROUP BY 1        over rows of 28 bytes, 5 columns

Each table is read warm several times in turn and the median counts.  Pages are read twice over:
with `columns` naming the two that the query needs (Parquet gets to know that from Spark), and
without.  The results of all must be equal.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from edged.bench.rig import machine
from edged.central import segments
from edged.central.session import open_session
from edged.columns import Batch
from edged.operators.base import BeatContext
from edged.pages.format import parse_header
from edged.pages.write import PageStream, PageWriter
from edged.schema import TYPES as T
from edged.schema import Field, Schema
from edged.workers import Workers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = Schema.of(
    Field(name, T[kind])
    for name, kind in (
        ("key", "int32"),
        ("value", "float64"),
        ("time", "timestamp"),
        ("a", "float32"),
        ("b", "float32"),
    )
)
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure."""

    rows: int = 20_000_000
    runs: int = 5
    master: str = "local[*]"
    page_bytes: int = 1 << 20


def run(options: Options) -> dict[str, Any]:
    """Write the rows as pages and as Parquet, read both, and return the figures."""
    with tempfile.TemporaryDirectory(prefix="edged-bench-") as place:
        landing, parquet = Path(place, "landing"), Path(place, "parquet")
        write_rows(options, landing, parquet)
        spark = open_session(options.master, "edged bench", {"spark.driver.memory": "2g"})
        try:
            return measure(spark, options, landing, parquet)
        finally:
            spark.stop()


def write_rows(options: Options, landing: Path, parquet: Path) -> None:
    """The same random rows as a landing and as Parquet files, a file for each segment."""
    (landing / "schemas").mkdir(parents=True)
    parquet.mkdir()
    (landing / "schemas" / "bench@1.json").write_text(SCHEMA.to_json())
    stream = PageStream("bench", 1, "bench", 1, SCHEMA, "time", capacity=options.page_bytes)
    pages, beat = PageWriter(stream), BeatContext(1, 0, Workers(1))
    dice = np.random.default_rng(1)
    per_segment = max(1, segments.SEGMENT_BYTES // 28 // _CHUNK)
    chunks = -(-options.rows // _CHUNK)
    for number in range(-(-chunks // per_segment)):
        name = segments.segment_name("bench", number + 1)
        writer = segments.SegmentWriter(landing, name)
        with pq.ParquetWriter(parquet / f"{name}.parquet", SCHEMA.to_arrow()) as file:
            for i in range(number * per_segment, min(chunks, (number + 1) * per_segment)):
                batch = _rows(dice, min(_CHUNK, options.rows - i * _CHUNK), i * _CHUNK)
                file.write_batch(batch)
                pages.write(beat, Batch.from_arrow(batch, SCHEMA))
                _land(writer, [p.data for p in pages.seal(beat, flush=i % per_segment == 0)])
        _land(writer, [p.data for p in pages.seal(beat, flush=True)])
        writer.close()


def _rows(dice: np.random.Generator, rows: int, first: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array(dice.integers(0, 1_000_000, rows, np.int32)),
            pa.array(dice.integers(0, 1 << 40, rows) / 1024.0),
            pa.array(np.arange(first, first + rows)).cast(pa.timestamp("us", tz="UTC")),
            pa.array(dice.random(rows, np.float32)),
            pa.array(dice.random(rows, np.float32)),
        ],
        schema=SCHEMA.to_arrow(),
    )


def _land(writer: segments.SegmentWriter, pages: list[bytes]) -> None:
    rows = np.zeros(len(pages), segments.ROW)
    hashes = segments.stream_hash("bench", 1), segments.device_hash("bench")
    for i, page in enumerate(pages):
        h = parse_header(page)
        at = writer.append([page])
        place = (at, len(page), h.checksum, h.tuples, h.partition, h.seq, h.epoch)
        rows[i] = (*place, 0, *hashes)
    writer.commit(rows)


def measure(spark: SparkSession, options: Options, landing: Path, parquet: Path) -> dict[str, Any]:
    """Read what `write_rows` wrote; `spark` knows `format("edged")`."""

    def pages(**more: str) -> DataFrame:
        reader = spark.read.format("edged").option("landing", str(landing))
        return reader.option("stream", "bench@1").options(**more).load()

    sources: dict[str, Callable[[], DataFrame]] = {
        "pages": lambda: pages(columns="key,value"),
        "pages_all_columns": pages,
        "parquet": lambda: spark.read.parquet(str(parquet)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in sources}
    answers: dict[str, Any] = {}
    for _ in range(options.runs + 1):
        for name, source in sources.items():
            started = time.perf_counter()
            answers[name] = _query(source())
            seconds[name].append(time.perf_counter() - started)
    figures = {n: options.rows / statistics.median(s[1:]) for n, s in seconds.items()}
    return {
        "machine": machine(),
        "rows": options.rows,
        "runs": options.runs,
        "row_bytes": 28,
        "page_bytes": options.page_bytes,
        "pages_rows_per_s": round(figures["pages"]),
        "pages_all_columns_rows_per_s": round(figures["pages_all_columns"]),
        "parquet_rows_per_s": round(figures["parquet"]),
        "ratio": round(figures["pages"] / figures["parquet"], 3),
        "first_query_s": {n: round(s[0], 2) for n, s in seconds.items()},
        "equal": all(_same(a, answers["parquet"]) for a in answers.values()),
    }


def _query(frame: DataFrame) -> list[tuple[int, int, float]]:
    from pyspark.sql import functions as f

    groups = frame.groupBy((f.col("key") % 1000).alias("group"))
    found = groups.agg(f.count("*").alias("n"), f.sum("value").alias("total")).collect()
    return sorted((int(r["group"]), int(r["n"]), float(r["total"])) for r in found)


def _same(some: list[tuple[int, int, float]], other: list[tuple[int, int, float]]) -> bool:
    return len(some) == len(other) and all(
        a[:2] == b[:2] and abs(a[2] - b[2]) <= 1e-9 * abs(b[2])
        for a, b in zip(some, other, strict=True)
    )


@click.command("spark")
@click.option("--rows", default=20_000_000, show_default=True, help="Rows to read.")
@click.option("--runs", default=5, show_default=True, help="Warm runs; the median counts.")
@click.option("--master", default="local[*]", show_default=True, help="Spark master.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the figures here.")
def command(rows: int, runs: int, master: str, path: Path | None) -> None:
    """Spark's rows per second from pages, and from Parquet with the same rows."""
    result = run(Options(rows=rows, runs=runs, master=master))
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")
    table = Table(title=f"{rows:,} rows into groupBy(key % 1000), {master}")
    for heading in ("read from", "million rows/s", "first query, s"):
        table.add_column(heading, justify="left" if heading == "read from" else "right")
    for name, first_s in result["first_query_s"].items():
        speed = result[f"{name}_rows_per_s"] / 1e6
        table.add_row(name.replace("_", " "), f"{speed:.1f}", f"{first_s:.1f}")
    console = Console(stderr=True)
    console.print(table)
    if not result["equal"]:
        raise click.ClickException("the results differ: pages and Parquet do not hold the same")
