"""The `pages` sink: rows are sent to the centre in pages.

    [sinks.curve]
    type = "pages"
    input = "producing"
    stream = "curve"            # default: the sink's id
    version = 1                 # of the schema; default 1
    partitions = 4              # default 1
    partition_by = ["turbine"]  # default: none; all rows are in partition 0 then
    page = "1MiB"               # capacity, 4KiB..16MiB; default 1MiB
    entropy_max = 7.0           # bits per byte, 0..8: above it a page is not compressed

The format is defined in `edged.pages.format`; `edged.pages.write` writes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edged.data.columns import Batch
from edged.data.flow import BeatContext, Flow, Link, State
from edged.data.picked import Picked, PickedFlow
from edged.data.schema import Schema
from edged.documents import reader as doc
from edged.documents.faults import FaultCollector
from edged.documents.reach import Reach
from edged.documents.units import show_size, size_bytes
from edged.errors import JobError
from edged.pages.format import (
    CAPACITY_DEFAULT,
    CAPACITY_MAX,
    CAPACITY_MIN,
    PAGE_COLUMNS_MAX,
)
from edged.pages.header import HEADER_BYTES
from edged.pages.room import ROOM_BYTES_MIN
from edged.pages.seal import ENTROPY_BITS_MAX
from edged.pages.sealed import PageKey, SealedPage
from edged.pages.write import PageStream, PageWriter, WrittenPage, stride_bytes
from edged.sinks.base import Flush, OpenBytes, Sink, SinkContext, SinkPlan, sink

PARTITIONS_MAX = 4096
PICKED_ROWS_MAX = 8192
"""More picked rows are copied first: their copy is read in the order of partitions from the cache,
the windows that they come from are not."""


class PagesSink(Sink):
    """The open pages of one stream, sealed when full or on flush."""

    gauges = frozenset({"open_bytes"})

    def __init__(self, stream: PageStream) -> None:
        self._name = stream.stream
        self._writer = PageWriter(stream)

    def write(self, beat: BeatContext, flow: Flow) -> None:
        """Copy the rows into the open pages, few straight from where a join has picked them."""
        rows: Batch | Picked
        if isinstance(flow, PickedFlow) and not flow.copied and flow.picked.rows <= PICKED_ROWS_MAX:
            rows = flow.picked
        else:
            rows = flow.batch
        self._writer.write(beat, rows)

    def seal(self, beat: BeatContext, flush: Flush) -> list[SealedPage]:
        """The full pages, or all pages with rows, in (partition, seq) order."""
        return self._keyed(self._writer.seal(beat, flush != Flush.NO))

    def exceeds(self, limit: int) -> bool:
        """Whether the rows of open pages need more than `limit` bytes."""
        return self._writer.exceeds(limit)

    def seal_early(self, beat: BeatContext, limit: int) -> list[SealedPage]:
        """The largest open pages, in (partition, seq) order."""
        return self._keyed(self._writer.seal_early(beat, limit))

    def _keyed(self, pages: Sequence[WrittenPage]) -> list[SealedPage]:
        return [SealedPage(PageKey(self._name, p.partition, p.seq), p.data) for p in pages]

    def open_rows(self) -> int:
        """Rows in unsealed pages."""
        return self._writer.open_rows()

    def save(self) -> State:
        """Open pages and sequence numbers."""
        return self._writer.save()

    def load(self, state: State) -> None:
        """Restore a saved state."""
        self._writer.load(state)

    def skip(self, beat: int, keys: Sequence[PageKey]) -> None:
        """Drop the open pages; continue after the durable ones."""
        self._writer.skip({k.partition: k.seq for k in keys if k.stream == self._name})

    def numbers(self) -> Mapping[str, list[int]]:
        """The last page of each partition."""
        return {self._name: self._writer.last_seqs()}

    def counters(self) -> Mapping[str, int | float]:
        """Rows, pages and bytes; `rows_too_large` were not written (the limit is 16 MiB)."""
        w = self._writer
        return {
            "rows": w.rows_written,
            "rows_too_large": w.rows_too_large,
            "pages": w.pages_sealed,
            "pages_compressed": w.pages_compressed,
            "pages_early": w.pages_early,
            "page_bytes": w.bytes_stored,
            "page_bytes_raw": w.bytes_raw,
            "open_bytes": w.open_bytes(),
        }


@sink("pages")
@dataclass(frozen=True)
class PagesPlan(SinkPlan):
    """A checked `pages` sink."""

    keys = frozenset({"stream", "version", "partitions", "partition_by", "page", "entropy_max"})

    id: str
    input: Link
    stream: str
    stream_version: int
    partitions: int
    partition_by: tuple[str, ...]
    capacity: int
    entropy_max: float

    @classmethod
    def parse(cls, path: str, id: str, document: Mapping[str, Any], input: Link) -> PagesPlan:
        """Check `document`; raises JobError."""
        wrong = FaultCollector()

        def integer(key: str, most: int) -> int:
            return wrong.attempt(lambda: doc.integer(path, document, key, 1, least=1, most=most), 1)

        stream = wrong.attempt(lambda: doc.is_id(f"{path}.stream", document.get("stream", id)), id)
        partitions, version = integer("partitions", PARTITIONS_MAX), integer("version", 2**32 - 1)
        partition_by = wrong.attempt(lambda: doc.names(path, document, "partition_by", ()), ())
        for i, name in enumerate(partition_by):
            if name not in input.schema:
                advice = doc.did_you_mean(name, input.schema.names)
                wrong.note(f"{path}.partition_by[{i}]", f"no column {name!r} here", advice)
        if partitions > 1 and not document.get("partition_by"):
            wrong.note(f"{path}.partitions", "rows have no partition columns", "set partition_by")
        capacity = wrong.attempt(lambda: _capacity(path, document, input.schema), 0)
        entropy = wrong.attempt(
            lambda: doc.number(path, document, "entropy_max", ENTROPY_BITS_MAX, least=0, most=8),
            ENTROPY_BITS_MAX,
        )
        if (columns := len(input.schema)) > PAGE_COLUMNS_MAX:
            wrong.note(f"{path}.input", f"has {columns} columns", f"at most {PAGE_COLUMNS_MAX}")
        wrong.settle()
        return cls(id, input, stream, version, partitions, partition_by, capacity, float(entropy))

    def build(self, context: SinkContext) -> PagesSink:
        """The running sink."""
        return PagesSink(
            PageStream(
                context.device, context.epoch, self.stream, self.stream_version,
                self.input.schema, self.input.time, self.partitions, self.partition_by,
                self.capacity, entropy_bits_max=self.entropy_max,
            )
        )  # fmt: skip

    def open_bytes(self) -> OpenBytes:
        """A buffer of the least size, and a whole page, for each partition."""
        partitions, page = self.partitions, self.capacity
        return OpenBytes(partitions * ROOM_BYTES_MIN, partitions * page, page)

    def reach(self, root: Path) -> Reach:
        """Nothing."""
        return Reach()

    def describe(self) -> list[str]:
        """Lines for `edged explain`."""
        dense = self.input.schema.fixed_width
        row = stride_bytes(self.input.schema)
        size = f"{row} bytes a row" if dense else f"{row} bytes a row and its strings"
        parts = f"{self.partitions} partition{'s' if self.partitions > 1 else ''}"
        by = f" by {', '.join(self.partition_by)}" if self.partition_by else ""
        return [
            f"pages of stream {self.stream}@{self.stream_version}, {parts}{by}",
            f"{'dense' if dense else 'slotted'}, {size}, up to {show_size(self.capacity)} a page",
        ]

    def signature(self) -> str:
        """Everything that pages and sequence numbers depend on."""
        facts = [
            self.kind, self.version, self.stream, self.stream_version, self.partitions,
            self.partition_by, self.capacity, self.input.time, self.input.schema.to_json(),
        ]  # fmt: skip
        if self.entropy_max != ENTROPY_BITS_MAX:
            facts.append(self.entropy_max)
        if self.input.weight:
            facts.append(self.input.weight)
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]

    def schemas(self) -> Sequence[tuple[str, int, str]]:
        """The stream's schema; it names the weight column."""
        schema = self.input.schema.with_weight(self.input.weight)
        return ((self.stream, self.stream_version, schema.to_json()),)


def _capacity(path: str, document: Mapping[str, Any], schema: Schema) -> int:
    value = document.get("page", CAPACITY_DEFAULT)
    capacity = size_bytes(f"{path}.page", value, least=CAPACITY_MIN, most=CAPACITY_MAX)
    least = HEADER_BYTES + stride_bytes(schema)
    if capacity < least:
        raise JobError(f"{path}.page", "a page does not hold one row", f"at least {least} bytes")
    return capacity
