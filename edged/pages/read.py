"""The page reader: decodes pages into Arrow record batches, with numpy and pyarrow only, because it
runs on Spark's executors.

`read_page` reads one page.  `PageDecoder` is the fast way for many: pages of one schema are decoded
into growing column arrays and returned as one large batch; only the requested columns are decoded.

Invariants

1. A page is read completely or not at all: header, sizes, checksum, the structure of every tuple
   and the UTF-8 of the texts that are read are checked before any of its rows counts.  Faults raise
   PageError with the page's name.
2. No Python runs per tuple.  Fixed columns are strided copies (dense) or one gather (slotted).  The
   values of a variable column lie in the page in reverse row order with gaps between them, so the
   page's bytes are one Arrow array of value, gap, value, ...: `take` copies the values out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from edged.data.lists import as_list
from edged.data.schema import Field, Schema
from edged.errors import PageError
from edged.pages.format import (
    LAYOUT_DENSE,
    LAYOUT_SLOTTED,
    SLOT_BYTES,
    WEIGHT_BYTES,
    Header,
    tuple_layout,
    verify,
)
from edged.pages.header import HEADER_BYTES

Array = npt.NDArray[Any]
_BYTE = np.dtype("u1")
_LZ4 = pa.Codec("lz4_raw")

BATCH_BYTES = 32 << 20
"""Page bytes that `read_pages` decodes into one batch."""


def read_page(buffer: Any, schema: Schema, columns: Sequence[str] | None = None) -> pa.RecordBatch:
    """One page's rows as an Arrow batch, types as `schema.to_arrow()`.

    `columns` selects and orders columns (default: all).  Raises PageError for a page that is
    damaged or does not fit the schema, KeyError for an unknown column.
    """
    decoder = PageDecoder(schema, columns)
    decoder.add(buffer)
    return decoder.finish()


def read_pages(
    buffers: Iterable[Any],
    schema: Schema,
    columns: Sequence[str] | None = None,
    *,
    batch_bytes: int = BATCH_BYTES,
) -> Iterator[pa.RecordBatch]:
    """The rows of many pages in order, as few large batches of about `batch_bytes` of pages each.

    Raises PageError at the first bad page; the batches before it are valid.
    """
    decoder = PageDecoder(schema, columns)
    for buffer in buffers:
        decoder.add(buffer)
        if decoder.raw_bytes >= batch_bytes:
            yield decoder.finish()
    if decoder.rows:
        yield decoder.finish()


def read_weights(buffer: Any) -> npt.NDArray[np.int32]:
    """The change weight of every tuple of a page, int32; all 1 if the page carries none."""
    header = verify(buffer)
    if not header.weighted:
        return np.ones(header.tuples, np.int32)
    at = SLOT_BYTES if header.layout == LAYOUT_SLOTTED else 0
    body = _body(buffer, header)
    return _strided(body, np.dtype("<i4"), at, header.stride, header.tuples).astype(np.int32)


class PageDecoder:
    """Collects the rows of pages of one schema and returns them as Arrow batches."""

    def __init__(self, schema: Schema, columns: Sequence[str] | None = None) -> None:
        """Decode `columns` (default: all; at least one).  KeyError for an unknown column."""
        names = schema.names if columns is None else tuple(columns)
        if not names:
            raise ValueError("ask for at least one column: a batch of none has no row count")
        self.schema = schema
        self.rows = 0
        """Rows collected since the last `finish`."""
        self.raw_bytes = 0
        """Uncompressed bytes of the pages collected since the last `finish`."""
        self._indices = [schema.index(n) for n in names]
        picked = [schema.fields[i] for i in self._indices]
        self._arrow = Schema.of(picked).to_arrow()
        self._buffers = [_ColumnBuffer(f) for f in picked]
        self._layout = tuple_layout(schema)
        self._weighted_layout = tuple_layout(schema, weighted=True)

    def add(self, buffer: Any, verified: Header | None = None) -> Header:
        """Decode one page after those collected; returns its header.

        `verified` is the header that `verify` returned for this page; the check is then not
        repeated. Raises PageError, and collects nothing, if the page is damaged or does not fit
        the schema.  The page's bytes are copied: `buffer` may be reused.
        """
        header = verify(buffer) if verified is None else verified
        body = _body(buffer, header)
        if header.layout == LAYOUT_DENSE:
            self._add_dense(header, body)
        else:
            self._add_slotted(header, body)
        self.rows += header.tuples
        self.raw_bytes += header.raw_bytes
        return header

    def finish(self) -> pa.RecordBatch:
        """All collected rows as one batch; the decoder is empty afterwards."""
        arrays = [g.finish(self.rows) for g in self._buffers]
        self.rows = self.raw_bytes = 0
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow)

    def _add_dense(self, header: Header, body: Array) -> None:
        layout = self._weighted_layout if header.weighted else self._layout
        if not self.schema.fixed_width or header.stride != layout.fixed_bytes:
            raise PageError(
                f"{header.name} does not fit its schema: rows of {header.stride} bytes, the schema "
                f"makes {layout.fixed_bytes}"
            )
        n, at = header.tuples, self.rows
        for i, g in zip(self._indices, self._buffers, strict=True):
            g.reserve(at, n)
            values = _strided(body, g.little, layout.places[i], header.stride, n)
            g.values[at : at + n] = values
            if g.nullable:
                place = layout.bitmap_at + i // 8
                g.set_valid(at, n, _strided(body, _BYTE, place, header.stride, n), i)

    def _add_slotted(self, header: Header, body: Array) -> None:
        if self.schema.fixed_width:
            raise PageError(f"{header.name} does not fit its schema: slotted, but all fixed width")
        layout = self._layout
        starts = _tuple_starts(header, body, layout.fixed_bytes)
        ends = _variable_ends(self.schema, header, body, starts)
        n, at = header.tuples, self.rows
        chunks: list[tuple[_ColumnBuffer, pa.Array]] = []
        for i, g in zip(self._indices, self._buffers, strict=True):
            g.reserve(at, n)
            if g.field.dtype.item is not None:
                place = layout.bitmap_at + i // 8
                present = body[starts + place] >> (i % 8) & 1 if g.nullable and n else np.ones(n)
                _check_lists(header, g.field, ends[i][1] - ends[i][0], present)
            if g.variable:
                chunk = _take_variable(body, *ends[i], g.field.dtype.stored)
                chunks.append((g, _checked_text(header, g.field, chunk)))
            elif n:
                g.values[at : at + n] = _gather(body, g.little, starts + layout.places[i])
            if g.nullable and n:
                g.set_valid(at, n, body[starts + (layout.bitmap_at + i // 8)], i)
        for g, chunk in chunks:
            g.chunks.append(chunk)


class _ColumnBuffer:
    """One column's rows so far: a growing array, or Arrow chunks if it is variable."""

    def __init__(self, field: Field) -> None:
        self.field = field
        self.variable, self.nullable = field.dtype.variable, field.nullable
        self.little = field.dtype.numpy.newbyteorder("<")
        self.values = _allocate(0, field.dtype.numpy)
        self.valid = _allocate(0, _BYTE)
        self.chunks: list[pa.Array] = []
        self.rows_hint = 0
        """Rows of the last batch, allocated at once for the next."""

    def reserve(self, rows: int, more: int) -> None:
        """Make room for `more` rows after the first `rows`."""
        if not self.variable:
            self.values = _grown(self.values, rows, more, self.rows_hint)
        if self.nullable:
            self.valid = _grown(self.valid, rows, more, self.rows_hint)

    def set_valid(self, at: int, rows: int, bitmap: Array, column: int) -> None:
        """Set the presence of `rows` rows from the bitmap bytes that contain this column's bit."""
        np.bitwise_and(bitmap, np.uint8(1 << (column % 8)), out=self.valid[at : at + rows])

    def finish(self, rows: int) -> pa.Array:
        """The first `rows` rows as an Arrow array; the column is empty afterwards."""
        mask = None
        if self.nullable:
            mask = pa.py_buffer(np.packbits(self.valid[:rows], bitorder="little"))
        kind = self.field.dtype.stored
        if self.variable:
            whole = pa.concat_arrays(self.chunks) if self.chunks else pa.array([], kind)
            array = pa.Array.from_buffers(kind, rows, [mask, *whole.buffers()[1:]])
            if self.field.dtype.item is not None:
                array = as_list(array, self.field.dtype)
        elif pa.types.is_boolean(kind):
            bits = np.packbits(self.values[:rows], bitorder="little")
            array = pa.Array.from_buffers(kind, rows, [mask, pa.py_buffer(bits)])
        else:
            array = pa.Array.from_buffers(kind, rows, [mask, pa.py_buffer(self.values[:rows])])
        self.values = _allocate(0, self.values.dtype)
        self.valid = _allocate(0, _BYTE)
        self.chunks = []
        self.rows_hint = rows
        return array


def _allocate(rows: int, dtype: np.dtype[Any]) -> Array:
    """Writable memory from Arrow's pool, which retains the memory pages of the last batch."""
    whole: Array = np.frombuffer(pa.allocate_buffer(rows * dtype.itemsize), dtype)
    return whole


def _grown(array: Array, rows: int, more: int, rows_hint: int) -> Array:
    if array.size >= rows + more:
        return array
    larger = _allocate(max(rows + more, 2 * array.size, rows_hint), array.dtype)
    larger[:rows] = array[:rows]
    return larger


def _body(buffer: Any, header: Header) -> Array:
    """The page's bytes after its header, uncompressed; offsets in the format count 224 more."""
    stored = np.frombuffer(buffer, np.uint8, offset=HEADER_BYTES)
    if not header.compressed:
        return stored
    try:
        body = _LZ4.decompress(pa.py_buffer(stored), header.raw_bytes - HEADER_BYTES)
    except (OSError, ValueError) as problem:
        raise PageError(f"{header.name} does not decompress: {problem}") from None
    return np.frombuffer(body, np.uint8)


def _strided(raw: Array, dtype: np.dtype[Any], at: int, stride: int, rows: int) -> Array:
    """A view of one value every `stride` bytes from byte `at` on."""
    if rows == 0:
        return np.empty(0, dtype)
    view: Array = np.ndarray((rows,), dtype, raw, at, (stride,))
    return view


def _gather(raw: Array, dtype: np.dtype[Any], at: Array) -> Array:
    """The values that begin at bytes `at`, anywhere in `raw`; `raw` must cover them."""
    everywhere: Array = np.ndarray((raw.size - dtype.itemsize + 1,), dtype, raw, 0, (1,))
    values: Array = everywhere[at]
    return values


def _tuple_starts(header: Header, body: Array, fixed_bytes: int) -> Array:
    """The offset of each tuple's data in a slotted page's body, int64; checks every slot."""
    n = header.tuples
    if header.stride != SLOT_BYTES + (WEIGHT_BYTES if header.weighted else 0):
        raise PageError(f"{header.name} has slots of {header.stride} bytes")
    slot = np.dtype("<u4")
    offsets = _strided(body, slot, 4, header.stride, n).astype(np.int64)
    lengths = _strided(body, slot, 8, header.stride, n).astype(np.int64)
    total = int(offsets[-1]) if n else 0
    if (
        not np.array_equal(offsets, np.cumsum(lengths))
        or (n and int(lengths.min()) < fixed_bytes)
        or header.raw_bytes != HEADER_BYTES + n * header.stride + total
    ):
        raise PageError(f"{header.name} does not fit its schema: its slots contradict it")
    return body.size - offsets


def _variable_ends(
    schema: Schema, header: Header, body: Array, starts: Array
) -> dict[int, tuple[Array, Array]]:
    """Per variable column, begin and end of each row's value in the body; checks them all."""
    layout = tuple_layout(schema)
    found: dict[int, tuple[Array, Array]] = {}
    if header.tuples == 0:
        return {i: (starts, starts) for i, f in enumerate(schema) if f.dtype.variable}
    first = begin = starts + layout.fixed_bytes
    for i, f in enumerate(schema):
        if f.dtype.variable:
            end = first + _gather(body, np.dtype("<u4"), starts + layout.places[i])
            if bool(np.any(end < begin)):
                raise PageError(f"{header.name} does not fit its schema: column {f.name}")
            found[i] = begin, end
            begin = end
    stops = np.concatenate((np.array([body.size], np.int64), starts[:-1]))
    if not np.array_equal(begin, stops):
        raise PageError(f"{header.name} does not fit its schema: tuples longer than their columns")
    return found


def _take_variable(body: Array, begins: Array, ends: Array, kind: pa.DataType) -> pa.Array:
    n = begins.size
    if n == 0:
        return pa.array([], kind)
    edges = np.empty(2 * n, np.int32)
    edges[0::2] = begins[::-1]
    edges[1::2] = ends[::-1]
    values_and_gaps = pa.Array.from_buffers(
        kind, 2 * n - 1, [None, pa.py_buffer(edges), pa.py_buffer(body)]
    )
    return values_and_gaps.take(pa.array(np.arange(2 * n - 2, -1, -2, dtype=np.int32)))


def _check_lists(header: Header, field: Field, sizes: Array, present: Array) -> None:
    """Check the sizes of lists that are present."""
    assert field.dtype.item is not None
    size = field.dtype.item.width * field.dtype.length
    if bool(np.any((sizes != size) & (present != 0))):
        raise PageError(f"{header.name} holds lists of another length in column {field.name}")


def _checked_text(header: Header, field: Field, values: pa.Array) -> pa.Array:
    """The values of a variable column; each text is UTF-8."""
    try:
        values.validate(full=True)
    except pa.ArrowInvalid as problem:
        raise PageError(
            f"{header.name} holds text that is not UTF-8 in column {field.name}: {problem}"
        ) from None
    return values
