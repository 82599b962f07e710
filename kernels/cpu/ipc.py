"""Arrow IPC decoder: received bytes become staged columns.

The input is *regions*, the received and unparsed bytes of each connection.  A region holds
encapsulated messages, little-endian:

    u32 0xFFFFFFFF | i32 metadata size | flatbuffer Message | body          (size 0: end of stream)

    Message      0 version i16 (3: V4, 4: V5) | 1 header type u8 | 2 header | 3 body length i64
                 | 4 custom metadata [KeyValue{0 key, 1 value}]
    RecordBatch  0 length i64 | 1 nodes [i64 length, i64 nulls] | 2 buffers [i64 offset, i64 length]
                 | 3 compression

(apache/arrow format/Message.fbs; the numbers are flatbuffer field ids).  Input is untrusted: every
position is checked against the metadata's size, every buffer against the body's.

Five passes, each over all regions of one stream:

    scan    messages → a table of messages; frames, sequence numbers, buffers checked
    place   positions of each message's rows and bytes, relative to the first message
    copy    columns → target; offsets, UTF-8 and times checked      (may be split among workers)
    admit   removes refused messages and rows too far ahead; then `place` and `copy` run again
    finish  chunk entries, producers' sequence numbers and times

`layouts[k, column]` is the place of a stream's column in the messages of layout k: node index,
first buffer index, kind (bytes a value; 0: bits, -1: UTF-8, -2: binary), nullable, ordinal among
the variable-size columns (-1: fixed).  The constants below number the fields of `regions` and
`messages`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu.mem import load_i32, load_i64, load_u8, load_u16, load_u32, load_u64
from kernels.registry import device, kernel

# A region: fields set by the caller,
R_ADDRESS, R_LENGTH, R_LAYOUT, R_PRODUCER = 0, 1, 2, 3
R_NAMED = 4  # 1: the peer gave a producer id, so sequence numbers count
R_SEQ = 5  # last sequence number staged; moved on by `admit`
R_SLOW = 6  # 1: these kernels do not take its batches; set by `scan` at the first such batch
# and fields set by the kernels.
R_CONSUMED = 7  # bytes of whole messages that need not be kept
R_ERROR, R_COLUMN, R_DETAIL = 8, 9, 10
R_NEED = 11  # known size of the incomplete message; 0: none has begun
R_END = 12  # 1: the end-of-stream marker was read
R_DUPLICATES = 13  # messages dropped because their sequence number was staged before
R_DUPLICATE_SEQ = 14  # the largest of their numbers
R_MESSAGES = 15
REGION_WIDTH = 16

# A message.
M_REGION, M_META, M_BODY, M_BODY_LENGTH, M_ROWS, M_SEQ, M_NODES, M_BUFFERS = 0, 1, 2, 3, 4, 5, 6, 7
M_STATE, M_AT, M_KEPT, M_TIME_MIN, M_TIME_MAX, M_ERROR, M_COLUMN = 8, 9, 10, 11, 12, 13, 14
M_LIMIT = 15  # largest time admitted where M_STATE is FILTERED
MESSAGE_WIDTH = 16

WHOLE, FILTERED, DROPPED, SLOW = 0, 1, 2, 3  # M_STATE

# Reasons of refusal (R_ERROR, M_ERROR).
E_MAGIC, E_SIZE, E_METADATA, E_HEADER, E_VERSION, E_GAP = 1, 2, 3, 4, 5, 6
E_COLUMNS, E_BUFFER = 7, 8
E_NULLS, E_OFFSETS, E_UTF8, E_LENGTH, E_SEQ, E_AFTER_END, E_STAGED = 9, 10, 11, 12, 13, 14, 15

SCHEMA, DICTIONARY, RECORD_BATCH = 1, 2, 3
METADATA_MAX = 1 << 20
"""Largest accepted flatbuffer metadata, in bytes."""
SEQ_KEY = np.uint64(0x65732E6465676465)
"""The first eight bytes of `edged.seq`."""


@device
def field_at(base: int, size: int, table: int, index: int, need: int) -> Any:
    """Position of field `index` of the table at `table`; 0: absent; -1: out of bounds."""
    vtable = table - load_i32(base + table)
    if vtable < 0 or vtable + 4 > size:
        return -1
    length = load_u16(base + vtable)
    if vtable + length > size:
        return -1
    slot = 4 + 2 * index
    if slot + 2 > length:
        return 0
    offset = load_u16(base + vtable + slot)
    if offset == 0:
        return 0
    at = table + offset
    return at if at + need <= size else -1


@device
def target_of(base: int, size: int, at: int, need: int) -> Any:
    """The target of the u32 offset at `at` (in bounds), if `need` bytes of it are in bounds; else
    -1."""
    to = at + load_u32(base + at)
    return to if to + need <= size else -1


@device
def child_at(base: int, size: int, table: int, index: int) -> Any:
    """Position of the table or vector of field `index`; 0: absent; -1: bad."""
    at = field_at(base, size, table, index, 4)
    if at <= 0:
        return at
    return target_of(base, size, at, 4)


@device
def vector_fits(base: int, size: int, vector: int, width: int) -> Any:
    """Whether the vector at `vector` (its count in bounds) lies in bounds."""
    return vector + 4 + load_u32(base + vector) * width <= size


@device
def is_seq_key(base: int, at: int) -> Any:
    """Whether the string vector at `at` (in bounds) is `edged.seq`."""
    return (
        load_u32(base + at) == 9
        and load_u64(base + at + 4) == SEQ_KEY
        and load_u8(base + at + 12) == 0x71
    )


@device
def sequence_of(base: int, size: int, message: int) -> Any:
    """The number in custom metadata `edged.seq`; 0: none; -1: malformed."""
    pairs = child_at(base, size, message, 4)
    if pairs <= 0:
        return pairs
    if not vector_fits(base, size, pairs, 4):
        return -1
    for i in range(load_u32(base + pairs)):
        pair = target_of(base, size, pairs + 4 + 4 * i, 4)
        if pair < 0:
            return -1
        key = child_at(base, size, pair, 0)
        if key < 0 or (key > 0 and not vector_fits(base, size, key, 1)):
            return -1
        if key == 0 or not is_seq_key(base, key):
            continue
        value = child_at(base, size, pair, 1)
        if value <= 0 or not vector_fits(base, size, value, 1):
            return -1
        digits = load_u32(base + value)
        if digits < 1 or digits > 18:
            return -1
        number = 0
        for j in range(digits):
            digit = load_u8(base + value + 4 + j) - 48
            if digit < 0 or digit > 9:
                return -1
            number = number * 10 + digit
        return number if number > 0 else -1
    return 0


@device
def message_table(base: int, size: int) -> Any:
    """Position of the root table; -1 where it is out of bounds."""
    if size < 8:
        return -1
    return target_of(base, size, 0, 4)


@device
def column_size(layouts: Any, k: int, c: int, m: Any) -> Any:
    """Check one column of message `m`: its variable-size bytes, or minus an error number."""
    node = m[M_NODES] + 16 * layouts[k, c, 0]
    rows, nulls = m[M_ROWS], load_i64(node + 8)
    if load_i64(node) != rows or nulls < 0 or nulls > rows:
        return -E_LENGTH
    if nulls > 0 and layouts[k, c, 3] == 0:
        return -E_NULLS
    kind = layouts[k, c, 2]
    for b in range(2 if kind >= 0 else 3):
        buffer = m[M_BUFFERS] + 16 * (layouts[k, c, 1] + b)
        offset, length = load_i64(buffer), load_i64(buffer + 8)
        if offset < 0 or length < 0 or offset > m[M_BODY_LENGTH]:
            return -E_BUFFER
        if length > m[M_BODY_LENGTH] - offset:
            return -E_BUFFER
        need = 0
        if b == 0:
            need = (rows + 7) // 8 if nulls > 0 else 0
        elif b == 1:
            need = rows * kind
            if kind == 0:
                need = (rows + 7) // 8
            elif kind < 0:
                need = 4 * (rows + 1) if rows > 0 else 0
        if length < need:
            return -E_BUFFER
    if kind >= 0 or rows == 0:
        return 0
    buffer = m[M_BUFFERS] + 16 * (layouts[k, c, 1] + 1)
    offsets = m[M_BODY] + load_i64(buffer)
    first, last = load_i32(offsets), load_i32(offsets + 4 * rows)
    if first < 0 or last < first or last > load_i64(buffer + 24):
        return -E_OFFSETS
    return last - first


@device
def batch_header(base: int, size: int, table: int, m: Any, columns: int, buffers: int) -> Any:
    """Fill in rows, nodes and buffers of message `m` from its RecordBatch.

    Returns 0, an error number, or -1 for a batch that these kernels do not take (compressed).
    """
    length = field_at(base, size, table, 0, 8)
    nodes, ranges = child_at(base, size, table, 1), child_at(base, size, table, 2)
    compression = field_at(base, size, table, 3, 4)
    if length < 0 or nodes < 0 or ranges < 0 or compression < 0:
        return E_METADATA
    m[M_ROWS] = load_i64(base + length) if length > 0 else 0
    if compression > 0:
        return -1
    if nodes == 0 or ranges == 0:
        return E_COLUMNS
    if load_u32(base + nodes) != columns or load_u32(base + ranges) != buffers:
        return E_COLUMNS
    if not vector_fits(base, size, nodes, 16) or not vector_fits(base, size, ranges, 16):
        return E_METADATA
    m[M_NODES], m[M_BUFFERS] = base + nodes + 4, base + ranges + 4
    if m[M_ROWS] < 0 or m[M_ROWS] > m[M_BODY_LENGTH]:
        return E_LENGTH
    return 0


@kernel("void(int64, int64, int64[::1])", reference="tests.naive.ipc.frame")
def frame(address: int, length: int, out: Any) -> None:
    """The message at `address`: out = error, total size (0: not known yet), header type,
    metadata size, and a flag: a schema is big-endian, a dictionary is a delta."""
    out[:] = 0
    if length < 8:
        if length >= 4 and load_u32(address) != 0xFFFFFFFF:
            out[0] = E_MAGIC
        return
    if load_u32(address) != 0xFFFFFFFF:
        out[0] = E_MAGIC
        return
    size = load_i32(address + 4)
    out[3] = size
    if size < 0 or size > METADATA_MAX:
        out[0] = E_SIZE
        return
    if size == 0:
        out[1] = 8
        return
    if length < 8 + size:
        return
    base = address + 8
    message = message_table(base, size)
    if message < 0:
        out[0] = E_METADATA
        return
    kind, body = field_at(base, size, message, 1, 1), field_at(base, size, message, 3, 8)
    header = child_at(base, size, message, 2)
    if kind <= 0 or header <= 0 or body < 0:
        out[0] = E_METADATA
        return
    body_length = load_i64(base + body) if body > 0 else 0
    if body_length < 0 or body_length > 2**40:
        out[0] = E_SIZE
        return
    out[1] = 8 + size + body_length
    out[2] = load_u8(base + kind)
    if out[2] == SCHEMA:
        endian = field_at(base, size, header, 0, 2)
        if endian < 0:
            out[0] = E_METADATA
        elif endian > 0:
            out[4] = load_u16(base + endian) != 0
    elif out[2] == DICTIONARY:
        delta = field_at(base, size, header, 2, 1)
        if delta < 0:
            out[0] = E_METADATA
        elif delta > 0:
            out[4] = load_u8(base + delta) != 0


@kernel("int64(int64, int64, int64)", reference="tests.naive.ipc.inflated")
def inflated(meta: int, size: int, body_length: int) -> Any:
    """Declared uncompressed bytes of the record batch or dictionary whose flatbuffer is at `meta`;
    -1 if it is malformed.  The body follows the flatbuffer."""
    message = message_table(meta, size)
    if message < 0:
        return -1
    kind, header = field_at(meta, size, message, 1, 1), child_at(meta, size, message, 2)
    if kind > 0 and header > 0 and load_u8(meta + kind) == DICTIONARY:
        header = child_at(meta, size, header, 1)
    if kind <= 0 or header <= 0:
        return -1
    ranges, compression = child_at(meta, size, header, 2), field_at(meta, size, header, 3, 4)
    if ranges <= 0 or compression < 0 or not vector_fits(meta, size, ranges, 16):
        return -1
    total = 0
    for i in range(load_u32(meta + ranges)):
        at = meta + ranges + 4 + 16 * i
        offset, length = load_i64(at), load_i64(at + 8)
        if offset < 0 or length < 0 or offset > body_length or length > body_length - offset:
            return -1
        if compression > 0 and length >= 8:
            claim = load_i64(meta + size + offset)
            if claim < -1 or claim > 2**40:
                return -1
            length = max(length, claim)
        total += length
    return total


@device
def scan_message(
    regions: Any, r: int, at: int, left: int, m: Any, limits: Any, columns: int, buffers: int
) -> Any:
    """Parse the message at `at`, of which `left` bytes are here, into `m`.

    Returns its size; 0: incomplete (R_NEED has the need); -1: refused (R_ERROR has the reason)."""
    regions[r, R_NEED] = 8
    if left < 4:
        return 0
    if load_u32(at) != 0xFFFFFFFF:
        regions[r, R_ERROR] = E_MAGIC
        return -1
    if left < 8:
        return 0
    size = load_i32(at + 4)
    if size < 0 or size > METADATA_MAX:
        regions[r, R_ERROR], regions[r, R_DETAIL] = E_SIZE, size
        return -1
    if size == 0:
        regions[r, R_END] = 1
        return 8
    regions[r, R_NEED] = 8 + size
    if left < 8 + size:
        return 0
    base = at + 8
    message = message_table(base, size)
    regions[r, R_ERROR] = E_METADATA
    if message < 0:
        return -1
    version, kind = field_at(base, size, message, 0, 2), field_at(base, size, message, 1, 1)
    header, body = child_at(base, size, message, 2), field_at(base, size, message, 3, 8)
    if kind <= 0 or header <= 0 or body < 0 or version < 0:
        return -1
    if version == 0 or load_u16(base + version) < 3 or load_u16(base + version) > 4:
        regions[r, R_ERROR] = E_VERSION
        return -1
    m[M_BODY_LENGTH] = load_i64(base + body) if body > 0 else 0
    header_type = load_u8(base + kind)
    if header_type != RECORD_BATCH and header_type != DICTIONARY:
        regions[r, R_ERROR], regions[r, R_DETAIL] = E_HEADER, header_type
        return -1
    if m[M_BODY_LENGTH] < 0 or m[M_BODY_LENGTH] > limits[0] - 8 - size:
        regions[r, R_ERROR], regions[r, R_DETAIL] = E_SIZE, m[M_BODY_LENGTH]
        return -1
    total = 8 + size + m[M_BODY_LENGTH]
    regions[r, R_NEED] = total
    if total > left:
        regions[r, R_ERROR] = 0
        return 0
    m[M_META], m[M_BODY], m[M_ROWS], m[M_STATE] = at, base + size, 0, WHOLE
    m[M_SEQ] = 0
    if header_type == DICTIONARY:
        regions[r, R_SLOW] = 1
    else:
        if regions[r, R_NAMED]:
            m[M_SEQ] = sequence_of(base, size, message)
        if m[M_SEQ] < 0:
            regions[r, R_ERROR] = E_SEQ
            return -1
        if regions[r, R_SLOW] == 0:
            code = batch_header(base, size, header, m, columns, buffers)
            if code > 0:
                regions[r, R_ERROR] = code
                return -1
            if code < 0:
                regions[r, R_SLOW] = 1
    if regions[r, R_SLOW]:
        m[M_STATE] = SLOW
    regions[r, R_ERROR] = 0
    return total


@kernel(
    "int64(int64[:, ::1], int64[:, :, ::1], int64[::1], int64[:, ::1], int64[:, ::1])",
    reference="tests.naive.ipc.scan",
)
def scan(regions: Any, layouts: Any, limits: Any, messages: Any, sizes: Any) -> Any:
    """Fill `messages` and their variable-size bytes `sizes[message, ordinal]`; returns how many.

    `limits` = largest message, largest staged batch, staged bytes a row beside variable bytes.
    A region stops at its first refused message.  If `messages` is full, scanning stops early at
    `R_CONSUMED`; the rest may be scanned again.
    """
    count = 0
    columns = layouts.shape[1]
    for r in range(regions.shape[0]):
        at, left = regions[r, R_ADDRESS], regions[r, R_LENGTH]
        seq, k = regions[r, R_SEQ], regions[r, R_LAYOUT]
        buffers = 2 * columns
        for c in range(columns):
            buffers += layouts[k, c, 4] >= 0
        for field in range(R_CONSUMED, REGION_WIDTH):
            regions[r, field] = 0
        while left > 0 and count < messages.shape[0]:
            if regions[r, R_END]:
                regions[r, R_ERROR] = E_AFTER_END
                break
            m = messages[count]
            size = scan_message(regions, r, at, left, m, limits, columns, buffers)
            if size <= 0:
                break
            at, left = at + size, left - size
            regions[r, R_NEED] = 0
            if regions[r, R_END]:
                regions[r, R_CONSUMED] += size
                continue
            if m[M_SEQ] > 0:
                if m[M_SEQ] <= seq:
                    regions[r, R_CONSUMED] += size
                    regions[r, R_DUPLICATES] += 1
                    regions[r, R_DUPLICATE_SEQ] = m[M_SEQ]
                    continue
                if m[M_SEQ] != seq + 1:
                    regions[r, R_ERROR], regions[r, R_DETAIL] = E_GAP, m[M_SEQ]
                    break
                seq = m[M_SEQ]
            if m[M_STATE] == WHOLE:
                staged = m[M_ROWS] * limits[2]
                for c in range(columns):
                    got = column_size(layouts, k, c, m)
                    if got < 0:
                        regions[r, R_ERROR], regions[r, R_COLUMN] = -got, c
                        break
                    if layouts[k, c, 4] >= 0:
                        sizes[count, layouts[k, c, 4]] = got
                    staged += got
                if regions[r, R_ERROR]:
                    break
                if staged > limits[1]:
                    regions[r, R_ERROR], regions[r, R_DETAIL] = E_STAGED, staged
                    break
            m[M_REGION], m[M_KEPT], m[M_ERROR] = r, m[M_ROWS], 0
            regions[r, R_CONSUMED] += size
            regions[r, R_MESSAGES] += 1
            count += 1
    return count
