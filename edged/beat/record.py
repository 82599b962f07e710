"""The log record of a beat: its facts, and the inputs staged since the last beat.

Facts are one JSON object.  They hold everything that depends on processing time: the numbers of
staged and taken rows, watermarks, producers' sequences, and which open pages were flushed.  A
replay of the record therefore repeats the beat exactly.

    {"wall": µs, "change": null | {…}, "jobs": {job: {"race": bool, "flush": 0 | 1 | 2,
        "processed": {operator: [rows, …]}, "sealed_early": {sink: bytes},
        "throttled": true, "streams":
        {stream: {"logged": [rows, chunks], "take": [chunks, rows], "watermark": µs,
                  "producers": {…}, "refused": rows, "set_aside": [chunks, rows],
                  "reopen": µs | null, "loaded": [chunks, rows]}},
        "loads": {operator: {…}}, "ran": {operator: {…}}}}}

A table whose source says so has `"populated": true` in the beat with the last of its first rows.
`processed` is missing where no operator left rows to later beats (`Deferring` in
`edged.operators.base`), and `sealed_early` where no sink sealed pages to keep its open ones within
these bytes.  `throttled` is there where the job took no rows because a sink was full.
`loaded` and `loads` are missing where no rows skipped the log
(`edged.beat.table_loads`): `loads` has what each operator that loaded some says, the files first of
all.  `ran` is missing where no operator ran that may also wait (`edged.beat.schedules`).

A record with a `change` (`edged.beat.jobs`) has no jobs and no inputs: it records a change of the
jobs between two beats.

Inputs are the raw arrays, in the order of jobs and streams in the facts; for each stream with
logged rows: chunk producer (int32), stop, time_min, time_max (int64); then per column the offsets
(int64, unchanged) of a variable column, its values (a variable column's bytes from the first
to the last offset), and the validity of a nullable one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from edged.data.columns import Batch, Column
from edged.data.flow import WATERMARK_MAX_US
from edged.data.schema import Schema
from edged.data.staging import Chunks
from edged.job.changes import Change
from edged.sinks.base import Flush


@dataclass(slots=True)
class StreamFacts:
    """One stream's part of a beat."""

    logged_rows: int = 0
    logged_chunks: int = 0
    take_chunks: int = 0
    take_rows: int = 0
    watermark_us: int = 0
    producers: dict[str, Any] = field(default_factory=dict)
    set_aside: list[int] = field(default_factory=list)
    """[chunks, rows] that were quarantined and dropped before the take."""
    refused_ahead: int = 0
    """Rows refused so far because their time was too far ahead."""
    reopen_us: int | None = None
    """The watermark before this beat's rows, of an ended stream that is opened again."""
    loaded: list[int] = field(default_factory=list)
    """[chunks, rows] that skipped the log: they are neither logged nor taken."""
    populated: bool = False
    """Whether a table's first rows are complete with this beat's, as the source has said."""

    @property
    def rows(self) -> int:
        """Rows that the beat takes or loads."""
        return self.take_rows + (self.loaded[1] if self.loaded else 0)


@dataclass(slots=True)
class JobFacts:
    """One job's part of a beat."""

    race: bool
    flush: Flush
    streams: dict[str, StreamFacts]
    processed: dict[str, list[int]] | None = None
    """Rows of each input that operators processed, of operators that leave rows to later beats;
    None: they decide."""
    sealed_early: dict[str, int] | None = None
    """The limit, in bytes, of each sink that sealed pages early to keep its open ones within it;
    None: the beat decides."""
    throttled: bool = False
    """Whether it takes no rows because a sink is full."""
    loads: dict[str, Any] | None = None
    """What each operator loaded past the log; None: they do so now."""
    ran: dict[str, Any] | None = None
    """The operators that ran, of those that may wait, with what a replay of each needs; None: it is
    decided in the beat."""

    def ends(self) -> bool:
        """Whether every stream is at its end after this beat."""
        return all(f.watermark_us == WATERMARK_MAX_US for f in self.streams.values())


@dataclass(slots=True)
class BeatFacts:
    """The decisions of one beat."""

    wall_us: int
    jobs: dict[str, JobFacts]
    change: Change | None = None

    def rows_logged(self) -> int:
        """Rows of all jobs staged since the last beat."""
        return sum(f.logged_rows for j in self.jobs.values() for f in j.streams.values())

    def rows_taken(self) -> int:
        """Rows of all jobs that the beat takes."""
        return sum(f.rows for j in self.jobs.values() for f in j.streams.values())

    def takes(self, job: str) -> bool:
        """Whether this job takes rows."""
        return any(f.rows for f in self.jobs[job].streams.values())

    def encode(self) -> bytes:
        """The facts as JSON text."""
        jobs = {
            name: {
                "race": j.race,
                "flush": int(j.flush),
                **({"processed": j.processed} if j.processed else {}),
                **({"sealed_early": j.sealed_early} if j.sealed_early else {}),
                **({"throttled": True} if j.throttled else {}),
                **({"loads": j.loads} if j.loads else {}),
                **({"ran": j.ran} if j.ran else {}),
                "streams": {
                    s: {
                        "logged": [f.logged_rows, f.logged_chunks],
                        "take": [f.take_chunks, f.take_rows],
                        "watermark": f.watermark_us,
                        "producers": f.producers,
                        "refused": f.refused_ahead,
                        "set_aside": f.set_aside,
                        "reopen": f.reopen_us,
                        **({"loaded": f.loaded} if f.loaded else {}),
                        **({"populated": True} if f.populated else {}),
                    }
                    for s, f in j.streams.items()
                },
            }
            for name, j in self.jobs.items()
        }
        change = None if self.change is None else self.change.to_json()
        facts = {"wall": self.wall_us, "change": change, "jobs": jobs}
        return json.dumps(facts, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> BeatFacts:
        """The inverse of `encode`."""
        document = json.loads(data)
        jobs = {}
        for name, j in document["jobs"].items():
            streams = {s: _stream_facts(f) for s, f in j["streams"].items()}
            processed, early = j.get("processed", {}), j.get("sealed_early", {})
            throttled, loads = j.get("throttled", False), j.get("loads", {})
            race, flush, ran = j["race"], Flush(j["flush"]), j.get("ran", {})
            jobs[name] = JobFacts(race, flush, streams, processed, early, throttled, loads, ran)
        change = document.get("change")
        return cls(document["wall"], jobs, Change(**change) if change else None)


def _stream_facts(document: dict[str, Any]) -> StreamFacts:
    logged_rows, logged_chunks = document["logged"]
    take_chunks, take_rows = document["take"]
    return StreamFacts(
        logged_rows,
        logged_chunks,
        take_chunks,
        take_rows,
        document["watermark"],
        document["producers"],
        document["set_aside"],
        document["refused"],
        document.get("reopen"),
        document.get("loaded", []),
        document.get("populated", False),
    )


def input_arrays(batch: Batch, chunks: Chunks) -> list[npt.NDArray[Any]]:
    """The arrays of one stream's logged rows, in the order that `read_inputs` expects."""
    arrays: list[npt.NDArray[Any]] = [
        chunks.producer,
        chunks.stop,
        chunks.time_min,
        chunks.time_max,
    ]
    for column in batch.columns:
        if column.offsets is None:
            arrays.append(column.values)
        else:
            arrays.append(column.offsets)
            arrays.append(column.values[int(column.offsets[0]) : int(column.offsets[-1])])
        if column.valid is not None:
            arrays.append(column.valid)
    return arrays


def read_inputs(
    schema: Schema, facts: StreamFacts, arrays: Iterator[npt.NDArray[np.uint8]]
) -> tuple[Batch, Chunks]:
    """One stream's logged rows, from the log's byte arrays."""
    producer = next(arrays).view(np.int32)
    stop, time_min, time_max = (next(arrays).view(np.int64) for _ in range(3))
    columns = []
    for f in schema:
        offsets = None
        if f.dtype.variable:
            offsets = next(arrays).view(np.int64)
            offsets = offsets - offsets[0]
        values = next(arrays).view(f.dtype.numpy)
        valid = next(arrays) if f.nullable else None
        columns.append(Column(values, valid, offsets))
    batch = Batch(schema, facts.logged_rows, tuple(columns))
    return batch, Chunks(producer, stop, time_min, time_max)


def input_count(schema: Schema) -> int:
    """Number of arrays that `read_inputs` takes for a stream of this schema."""
    return 4 + sum(1 + f.dtype.variable + f.nullable for f in schema)


def buffers(
    jobs: Mapping[str, Mapping[str, tuple[Batch, Chunks]]],
) -> list[npt.NDArray[Any]]:
    """The arrays of all logged rows, in order; streams without rows add none."""
    return [
        array
        for streams in jobs.values()
        for batch, chunks in streams.values()
        if batch.rows
        for array in input_arrays(batch, chunks)
    ]
