"""A landing's rows as a Spark data frame in which Spark itself reads what is compacted.

    landing_frame(spark, "/srv/landing", "curve@1", devices=["turbine-7"], since="2026-11-01")

The frame is `spark.read.parquet` of the compacted files, in union with `format("edged")` for the
pages that are not compacted.  Spark pushes the columns and filters of a query into the Parquet
scan; `columns`, `devices` and the time range reach both sides.  Without such pages the plan is a
Parquet scan alone.

The frame covers what has landed when it is made, each row once, whatever lands or is compacted
afterwards.  A file or segment that retention deletes before the frame is read fails the query.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from edged.central import compacted
from edged.central._source_plan import tasks
from edged.central.read_request import METADATA, Request, resolve
from edged.central.time_range import Time, time_range
from edged.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_GLOB = re.compile(r"([\[\]{}*?\\])")


def landing_frame(
    spark: SparkSession,
    landing: str | Path,
    stream: str,
    *,
    columns: Sequence[str] = (),
    devices: Sequence[str] = (),
    since: Time = None,
    until: Time = None,
    time: str = "",
    metadata: bool = False,
    corrupt: str = "skip",
) -> DataFrame:
    """The landed rows of `stream`; the arguments are those of `edged.read_landing`.

    `spark` must have `format("edged")`.  Raises ConfigError for wrong arguments, CentralError for
    an unregistered stream or a damaged manifest.
    """
    if corrupt not in ("skip", "fail"):
        raise ConfigError(f"corrupt: {corrupt!r} is neither skip nor fail")
    place = Path(landing).absolute()
    request = resolve(place, stream, columns, metadata)
    times = time_range(request.name, request.schema, time, since, until)
    request = replace(request, devices=tuple(devices), times=times)
    found = compacted.snapshot(place)
    paths = [str(path) for path, _ in found.files(place, request.name)]
    position = _with_pages(request, found)
    frames = []
    if paths:
        frames.append(_parquet(spark, request, paths))
    if position or not paths:
        frames.append(_pages(spark, request, position, corrupt))
    return frames[0] if len(frames) == 1 else frames[0].union(frames[1])


def _with_pages(request: Request, found: compacted.LandingSnapshot) -> dict[str, int]:
    """The part of the position that has pages of the stream."""
    planned = tasks(request.landing, request.stream_hash, {}, found.position, 1 << 40)
    return {name: found.position[name] for task in planned for name, _, _ in task}


def _parquet(spark: SparkSession, request: Request, paths: Sequence[str]) -> DataFrame:
    from pyspark.sql import functions as f

    from edged.central.datasource import spark_schema

    every = (*request.schema.names, *METADATA)
    reader = spark.read.schema(spark_schema(replace(request, columns=every)))
    reader = reader.option("parquet.page.verify-checksum.enabled", "true")
    frame = reader.parquet(*("file://" + _GLOB.sub(r"\\\1", path) for path in paths))
    if request.devices:
        frame = frame.where(f.col("_device").isin(*request.devices))
    if request.times is not None:
        column = f.col(_quoted(request.times.column))
        if request.times.since_us is not None:
            frame = frame.where(column >= f.timestamp_micros(f.lit(request.times.since_us)))
        if request.times.until_us is not None:
            frame = frame.where(column < f.timestamp_micros(f.lit(request.times.until_us)))
    return frame.select(*map(_quoted, request.columns))


def _pages(
    spark: SparkSession, request: Request, position: dict[str, int], corrupt: str
) -> DataFrame:
    options = {
        "landing": request.landing,
        "stream": request.name,
        "metadata": str(request.columns[-len(METADATA) :] == tuple(METADATA)).lower(),
        "columns": ",".join(n for n in request.columns if n in request.schema),
        "position": json.dumps(position),
        "corrupt": corrupt,
    }
    if request.devices:
        options["devices"] = ",".join(request.devices)
    if request.times is not None:
        options["time"] = request.times.column
        for name, at_us in (("since", request.times.since_us), ("until", request.times.until_us)):
            if at_us is not None:
                options[name] = request.times.text(at_us)
    return spark.read.format("edged").options(**options).load()


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
