"""Reads landed pages into Arrow batches; runs on executors, too."""

from __future__ import annotations

import contextlib
import gc
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from edged.central import segments
from edged.central._source_plan import Slice
from edged.central.read_request import Request
from edged.central.tables import replace_file
from edged.errors import CentralError, PageError
from edged.pages.format import Header, verify
from edged.pages.read import PageDecoder

OnCorrupt = Callable[[Request, str, Any, PageError], None]
BATCH_BYTES = 2 << 20
"""Page bytes per Arrow batch: 75 000 rows of 28 bytes, which stay in the cache."""


def read(
    request: Request, slices: tuple[Slice, ...], on_corrupt: OnCorrupt | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of the stream's pages in `slices`, in order, as large batches.

    A damaged page is left out and given to `on_corrupt` (default: `mark_corrupt`); raises PageError
    instead where the request says so.
    """
    _freeze_imports()
    return decode(request, _pages(request, slices), on_corrupt)


def decode(
    request: Request,
    pages: Iterable[tuple[str, Any, memoryview]],
    on_corrupt: OnCorrupt | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of `pages`, each with its segment and its index row, as `read` gives them."""
    out = request.arrow_schema()
    decoder = PageDecoder(request.schema, request.decoded())
    taken: list[tuple[Header, int]] = []
    for segment, row, page in pages:
        try:
            taken.append((_add(request, decoder, row, page), int(row["landed_at_us"])))
        except PageError as problem:
            if request.fail_on_corrupt:
                raise
            (on_corrupt or mark_corrupt)(request, segment, row, problem)
            continue
        if decoder.raw_bytes >= BATCH_BYTES:
            yield _batch(request, decoder, taken, out)
            taken = []
    if taken:
        yield _batch(request, decoder, taken, out)


def _freeze_imports() -> None:
    """Freeze the imported objects once per Spark worker.

    PySpark collects all garbage after each task, which walks every object of every module: 20 ms.
    """
    if not gc.get_freeze_count() and "pyspark.worker" in sys.modules:
        gc.freeze()


def _pages(request: Request, slices: tuple[Slice, ...]) -> Iterator[tuple[str, Any, memoryview]]:
    for segment, first, stop in slices:
        try:
            rows = segments.read_rows(request.landing, segment, first, stop)
            rows = request.wanted(rows)
            pages = segments.read_pages(request.landing, segment, rows)
            for row, page in zip(rows, pages, strict=True):
                yield segment, row, page
        except FileNotFoundError as problem:
            raise CentralError(
                f"{problem.filename}: deleted while it was read; is retention ahead of it?"
            ) from problem


def _add(request: Request, decoder: PageDecoder, row: Any, page: memoryview) -> Header:
    header = verify(page)
    found = (header.stream, header.version, header.partition, header.seq, header.epoch)
    expected = (request.stream, request.version, row["partition"], row["seq"], row["epoch"])
    if found != expected:
        raise PageError(f"{header.name} stands where the index has seq {row['seq']}")
    if header.weighted:
        raise CentralError(
            f"{header.name} carries change weights; this version reads streams of inserts only"
        )
    return decoder.add(page, header)


def _batch(
    request: Request, decoder: PageDecoder, taken: list[tuple[Header, int]], out: pa.Schema
) -> pa.RecordBatch:
    rows = decoder.finish()
    arrays = []
    for field in out:
        if field.name in rows.schema.names:
            column = rows.column(field.name)
            arrays.append(column if column.type == field.type else column.cast(field.type))
        else:
            arrays.append(_metadata(field, taken))
    batch = pa.RecordBatch.from_arrays(arrays, schema=out)
    if request.times is not None:
        batch = batch.filter(request.times.mask(rows.column(request.times.column)))
    return batch


def _metadata(field: pa.Field, taken: list[tuple[Header, int]]) -> pa.Array:
    """A metadata column: one value per page, repeated for each of its rows."""
    values = {
        "_device": [h.device for h, _ in taken],
        "_epoch": [h.epoch for h, _ in taken],
        "_partition": [h.partition for h, _ in taken],
        "_seq": [h.seq for h, _ in taken],
        "_landed_at": [landed_at_us for _, landed_at_us in taken],
    }
    page_of_row = np.repeat(np.arange(len(taken)), [h.tuples for h, _ in taken])
    return pa.array(values[field.name], field.type).take(pa.array(page_of_row))


def mark_corrupt(request: Request, segment: str, row: Any, problem: PageError) -> None:
    """Write `corrupt/<segment>-<offset>.json` to the landing; skipped if the landing is not
    writable.

    Name and content depend only on the page: marking it again changes nothing.
    """
    place = Path(request.landing) / "corrupt" / f"{segment}-{int(row['offset'])}.json"
    content = {
        "segment": segment,
        "offset": int(row["offset"]),
        "length": int(row["length"]),
        "tuples": int(row["tuples"]),
        "stream": f"{request.stream}@{request.version}",
        "partition": int(row["partition"]),
        "seq": int(row["seq"]),
        "problem": str(problem),
    }
    with contextlib.suppress(OSError):
        if not place.exists():
            replace_file(place, json.dumps(content, indent=1).encode())
