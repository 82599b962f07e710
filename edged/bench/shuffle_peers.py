"""What else partitions the same rows: Polars, pyarrow and Spark, beside edged.

Rows are of 64 bytes: a 32-bit key and eight more columns of numbers.  All partition them by the
key into `PARTITIONS` parts, on the same number of cores.

    edged     the chosen member, dense pages, tuples of 64 bytes from the generator
    polars    hash of the key, then `partition_by` into tables
    pyarrow   key modulo partitions, sorted by it, rows taken in that order, sliced
    spark     the map stage of `repartition(PARTITIONS, key)`: rows made, serialised, written to
              shuffle files without compression; both cores

Polars and pyarrow begin with the whole table in memory.  Polars runs in a process of its own,
because it fixes its threads when it is imported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from edged.bench.shuffle_grid import ShuffleCell
from edged.bench.shuffle_measure import ShuffleEffort, steady
from edged.errors import CentralError, ConfigError
from edged.pages.shuffle_choice import chosen

PEER_PARTITIONS = 64
PEER_ROW_BYTES = 64
_REPEATS = 3


def measure_peers(
    rows: int, threads: int, effort: ShuffleEffort, spark: bool
) -> tuple[list[dict[str, Any]], list[str]]:
    """Tuples/s and GB/s of each, and what was not measured, and why."""
    cell = ShuffleCell(threads, PEER_PARTITIONS, PEER_ROW_BYTES, layout="dense")
    member = chosen(PEER_PARTITIONS, PEER_ROW_BYTES, threads)
    own = steady(member, cell, effort)
    found = [_peer(f"edged {member}", own["tuples_per_s"])]
    missing = ["flink: needs a cluster of its own; docs/shuffle.md says how it was measured"]
    for name in ("polars", "pyarrow"):
        if find_spec(name) is None:
            missing.append(f"{name} is not installed: pip install {name}")
            continue
        found.append(_peer(name, rows / _in_a_process(name, rows, threads)))
    if not spark:
        return found, missing
    try:
        found.append(_peer("spark", rows / spark_seconds(rows, threads)))
    except (CentralError, ConfigError) as problem:
        missing.append(f"spark: {problem}")
    return found, missing


def _peer(name: str, speed: float) -> dict[str, Any]:
    return {"name": name, "tuples_per_s": round(speed), "gb_per_s": speed * PEER_ROW_BYTES / 1e9}


def peer_columns(rows: int) -> dict[str, npt.NDArray[Any]]:
    """The columns of the table: 64 bytes a row."""
    dice = np.random.default_rng(1)
    columns: dict[str, npt.NDArray[Any]] = {
        "key": dice.integers(0, 2**32, rows, np.uint32),
        "a": np.arange(rows, dtype=np.uint32),
    }
    for i in range(7):
        columns[f"data{i}"] = np.arange(rows, dtype=np.uint64) + np.uint64(i)
    return columns


def _in_a_process(name: str, rows: int, threads: int) -> float:
    environment = {**os.environ, "POLARS_MAX_THREADS": str(threads), "ARROW_NUM_THREADS": str(
        threads), "OMP_NUM_THREADS": str(threads)}  # fmt: skip
    command = [sys.executable, "-m", "edged.bench.shuffle_peers", name, str(rows)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return float(json.loads(done.stdout))


def polars_seconds(rows: int) -> float:
    """The best time of Polars."""
    import polars

    frame = polars.DataFrame(peer_columns(rows))

    def partition() -> int:
        target = (polars.col("key").hash() % PEER_PARTITIONS).alias("partition")
        parts = frame.with_columns(target).partition_by("partition", maintain_order=False)
        return sum(part.height for part in parts)

    return _best(partition, rows)


def pyarrow_seconds(rows: int) -> float:
    """The best time of pyarrow."""
    import pyarrow
    import pyarrow.compute

    compute: Any = pyarrow.compute
    table = pyarrow.table(peer_columns(rows))

    def partition() -> int:
        targets = compute.bit_wise_and(table["key"], pyarrow.scalar(PEER_PARTITIONS - 1, "uint32"))
        order = compute.sort_indices(targets)
        taken, counts = table.take(order), compute.value_counts(targets).field("counts").to_numpy()
        ends = np.cumsum(counts)
        parts = [taken.slice(e - n, n) for e, n in zip(ends, counts, strict=True)]
        return sum(part.num_rows for part in parts)

    return _best(partition, rows)


def _best(partition: Callable[[], int], rows: int) -> float:
    best = float("inf")
    for _ in range(_REPEATS + 1):
        began = time.perf_counter()
        if partition() != rows:
            raise AssertionError("rows were lost")
        best = min(best, time.perf_counter() - began)
    return best


def spark_seconds(rows: int, threads: int) -> float:
    """The best time of Spark's map stage: rows made, partitioned, written to shuffle files.

    Raises CentralError or ConfigError where Spark does not run here."""
    from edged.central.session import open_session

    settings = {"spark.driver.memory": "3g", "spark.shuffle.compress": "false",
                "spark.sql.adaptive.enabled": "false"}  # fmt: skip
    spark = open_session(f"local[{threads}]", "edged bench shuffle", settings)
    try:
        more = [f"id + {i} AS data{i}" for i in range(7)]
        frame = spark.range(0, rows, 1, threads).selectExpr(
            "CAST(hash(id) AS INT) AS key", "CAST(id AS INT) AS a", *more
        )
        best = float("inf")
        for _ in range(_REPEATS):
            frame.repartition(PEER_PARTITIONS, "key").write.format("noop").mode("overwrite").save()
            best = min(best, _map_stage_seconds(spark))
        return best
    finally:
        spark.stop()


def _map_stage_seconds(spark: Any) -> float:
    """Seconds of the newest stage that wrote a shuffle."""
    context = spark.sparkContext
    store, gateway = context._jsc.sc().statusStore(), context._gateway
    quantiles = gateway.new_array(gateway.jvm.double, 0)
    listed = store.stageList(None, False, False, quantiles, gateway.jvm.java.util.ArrayList())
    stages = spark._jvm.scala.jdk.javaapi.CollectionConverters.asJava(listed)
    stages = [s for s in stages if s.shuffleWriteBytes() > 0]
    newest = max(stages, key=lambda s: s.stageId())
    taken = newest.completionTime().get().getTime() - newest.submissionTime().get().getTime()
    return float(taken) / 1000


if __name__ == "__main__":
    ALONE = {"polars": polars_seconds, "pyarrow": pyarrow_seconds}
    sys.stdout.write(json.dumps(ALONE[sys.argv[1]](int(sys.argv[2]))))
