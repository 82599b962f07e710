"""`edged bench spark`: Spark reading landed pages and compacted rows, against plain Parquet.

    SELECT key % 1000, count(*), sum(value), …  GROUP BY 1      over rows of 28 bytes, 5 columns

The query runs over 2 columns and over all 5. The page source decodes only the columns named in its
option `columns`; for Parquet, Spark prunes columns itself. Reads of the tables alternate. The first
run of each is reported apart; the figures are medians of the others. All results must be equal.

    pages           format("edged") over segments
    compacted       edged.central.landing_frame over the same segments after `edged central compact`
    Parquet         files that pyarrow writes of the same rows, one for each segment

Two more readings show what limits the pages:

    ready batches   a Python data source that returns one prepared Arrow batch again and again.
                    It is the upper bound for every Python source: its time is Spark's transfer
                    from a Python worker into the aggregation, row by row
    reader alone    edged's reader without Spark, in this process, on one core

CPU seconds cover Spark's Java process and its Python workers over the warm runs. On a shared
machine they are more reliable than rows/s.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from edged.bench.rig import machine
from edged.central import seals, segments
from edged.central.compactor import Compaction, compact
from edged.central.landing_frame import landing_frame
from edged.central.session import open_session
from edged.console.consoles import figures_console
from edged.data.columns import Batch
from edged.data.flow import BeatContext
from edged.data.schema import TYPES as T
from edged.data.schema import Field, Schema
from edged.data.workers import Workers
from edged.pages.format import parse_header
from edged.pages.write import PageStream, PageWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource

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
    """Settings of a run."""

    rows: int = 20_000_000
    runs: int = 4
    master: str = "local[*]"
    page_bytes: int = 1 << 20


Say = Callable[[str], None]


def run(options: Options, say: Say = lambda text: None) -> dict[str, Any]:
    """Write the rows as pages and as Parquet, read both, and return the figures."""
    with tempfile.TemporaryDirectory(prefix="edged-bench-") as place:
        landing, parquet = Path(place, "landing"), Path(place, "parquet")
        say(f"writing {options.rows:,} rows as pages and as Parquet")
        write_rows(options, landing, parquet)
        say("starting Spark")
        spark = open_session(options.master, "edged bench", {"spark.driver.memory": "2g"})
        try:
            figures = measure(spark, options, landing, parquet, say)
        finally:
            spark.stop()
        say("reading without Spark")
        figures["limits"]["reader_alone_rows_per_s"] = round(read_alone(landing))
        return figures


def write_rows(options: Options, landing: Path, parquet: Path) -> None:
    """Write the same random rows as a landing and as Parquet files, one file for each segment."""
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
        seals.write(landing, name, seals.greatest(segments.read_rows(landing, name)))


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


def compacted_twin(landing: Path) -> tuple[Path, Compaction, float]:
    """A compacted landing beside `landing` with the same segments, and the seconds it took."""
    twin = landing.with_name("compacted")
    shutil.copytree(landing, twin, copy_function=os.link)
    started = time.perf_counter()
    done = compact(twin)
    return twin, done, time.perf_counter() - started


def measure(
    spark: SparkSession,
    options: Options,
    landing: Path,
    parquet: Path,
    say: Say = lambda text: None,
) -> dict[str, Any]:
    """Run the query on the output of `write_rows`; returns the figures as a JSON document.

    `spark` must have `format("edged")` registered.
    """
    say("compacting")
    twin, compaction, compacting_s = compacted_twin(landing)
    readings = _readings(spark, options, landing, twin, parquet)
    results: dict[str, list[_QueryRun]] = {name: [] for name in readings}
    for number in range(options.runs + 1):
        for name, (frame, wide) in readings.items():
            turn = f"run {number} of {options.runs}" if number else "first run"
            say(f"{name.replace('_', ' ')}: {turn}")
            results[name].append(_QueryRun.of(frame, wide))
    speed = {
        n: options.rows / statistics.median(r.wall_s for r in v[1:]) for n, v in results.items()
    }
    cpu = {n: statistics.median(r.cpu_s for r in v[1:]) for n, v in results.items()}
    return {
        "machine": machine(),
        "rows": options.rows,
        "runs": options.runs,
        "row_bytes": 28,
        "page_bytes": options.page_bytes,
        **{f"{n}_rows_per_s": round(s) for n, s in speed.items() if n != "ready_batches"},
        "ratio": round(speed["pages"] / speed["parquet"], 3),
        "ratio_all_columns": round(speed["pages_all_columns"] / speed["parquet_all_columns"], 3),
        "compacted_fraction_of_parquet": {
            "two_columns": round(speed["compacted"] / speed["parquet"], 3),
            "all_columns": round(speed["compacted_all_columns"] / speed["parquet_all_columns"], 3),
        },
        "compaction": {
            "rows_per_s": round(options.rows / compacting_s),
            "page_bytes_per_s": round(compaction.page_bytes / compacting_s),
            "parquet_bytes_per_page_byte": round(
                compaction.parquet_bytes / compaction.page_bytes, 3
            ),
        },
        "cpu_s_per_mrow": {n: round(c / options.rows * 1e6, 4) for n, c in cpu.items()},
        "first_query_s": {n: round(v[0].wall_s, 2) for n, v in results.items()},
        "rss_mb_max": round(max(s.rss_mb for v in results.values() for s in v)),
        "limits": {
            "ready_batches_rows_per_s": round(speed["ready_batches"]),
            "ratio_of_ready_batches": round(speed["ready_batches"] / speed["parquet"], 3),
        },
        "equal": all(
            _same(results[f"{name}{end}"][0].rows, results[f"parquet{end}"][0].rows)
            for name in ("pages", "compacted")
            for end in ("", "_all_columns")
        ),
    }


def _readings(
    spark: SparkSession, options: Options, landing: Path, twin: Path, parquet: Path
) -> dict[str, tuple[Callable[[], DataFrame], bool]]:
    """Readings by name: the data frame's factory, and whether the query uses all columns."""
    ready = _ready_source()
    spark.dataSource.register(ready)

    def pages(**more: str) -> DataFrame:
        reader = spark.read.format("edged").option("landing", str(landing))
        return reader.option("stream", "bench@1").options(**more).load()

    def compacted() -> DataFrame:
        return landing_frame(spark, twin, "bench@1")

    def ready_batches() -> DataFrame:
        return spark.read.format(ready.name()).option("rows", str(options.rows)).load()

    return {
        "pages": (lambda: pages(columns="key,value"), False),
        "compacted": (compacted, False),
        "parquet": (lambda: spark.read.parquet(str(parquet)), False),
        "ready_batches": (ready_batches, False),
        "pages_all_columns": (pages, True),
        "compacted_all_columns": (compacted, True),
        "parquet_all_columns": (lambda: spark.read.parquet(str(parquet)), True),
    }


def _ready_source() -> type[DataSource]:
    """A source of two columns that returns one batch repeatedly, in 8 tasks.

    The class is defined inside a function so that Spark serialises it by value; workers do not
    import this module.
    """
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class Reader(DataSourceReader):  # type: ignore[misc]
        def __init__(self, rows: int) -> None:
            self.rows = rows

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(i) for i in range(8)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            rows = self.rows * (partition.value + 1) // 8 - self.rows * partition.value // 8
            kinds = (("key", pa.int32()), ("value", pa.float64()))
            schema = pa.schema([pa.field(name, kind, False) for name, kind in kinds])
            columns = [pa.array(range(65536), kind) for _, kind in kinds]
            batch = pa.RecordBatch.from_arrays(columns, schema=schema)
            while rows:
                yield batch.slice(0, min(rows, 65536))
                rows -= min(rows, 65536)

    class Ready(DataSource):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return "edged-ready"

        def schema(self) -> str:
            return "key int not null, value double not null"

        def reader(self, schema: Any) -> DataSourceReader:
            return Reader(int(self.options["rows"]))

    return Ready


def read_alone(landing: Path) -> float:
    """Rows/s of edged's reader without Spark: two columns, one core, the best of three runs."""
    from edged.central.datasource import EdgedDataSource

    options = {"landing": str(landing), "stream": "bench@1", "columns": "key,value"}
    source = EdgedDataSource(options)
    reader = source.reader(source.schema())
    best = 0.0
    for _ in range(3):
        started = time.perf_counter()
        rows = sum(b.num_rows for p in reader.partitions() for b in reader.read(p))
        best = max(best, rows / (time.perf_counter() - started))
    return best


@dataclass(frozen=True, slots=True)
class _QueryRun:
    """One run of a query: its rows, wall time, CPU time, and resident memory."""

    rows: list[tuple[Any, ...]]
    wall_s: float
    cpu_s: float
    rss_mb: float

    @classmethod
    def of(cls, frame: Callable[[], DataFrame], wide: bool) -> _QueryRun:
        cpu_s, started = _spark_processes()[0], time.perf_counter()
        rows = _query(frame(), wide)
        wall_s = time.perf_counter() - started
        after_s, rss_mb = _spark_processes()
        return cls(rows, wall_s, max(0.0, after_s - cpu_s), rss_mb)


def _spark_processes() -> tuple[float, float]:
    """CPU seconds and resident memory (MB) of this process and its live descendants."""
    cpu_s = rss_mb = 0.0
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        try:
            times = process.cpu_times()
            rss_mb += process.memory_info().rss / 1e6
        except psutil.NoSuchProcess:
            continue
        cpu_s += times.user + times.system
    return cpu_s, rss_mb


def _query(frame: DataFrame, wide: bool) -> list[tuple[Any, ...]]:
    from pyspark.sql import functions as f

    groups = frame.groupBy((f.col("key") % 1000).alias("group"))
    wanted = [f.count("*"), f.sum("value")]
    if wide:
        wanted += [f.sum("a"), f.sum("b"), f.max(f.unix_micros("time"))]
    return sorted(tuple(row) for row in groups.agg(*wanted).collect())


def _same(some: list[tuple[Any, ...]], other: list[tuple[Any, ...]]) -> bool:
    """Whether counts are equal, and sums equal within 1e-9 relative (summation order differs)."""
    return len(some) == len(other) and all(
        a[:2] == b[:2] and np.allclose(a[2:], b[2:], rtol=1e-9, atol=0.0)
        for a, b in zip(some, other, strict=True)
    )


@click.command("spark")
@click.option("--rows", default=20_000_000, show_default=True, help="Rows of 28 bytes to read.")
@click.option("--runs", default=4, show_default=True, help="Warm runs; the median counts.")
@click.option("--master", default="local[*]", show_default=True, help="Spark master.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the figures here.")
def command(rows: int, runs: int, master: str, path: Path | None) -> None:
    """Spark's rows per second from pages, from compacted rows, and from plain Parquet.

    Runs a GROUP BY over 2 columns and over all 5, and shows what limits it. With the defaults:
    about three minutes, under 4 GB of memory and 2 GB of disk in the temporary directory.
    """
    console = figures_console()
    show = console.status("…") if console.is_terminal else nullcontext()
    with show as status:

        def say(text: str) -> None:
            if status is None:
                console.print(text)
            else:
                status.update(text)

        result = run(Options(rows=rows, runs=runs, master=master), say)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")
    _show(console, result, master)
    if not result["equal"]:
        raise click.ClickException("the results of pages, compacted rows and Parquet differ")


def _show(console: Console, result: dict[str, Any], master: str) -> None:
    table = Table(title=f"{result['rows']:,} rows into groupBy(key % 1000), {master}")
    for heading in ("read from", "million rows/s", "CPU s per million rows", "first query, s"):
        table.add_column(heading, justify="left" if heading == "read from" else "right")
    for name, first_s in result["first_query_s"].items():
        speed = {**result, **result["limits"]}[f"{name}_rows_per_s"] / 1e6
        cpu_s = result["cpu_s_per_mrow"][name]
        table.add_row(name.replace("_", " "), f"{speed:.1f}", f"{cpu_s:.3f}", f"{first_s:.1f}")
    console.print(table)
    alone = result["limits"]["reader_alone_rows_per_s"] / 1e6
    compacted = result["compacted_fraction_of_parquet"]
    console.print(
        f"compacted rows at {compacted['two_columns']:.2f} of Parquet with 2 columns, "
        f"{compacted['all_columns']:.2f} with all; compacting takes "
        f"{result['compaction']['rows_per_s'] / 1e6:.1f} million rows/s."
    )
    console.print(
        f"pages at {result['ratio']:.2f} of Parquet with 2 columns, "
        f"{result['ratio_all_columns']:.2f} with all; the upper bound of a Python source is "
        f"{result['limits']['ratio_of_ready_batches']:.2f}. The reader alone: {alone:.0f} million "
        "rows/s on one core."
    )
