"""Page writing from columns and row indices; each byte is copied once.

`partition_rows` assigns row numbers to partitions by a stable counting sort on the hash.
`fill_dense` and `fill_slotted` then write each partition's rows into its open page until a row does
not fit.  The layouts are those of `edged.pages.format`.

`columns` has a row for each column (`kernels.cpu.columns`), which may name the column's rows by
numbers of its own, so that a join's pairs need no copy in between.  `places` its place in a tuple
(`TuplePlace`).  `shape` is the layout of rows (`TupleShape`).  `state` has a row for each
partition's open page (`OpenPage`).

Rows are processed in blocks of BLOCK, a block column by column: the branch on the type stays
outside the loop, and the block's tuples stay in the first-level cache.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kernels.cpu import mem
from kernels.cpu.columns import COLUMN
from kernels.cpu.records import ADDRESS, I64, field, words
from kernels.registry import device, kernel


class OpenPage(NamedTuple):
    """A page that is being filled."""

    buffer: ADDRESS = field("its bytes, header included")
    capacity: I64 = field("number of its bytes")
    tuples: I64 = field("rows in it")
    data: I64 = field("slotted: bytes of tuple data at the buffer's end")
    time_min: I64 = field("earliest event time")
    time_max: I64 = field("latest event time")
    need: I64 = field("size of a page for the row that did not fit; set by `fill_slotted`")


class TupleShape(NamedTuple):
    """The layout of a stream's rows."""

    stride: I64 = field("bytes of a dense row, or of a slot")
    fixed: I64 = field("bytes of a tuple before its variable bytes")
    bitmap_at: I64 = field("place of the presence bits in a tuple")
    bitmap_bytes: I64 = field("bytes of presence bits; 0 for none")
    time: I64 = field("number of the event-time column")
    weights: ADDRESS = field("slotted: int32 weights, 0 for none (dense: a column like any other)")


class TuplePlace(NamedTuple):
    """Where a column lies in a tuple."""

    at: I64 = field("place of the value, or of a variable column's u32 end")
    bit_at: I64 = field("place of the byte that holds its presence bit")
    bit: I64 = field("value of that bit")


PAGE, SHAPE, PLACE = words(OpenPage), words(TupleShape), words(TuplePlace)
HEADER = 224
BLOCK = 256


@kernel(
    "void(uint64[::1], int64, int64[::1], int64[::1])", reference="tests.naive.pages.partition_rows"
)
def partition_rows(hashes: Any, partitions: int, edges: Any, order: Any) -> None:
    """Row numbers by partition `(hash >> 32) % partitions`, in row order within each.

    Fills `order` (int64[rows]) and `edges` (int64[partitions+1]): partition p owns
    `order[edges[p]:edges[p+1]]`.
    """
    modulus = np.uint32(partitions)
    target = np.empty(hashes.size, np.uint32)
    cursor = np.zeros(partitions + 1, np.int64)
    for i in range(hashes.size):
        p = np.uint32(hashes[i] >> np.uint64(32)) % modulus
        target[i] = p
        cursor[p + 1] += 1
    edges[0] = 0
    for p in range(partitions):
        cursor[p + 1] += cursor[p]
        edges[p + 1] = cursor[p + 1]
    for i in range(hashes.size):
        p = target[i]
        order[cursor[p]] = i
        cursor[p] += 1


@device
def pick_rows(order: Any, at: int, count: int, rows: Any) -> None:
    """The next row numbers of a block; no `order` means the batch's own."""
    if order.size == 0:
        for j in range(count):
            rows[j] = at + j
    else:
        for j in range(count):
            rows[j] = order[at + j]


@device
def picked_rows(picks: int, rows: Any, count: int) -> Any:
    """The row numbers of a block in a column's memory, by the column's row numbers at `picks`."""
    if picks == 0:
        return rows
    picked = np.empty(count, np.int64)
    for j in range(count):
        picked[j] = mem.load_i64(picks + 8 * rows[j])
    return picked


@device
def write_fixed(width: int, source: int, place: int, rows: Any, tuples: Any, count: int) -> None:
    """One fixed-width column of a block: values at address `source` to `place` in the tuples."""
    if width == 8:
        for j in range(count):
            mem.store_u64(tuples[j] + place, mem.load_u64(source + 8 * rows[j]))
    elif width == 4:
        for j in range(count):
            mem.store_u32(tuples[j] + place, mem.load_u32(source + 4 * rows[j]))
    elif width == 2:
        for j in range(count):
            mem.store_u16(tuples[j] + place, mem.load_u16(source + 2 * rows[j]))
    else:
        for j in range(count):
            mem.store_u8(tuples[j] + place, mem.load_u8(source + rows[j]))


@device
def write_bitmap(columns: Any, places: Any, shape: Any, tuples: Any, count: int) -> None:
    """Bitmaps of a block with every column present; `clear_nulls` clears the nulls' bits."""
    for b in range(shape[SHAPE.bitmap_bytes]):
        at = shape[SHAPE.bitmap_at] + b
        full = np.uint8(0)
        for c in range(columns.shape[0]):
            if places[c, PLACE.bit_at] == at:
                full |= np.uint8(places[c, PLACE.bit])
        for j in range(count):
            mem.store_u8(tuples[j] + at, full)


@device
def clear_nulls(width: int, valid: int, place: Any, rows: Any, tuples: Any, count: int) -> None:
    """A nullable column of a block: a null's bit is cleared and its fixed bytes become zero."""
    keep = np.uint8(255 - place[PLACE.bit])
    for j in range(count):
        if mem.load_u8(valid + rows[j]) == 0:
            bit = tuples[j] + place[PLACE.bit_at]
            mem.store_u8(bit, np.uint8(mem.load_u8(bit) & keep))
            for b in range(width):
                mem.store_u8(tuples[j] + place[PLACE.at] + b, np.uint8(0))


@device
def write_columns(
    columns: Any, places: Any, shape: Any, rows: Any, tuples: Any, count: int
) -> None:
    """Bitmap and fixed-width columns of a block."""
    write_bitmap(columns, places, shape, tuples, count)
    for c in range(columns.shape[0]):
        width, valid = columns[c, COLUMN.width], columns[c, COLUMN.valid]
        if width == 0 and valid == 0:
            continue
        picked = picked_rows(columns[c, COLUMN.rows], rows, count)
        if width != 0:
            source = columns[c, COLUMN.values]
            write_fixed(width, source, places[c, PLACE.at], picked, tuples, count)
        if valid != 0:
            clear_nulls(width, valid, places[c], picked, tuples, count)


@device
def note_times(columns: Any, shape: Any, rows: Any, count: int, page: Any) -> None:
    """Widen the page's event-time range by a block."""
    source = columns[shape[SHAPE.time], COLUMN.values]
    picked = picked_rows(columns[shape[SHAPE.time], COLUMN.rows], rows, count)
    low, high = page[PAGE.time_min], page[PAGE.time_max]
    for j in range(count):
        time = mem.load_i64(source + 8 * picked[j])
        low = min(low, time)
        high = max(high, time)
    page[PAGE.time_min], page[PAGE.time_max] = low, high


@kernel(
    "int64(int64[:, ::1], int64[:, ::1], int64[::1], int64[::1], int64[::1], int64[::1],"
    " int64[:, ::1], int64, int64)",
    reference="tests.naive.pages.fill_dense",
)
def fill_dense(
    columns: Any, places: Any, shape: Any, order: Any, cursor: Any, edges: Any, state: Any,
    first: int, last: int,
) -> int:  # fmt: skip
    """Write the rows `cursor[p]..edges[p+1]` of partitions first..last-1 as dense rows.

    Advances `cursor`.  Returns the first partition whose page is full with rows left, or `last`.
    """
    rows, tuples = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    stride = shape[SHAPE.stride]
    for p in range(first, last):
        while cursor[p] < edges[p + 1]:
            page = state[p]
            used = HEADER + page[PAGE.tuples] * stride
            count = min(BLOCK, edges[p + 1] - cursor[p], (page[PAGE.capacity] - used) // stride)
            if count <= 0:
                return p
            pick_rows(order, cursor[p], count, rows)
            for j in range(count):
                tuples[j] = page[PAGE.buffer] + used + j * stride
            write_columns(columns, places, shape, rows, tuples, count)
            note_times(columns, shape, rows, count, page)
            page[PAGE.tuples] += count
            cursor[p] += count
    return last


@device
def measure(columns: Any, shape: Any, rows: Any, count: int, lengths: Any) -> None:
    """The size of each tuple's data in a block."""
    for j in range(count):
        lengths[j] = shape[SHAPE.fixed]
    for c in range(columns.shape[0]):
        if columns[c, COLUMN.width] == 0:
            picked = picked_rows(columns[c, COLUMN.rows], rows, count)
            for j in range(count):
                at = columns[c, COLUMN.offsets] + 8 * picked[j]
                size = mem.load_i64(at + 8) - mem.load_i64(at)
                if (
                    columns[c, COLUMN.valid] == 0
                    or mem.load_u8(columns[c, COLUMN.valid] + picked[j]) != 0
                ):
                    lengths[j] += size


@device
def fitting(page: Any, stride: int, count: int, lengths: Any) -> int:
    """Number of a block's tuples that fit; notes the need of the first that does not."""
    free = page[PAGE.capacity] - HEADER - page[PAGE.tuples] * stride - page[PAGE.data]
    for j in range(count):
        free -= stride + lengths[j]
        if free < 0:
            page[PAGE.need] = HEADER + stride + lengths[j]
            return j
    return count


@device
def write_slots(
    shape: Any, hashes: Any, page: Any, rows: Any, lengths: Any, tuples: Any, count: int
) -> None:
    """Slots of a block, and the place of each tuple's data."""
    slot = page[PAGE.buffer] + HEADER + page[PAGE.tuples] * shape[SHAPE.stride]
    end = page[PAGE.buffer] + page[PAGE.capacity]
    offset = page[PAGE.data]
    for j in range(count):
        offset += lengths[j]
        tuples[j] = end - offset
        key = np.uint32(0)
        if hashes.size != 0:
            key = np.uint32(hashes[rows[j]] & np.uint64(0xFFFFFFFF))
        mem.store_u32(slot, key)
        mem.store_u32(slot + 4, np.uint32(offset))
        mem.store_u32(slot + 8, np.uint32(lengths[j]))
        if shape[SHAPE.weights] != 0:
            mem.store_u32(slot + 12, mem.load_u32(shape[SHAPE.weights] + 4 * rows[j]))
        slot += shape[SHAPE.stride]
    page[PAGE.data] = offset
    page[PAGE.tuples] += count


@device
def write_variable(
    columns: Any, places: Any, shape: Any, rows: Any, tuples: Any, count: int, ends: Any
) -> None:
    """Variable columns of a block: their ends and their bytes."""
    for j in range(count):
        ends[j] = 0
    for c in range(columns.shape[0]):
        if columns[c, COLUMN.width] == 0:
            picked = picked_rows(columns[c, COLUMN.rows], rows, count)
            for j in range(count):
                at = columns[c, COLUMN.offsets] + 8 * picked[j]
                begin = mem.load_i64(at)
                size = mem.load_i64(at + 8) - begin
                if (
                    columns[c, COLUMN.valid] != 0
                    and mem.load_u8(columns[c, COLUMN.valid] + picked[j]) == 0
                ):
                    size = 0
                mem.copy_bytes(
                    tuples[j] + shape[SHAPE.fixed] + ends[j],
                    columns[c, COLUMN.values] + begin,
                    size,
                )
                ends[j] += size
                mem.store_u32(tuples[j] + places[c, PLACE.at], np.uint32(ends[j]))


@kernel(
    "int64(int64[:, ::1], int64[:, ::1], int64[::1], int64[::1], uint64[::1], int64[::1],"
    " int64[::1], int64[:, ::1], int64, int64)",
    reference="tests.naive.pages.fill_slotted",
)
def fill_slotted(
    columns: Any, places: Any, shape: Any, order: Any, hashes: Any, cursor: Any, edges: Any,
    state: Any, first: int, last: int,
) -> int:  # fmt: skip
    """As `fill_dense`, with slots; `hashes` may be empty: keys are 0."""
    rows, tuples = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    lengths, ends = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    for p in range(first, last):
        page = state[p]
        while cursor[p] < edges[p + 1]:
            count = min(BLOCK, edges[p + 1] - cursor[p])
            pick_rows(order, cursor[p], count, rows)
            measure(columns, shape, rows, count, lengths)
            fits = fitting(page, shape[SHAPE.stride], count, lengths)
            write_slots(shape, hashes, page, rows, lengths, tuples, fits)
            write_columns(columns, places, shape, rows, tuples, fits)
            write_variable(columns, places, shape, rows, tuples, fits, ends)
            note_times(columns, shape, rows, fits, page)
            cursor[p] += fits
            if fits < count:
                return p
    return last
