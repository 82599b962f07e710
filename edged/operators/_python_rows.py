"""Rows of a `python` operator: sorted by partition for its children, and back from Arrow.

A row's partition is the top bits of the hash of its keys.  Partitions are dealt to the children in
ranges, so that their outputs, one child after the other, are in the order of the partitions
whatever the number of children.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from edged.data.columns import Batch, empty_batch
from edged.data.flow import BeatContext, Link
from edged.data.gather import take
from edged.data.hashing import hash_columns
from edged.data.scratch import Scratch
from edged.operators._python_process import Bounds

PARTITIONS_MAX = 64


@dataclass(frozen=True)
class PartitionedRows:
    """Rows in the order of their partitions, and within one in arrival order."""

    batch: Batch
    bounds: Bounds

    def of(self, partition: int) -> Batch:
        """The rows of a partition."""
        (found,) = [(a, b) for p, a, b in self.bounds if p == partition]
        return self.batch.slice(*found)

    def arrow(self, bounds: Bounds) -> tuple[pa.RecordBatch, Bounds]:
        """The rows of these partitions, from the first one to the last, and the bounds in them.
        They are a view."""
        first, end = bounds[0][1], bounds[-1][2]
        moved = [(p, a - first, b - first) for p, a, b in bounds]
        return self.batch.slice(first, end).to_arrow(view=True), moved


class RowSorter:
    """Sorts the rows of a beat by partition."""

    def __init__(self, keys: Sequence[str], partitions: int) -> None:
        self._keys, self._partitions = keys, partitions
        self._scratch = Scratch()

    def sort(self, batch: Batch, beat: BeatContext) -> PartitionedRows:
        """The rows by partition, as a copy; without keys as they are."""
        if not self._keys or self._partitions == 1:
            return PartitionedRows(batch, [(0, 0, batch.rows)])
        hashes = hash_columns(batch, self._keys, self._scratch, workers=beat.workers)
        shift = np.uint64(65 - self._partitions.bit_length())
        partition = (hashes >> shift).astype(np.uint8)
        order = np.argsort(partition, kind="stable")
        ends = np.cumsum(np.bincount(partition, minlength=self._partitions)).tolist()
        starts = [0, *ends[:-1]]
        spans = enumerate(zip(starts, ends, strict=True))
        bounds = [(p, a, b) for p, (a, b) in spans if b > a]
        return PartitionedRows(take(batch, order, self._scratch, "", beat.workers), bounds)


class OutputCollector:
    """Makes batches of what the children give."""

    def __init__(self, links: Mapping[str, Link]) -> None:
        self._links = links
        self._scratch = Scratch()
        self.late = 0
        """Rows dropped because their event time was before the watermark."""

    def batches(
        self, outputs: Sequence[tuple[str, pa.RecordBatch]], floor_us: int
    ) -> dict[str, Batch]:
        """The rows of each output, in order, without those before `floor_us`."""
        found = {}
        for name, link in self._links.items():
            parts = [batch for of, batch in outputs if of == name and batch.num_rows]
            if not parts:
                found[name] = empty_batch(link.schema)
                continue
            table = pa.Table.from_batches(parts).combine_chunks()
            batch = Batch.from_arrow(table.to_batches()[0], link.schema)
            found[name] = self._timely(name, batch, link.time, floor_us)
        return found

    def _timely(self, name: str, batch: Batch, time: str, floor_us: int) -> Batch:
        kept = np.flatnonzero(batch[time].values >= floor_us)
        if kept.size == batch.rows:
            return batch
        self.late += batch.rows - kept.size
        return take(batch, kept, self._scratch, name)
