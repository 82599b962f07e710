"""Reads compacted rows into Arrow batches, with row groups skipped by their statistics; runs on
executors, too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from edged.central.compacted import CompactedFile
from edged.central.read_request import Request
from edged.errors import CentralError

_ARROW_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class RowGroups:
    """A range of row groups of one file."""

    path: str
    first: int
    stop: int


def plan(files: Sequence[tuple[Path, CompactedFile]], task_bytes: int) -> list[RowGroups]:
    """The files as tasks of about `task_bytes`, of whole row groups."""
    found = []
    for path, file in files:
        step = max(1, task_bytes * file.row_groups // max(1, file.bytes))
        for first in range(0, file.row_groups, step):
            found.append(RowGroups(str(path), first, min(file.row_groups, first + step)))
    return found


def read(request: Request, part: RowGroups) -> Iterator[pa.RecordBatch]:
    """The requested rows of `part`, in order.  Page checksums are verified.

    Raises CentralError for a file that is damaged or gone.
    """
    import pyarrow.dataset as ds  # slow to import; most tasks read pages only

    out = request.arrow_schema()
    checked = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    kind = ds.ParquetFileFormat(default_fragment_scan_options=checked)
    try:
        data = ds.dataset(part.path, format=kind)
        (fragment,) = data.get_fragments()
        fragment = fragment.subset(row_group_ids=list(range(part.first, part.stop)))
        batches = fragment.to_batches(
            columns=list(out.names), filter=_filter(request, ds), batch_size=_ARROW_ROWS,
            batch_readahead=1, use_threads=False,
        )  # fmt: skip
        for batch in batches:
            if batch.num_rows:
                yield _typed(batch, out)
    except FileNotFoundError as problem:
        raise CentralError(
            f"{part.path}: deleted while it was read; is retention ahead of it?"
        ) from problem
    except (OSError, pa.ArrowInvalid) as problem:
        raise CentralError(
            f"{part.path}: cannot be read ({problem}); see edged central check"
        ) from problem


def _filter(request: Request, ds: Any) -> Any:
    """The request's devices and times as an expression; None without either."""
    found = None
    if request.devices:
        found = ds.field("_device").isin(list(request.devices))
    if request.times is not None:
        within = request.times.expression(ds)
        found = within if found is None else found & within
    return found


def _typed(batch: pa.RecordBatch, out: pa.Schema) -> pa.RecordBatch:
    arrays = [
        column if column.type == field.type else column.cast(field.type)
        for field, column in zip(out, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=out)
