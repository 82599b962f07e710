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

Six passes, each over all regions of one stream:

    scan    messages → a table of messages; frames, numbers, buffers checked
    unpack  bodies of PACKED messages → memory of the caller (`kernels.cpu.ipc_packed`)
    place   positions of each message's rows and bytes, relative to the first message
    copy    columns → target; offsets, UTF-8 and times checked      (may be split among workers)
    admit   removes refused messages and rows too far ahead; then `place` and `copy` run again
    finish  chunk entries, producers' sequence numbers and times

A row of `regions` is an `IpcRegion`, a row of `messages` an `IpcMessage`; `layouts[k, column]` is
the `IpcColumn` of a stream's column in the messages of layout k.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kernels.cpu.flatbuffer import child_at, field_at, message_table, target_of, vector_fits
from kernels.cpu.mem import load_i32, load_i64, load_u8, load_u16, load_u32, load_u64
from kernels.cpu.records import ADDRESS, I64, field, words
from kernels.registry import device, kernel


class IpcRegion(NamedTuple):
    """The received bytes of a connection.  The caller sets the fields before `consumed`, the
    kernels set the others."""

    address: ADDRESS = field("received bytes")
    length: I64 = field("number of these bytes")
    layout: I64 = field("number of the layout")
    producer: I64 = field("number of the producer")
    named: I64 = field("1: the peer gave a producer id, so sequence numbers count")
    seq: I64 = field("last sequence number staged; moved on by `admit`")
    slow: I64 = field("1: these kernels do not take its batches; set by `scan` at the first such")
    consumed: I64 = field("bytes of whole messages that need not be kept")
    error: I64 = field("reason of refusal; 0 for none")
    column: I64 = field("number of the column that was refused")
    detail: I64 = field("figure of the error's message")
    need: I64 = field("known size of the incomplete message; 0: none has begun")
    end: I64 = field("1: the end-of-stream marker was read")
    duplicates: I64 = field("messages dropped because their number was staged before")
    duplicate_seq: I64 = field("largest of these numbers")
    messages: I64 = field("messages taken; -1: refused by `admit`")


class IpcMessage(NamedTuple):
    """A scanned record batch."""

    region: I64 = field("number of its region")
    meta: ADDRESS = field("flatbuffer")
    body: ADDRESS = field("body")
    body_length: I64 = field("bytes of the body")
    rows: I64 = field("rows")
    seq: I64 = field("sequence number; 0 for none")
    nodes: ADDRESS = field("nodes of the RecordBatch")
    buffers: ADDRESS = field("buffers of the RecordBatch")
    state: I64 = field("WHOLE, FILTERED, DROPPED, SLOW or PACKED")
    at: I64 = field("place of its first row, from the first message's on")
    kept: I64 = field("rows that are staged")
    time_min: I64 = field("earliest time of these")
    time_max: I64 = field("latest time of these")
    error: I64 = field("reason of refusal; 0 for none")
    column: I64 = field("number of the column that was refused")
    limit: I64 = field("latest time that is staged, of a FILTERED message")
    watermark: I64 = field("earliest time of later rows of its producer; WATERMARK_NONE: not said")
    sum: I64 = field("what its producer calls it besides its number; 0: nothing")
    unpacked: I64 = field("bytes that a PACKED body takes, with its table of buffers")


class IpcColumn(NamedTuple):
    """Where a stream's column lies in a message."""

    node: I64 = field("index of its node")
    buffer: I64 = field("index of its first buffer")
    kind: I64 = field("bytes of a value; 0: bits, -1: UTF-8, -2: binary")
    nullable: I64 = field("1: it may have nulls")
    ordinal: I64 = field("number among the columns of variable size; -1: fixed size")


class IpcLimits(NamedTuple):
    """What `scan` admits."""

    message: I64 = field("bytes of a message, at most")
    staged: I64 = field("bytes of a staged batch, at most")
    row: I64 = field("staged bytes of a row, without values of variable size")


REGION, MESSAGE, LAYOUT = words(IpcRegion), words(IpcMessage), words(IpcColumn)
LIMITS = words(IpcLimits)

WHOLE, FILTERED, DROPPED, SLOW, PACKED = 0, 1, 2, 3, 4  # states of a message
WATERMARK_NONE = -(2**63)
WATERMARK_END = 2**63 - 1
"""A watermark that ends its producer's stream."""

# Reasons of refusal (`error` of regions, messages and `ipc_frame`).
E_MAGIC, E_SIZE, E_METADATA, E_HEADER, E_VERSION, E_GAP = 1, 2, 3, 4, 5, 6
E_COLUMNS, E_BUFFER = 7, 8
E_NULLS, E_OFFSETS, E_UTF8, E_LENGTH, E_SEQ, E_AFTER_END, E_STAGED = 9, 10, 11, 12, 13, 14, 15
E_WATERMARK, E_SUM, E_PACKED = 16, 17, 18

SCHEMA, DICTIONARY, RECORD_BATCH = 1, 2, 3
UNPACKED_MAX = 1 << 40
"""Largest accepted claim of a compressed buffer, in bytes."""
METADATA_MAX = 1 << 20
"""Largest accepted flatbuffer metadata, in bytes."""
SEQ_KEY, SUM_KEY = np.uint64(0x65732E6465676465), np.uint64(0x75732E6465676465)
WATERMARK_KEY, WATERMARK_REST = np.uint64(0x61772E6465676465), np.uint64(0x6B72616D72657461)
"""The first eight bytes of `edged.seq`, `edged.sum` and `edged.watermark`, and the last eight of
it."""
SEQ_DIGITS_MAX, WATERMARK_DIGITS_MAX, SUM_DIGITS = 18, 19, 16
TENTH = 2**63 // 10


@device
def number_at(at: int, digits: int, most: int) -> Any:
    """The decimal number of `digits` digits at `at`; -1 where it has none, or more than `most`."""
    if digits < 1 or digits > most:
        return -1
    number = 0
    for j in range(digits):
        digit = load_u8(at + j) - 48
        if digit < 0 or digit > 9:
            return -1
        number = number * 10 + digit
    return number


@device
def watermark_at(at: int, size: int, m: Any) -> Any:
    """Set the watermark of `m` from its text; 0 or an error number."""
    sign = int(load_u8(at)) if size > 0 else 0
    signed = int(sign == 43 or sign == 45)
    digits, below = size - signed, 0
    if digits < 1 or digits > WATERMARK_DIGITS_MAX:
        return E_WATERMARK
    for j in range(digits):  # counted below 0, where there is one number more
        digit = int(load_u8(at + signed + j)) - 48
        if digit < 0 or digit > 9 or below < -TENTH or (below == -TENTH and digit > 8):
            return E_WATERMARK
        below = below * 10 - digit
    if sign != 45 and below == WATERMARK_NONE:
        return E_WATERMARK
    m[MESSAGE.watermark] = below if sign == 45 else -below
    return 0


@device
def sum_at(at: int, size: int, m: Any) -> Any:
    """Set the sum of `m` from its hexadecimal digits; 0 or an error number."""
    if size != SUM_DIGITS:
        return E_SUM
    number = 0
    for j in range(SUM_DIGITS):
        letter = int(load_u8(at + j))
        digit = letter - 48 if letter <= 57 else letter - 87
        if digit < 0 or digit > 15 or (letter > 57 and digit < 10):
            return E_SUM
        number = (number << 4) | digit
    m[MESSAGE.sum] = number
    return 0


@device
def metadata_of(base: int, size: int, message: int, m: Any) -> Any:
    """Set sequence number, watermark and sum of `m` from the custom metadata; 0 or an error
    number."""
    pairs = child_at(base, size, message, 4)
    if pairs == 0:
        return 0
    if pairs < 0 or not vector_fits(base, size, pairs, 4):
        return E_SEQ
    for i in range(load_u32(base + pairs)):
        pair = target_of(base, size, pairs + 4 + 4 * i, 4)
        if pair < 0:
            return E_SEQ
        key = child_at(base, size, pair, 0)
        if key < 0 or (key > 0 and not vector_fits(base, size, key, 1)):
            return E_SEQ
        length = load_u32(base + key) if key > 0 else 0
        if length != 9 and length != 15:
            continue
        start = load_u64(base + key + 4)
        if start != SEQ_KEY and start != SUM_KEY and start != WATERMARK_KEY:
            continue
        value = child_at(base, size, pair, 1)
        if value <= 0 or not vector_fits(base, size, value, 1):
            return E_SEQ
        digits, text = load_u32(base + value), base + value + 4
        problem = 0
        if length == 15:
            if start == WATERMARK_KEY and load_u64(base + key + 11) == WATERMARK_REST:
                problem = watermark_at(text, digits, m)
        elif start == SEQ_KEY and load_u8(base + key + 12) == 0x71:
            m[MESSAGE.seq] = number_at(text, digits, SEQ_DIGITS_MAX)
            problem = E_SEQ if m[MESSAGE.seq] <= 0 else 0
        elif start == SUM_KEY and load_u8(base + key + 12) == 0x6D:
            problem = sum_at(text, digits, m)
        if problem:
            return problem
    return 0


@device
def column_size(layouts: Any, k: int, c: int, m: Any) -> Any:
    """Check one column of message `m`: its variable-size bytes, or minus an error number."""
    node = m[MESSAGE.nodes] + 16 * layouts[k, c, LAYOUT.node]
    rows, nulls = m[MESSAGE.rows], load_i64(node + 8)
    if load_i64(node) != rows or nulls < 0 or nulls > rows:
        return -E_LENGTH
    if nulls > 0 and layouts[k, c, LAYOUT.nullable] == 0:
        return -E_NULLS
    kind = layouts[k, c, LAYOUT.kind]
    for b in range(2 if kind >= 0 else 3):
        buffer = m[MESSAGE.buffers] + 16 * (layouts[k, c, LAYOUT.buffer] + b)
        offset, length = load_i64(buffer), load_i64(buffer + 8)
        if offset < 0 or length < 0 or offset > m[MESSAGE.body_length]:
            return -E_BUFFER
        if length > m[MESSAGE.body_length] - offset:
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
    buffer = m[MESSAGE.buffers] + 16 * (layouts[k, c, LAYOUT.buffer] + 1)
    offsets = m[MESSAGE.body] + load_i64(buffer)
    first, last = load_i32(offsets), load_i32(offsets + 4 * rows)
    if first < 0 or last < first or last > load_i64(buffer + 24):
        return -E_OFFSETS
    return last - first


@device
def is_lz4(base: int, size: int, table: int) -> Any:
    """Whether a BodyCompression is of LZ4 frames, buffer by buffer."""
    if table < 0:
        return False
    codec, method = field_at(base, size, table, 0, 1), field_at(base, size, table, 1, 1)
    if codec < 0 or method < 0:
        return False
    return (codec == 0 or load_u8(base + codec) == 0) and (
        method == 0 or load_u8(base + method) == 0
    )


@device
def unpacked_bytes(m: Any, buffers: int) -> Any:
    """Bytes of a compressed body's buffers, each rounded up to 8, and of a table of them; -1 where
    one lies outside the body or claims a size that cannot be."""
    total = 16 * buffers
    for b in range(buffers):
        at = m[MESSAGE.buffers] + 16 * b
        offset, length = load_i64(at), load_i64(at + 8)
        if offset < 0 or length < 0 or offset > m[MESSAGE.body_length]:
            return -1
        if length > m[MESSAGE.body_length] - offset:
            return -1
        if length == 0:
            continue
        claim = load_i64(m[MESSAGE.body] + offset) if length >= 8 else -2
        if claim < -1 or claim > UNPACKED_MAX:
            return -1
        total += ((length - 8 if claim == -1 else claim) + 7) & ~7
    return total


@device
def batch_header(base: int, size: int, table: int, m: Any, columns: int, buffers: int) -> Any:
    """Fill in rows, nodes and buffers of message `m` from its RecordBatch.

    Returns 0, an error number, or -1 for a batch that these kernels do not take (compressed by
    another codec than LZ4).
    """
    length = field_at(base, size, table, 0, 8)
    nodes, ranges = child_at(base, size, table, 1), child_at(base, size, table, 2)
    compression = field_at(base, size, table, 3, 4)
    if length < 0 or nodes < 0 or ranges < 0 or compression < 0:
        return E_METADATA
    m[MESSAGE.rows] = load_i64(base + length) if length > 0 else 0
    if compression > 0 and not is_lz4(base, size, target_of(base, size, compression, 4)):
        return -1
    if nodes == 0 or ranges == 0:
        return E_COLUMNS
    if load_u32(base + nodes) != columns or load_u32(base + ranges) != buffers:
        return E_COLUMNS
    if not vector_fits(base, size, nodes, 16) or not vector_fits(base, size, ranges, 16):
        return E_METADATA
    m[MESSAGE.nodes], m[MESSAGE.buffers] = base + nodes + 4, base + ranges + 4
    most = m[MESSAGE.body_length]
    if compression > 0:
        m[MESSAGE.state] = PACKED
        m[MESSAGE.unpacked] = most = unpacked_bytes(m, buffers)
        if most < 0:
            return E_PACKED
    if m[MESSAGE.rows] < 0 or m[MESSAGE.rows] > most:
        return E_LENGTH
    return 0


@device
def scan_message(
    regions: Any, r: int, at: int, left: int, m: Any, limits: Any, columns: int, buffers: int
) -> Any:
    """Parse the message at `at`, of which `left` bytes are here, into `m`.

    Returns its size; 0: incomplete (`need` says what it needs); -1: refused (`error` says why)."""
    regions[r, REGION.need] = 8
    if left < 4:
        return 0
    if load_u32(at) != 0xFFFFFFFF:
        regions[r, REGION.error] = E_MAGIC
        return -1
    if left < 8:
        return 0
    size = load_i32(at + 4)
    if size < 0 or size > METADATA_MAX:
        regions[r, REGION.error], regions[r, REGION.detail] = E_SIZE, size
        return -1
    if size == 0:
        regions[r, REGION.end] = 1
        return 8
    regions[r, REGION.need] = 8 + size
    if left < 8 + size:
        return 0
    base = at + 8
    message = message_table(base, size)
    regions[r, REGION.error] = E_METADATA
    if message < 0:
        return -1
    version, kind = field_at(base, size, message, 0, 2), field_at(base, size, message, 1, 1)
    header, body = child_at(base, size, message, 2), field_at(base, size, message, 3, 8)
    if kind <= 0 or header <= 0 or body < 0 or version < 0:
        return -1
    if version == 0 or load_u16(base + version) < 3 or load_u16(base + version) > 4:
        regions[r, REGION.error] = E_VERSION
        return -1
    m[MESSAGE.body_length] = load_i64(base + body) if body > 0 else 0
    header_type = load_u8(base + kind)
    if header_type != RECORD_BATCH and header_type != DICTIONARY:
        regions[r, REGION.error], regions[r, REGION.detail] = E_HEADER, header_type
        return -1
    if m[MESSAGE.body_length] < 0 or m[MESSAGE.body_length] > limits[LIMITS.message] - 8 - size:
        regions[r, REGION.error], regions[r, REGION.detail] = E_SIZE, m[MESSAGE.body_length]
        return -1
    total = 8 + size + m[MESSAGE.body_length]
    regions[r, REGION.need] = total
    if total > left:
        regions[r, REGION.error] = 0
        return 0
    m[MESSAGE.meta], m[MESSAGE.body], m[MESSAGE.rows], m[MESSAGE.state] = at, base + size, 0, WHOLE
    m[MESSAGE.seq], m[MESSAGE.watermark], m[MESSAGE.sum] = 0, WATERMARK_NONE, 0
    if header_type == DICTIONARY:
        regions[r, REGION.slow] = 1
    else:
        if regions[r, REGION.named]:
            code = metadata_of(base, size, message, m)
            if code > 0:
                regions[r, REGION.error] = code
                return -1
        if regions[r, REGION.slow] == 0:
            code = batch_header(base, size, header, m, columns, buffers)
            if code > 0:
                regions[r, REGION.error] = code
                return -1
            if code < 0:
                regions[r, REGION.slow] = 1
    if regions[r, REGION.slow]:
        m[MESSAGE.state] = SLOW
    regions[r, REGION.error] = 0
    return total


@kernel(
    "int64(int64[:, ::1], int64[:, :, ::1], int64[::1], int64[:, ::1], int64[:, ::1])",
    reference="tests.naive.ipc.scan",
)
def scan(regions: Any, layouts: Any, limits: Any, messages: Any, sizes: Any) -> Any:
    """Fill `messages` and their variable-size bytes `sizes[message, ordinal]`; returns how many.

    `limits` is an `IpcLimits`.  A region stops at its first refused message.  If `messages` is
    full, scanning stops early at `consumed`; the rest may be scanned again.
    """
    count = 0
    columns = layouts.shape[1]
    for r in range(regions.shape[0]):
        at, left = regions[r, REGION.address], regions[r, REGION.length]
        seq, k = regions[r, REGION.seq], regions[r, REGION.layout]
        buffers = 2 * columns
        for c in range(columns):
            buffers += layouts[k, c, LAYOUT.ordinal] >= 0
        for word in range(REGION.consumed, len(REGION)):
            regions[r, word] = 0
        while left > 0 and count < messages.shape[0]:
            if regions[r, REGION.end]:
                regions[r, REGION.error] = E_AFTER_END
                break
            m = messages[count]
            size = scan_message(regions, r, at, left, m, limits, columns, buffers)
            if size <= 0:
                break
            at, left = at + size, left - size
            regions[r, REGION.need] = 0
            if regions[r, REGION.end]:
                regions[r, REGION.consumed] += size
                continue
            if m[MESSAGE.seq] > 0:
                if m[MESSAGE.seq] <= seq:
                    regions[r, REGION.consumed] += size
                    regions[r, REGION.duplicates] += 1
                    regions[r, REGION.duplicate_seq] = m[MESSAGE.seq]
                    continue
                if m[MESSAGE.seq] != seq + 1:
                    regions[r, REGION.error], regions[r, REGION.detail] = E_GAP, m[MESSAGE.seq]
                    break
                seq = m[MESSAGE.seq]
            if m[MESSAGE.state] == PACKED:
                most = limits[LIMITS.staged] + 24 * buffers
                if m[MESSAGE.unpacked] > most:
                    regions[r, REGION.error] = E_STAGED
                    regions[r, REGION.detail] = m[MESSAGE.unpacked]
                    break
            elif m[MESSAGE.state] == WHOLE:
                staged = m[MESSAGE.rows] * limits[LIMITS.row]
                for c in range(columns):
                    got = column_size(layouts, k, c, m)
                    if got < 0:
                        regions[r, REGION.error], regions[r, REGION.column] = -got, c
                        break
                    if layouts[k, c, LAYOUT.ordinal] >= 0:
                        sizes[count, layouts[k, c, LAYOUT.ordinal]] = got
                    staged += got
                if regions[r, REGION.error]:
                    break
                if staged > limits[LIMITS.staged]:
                    regions[r, REGION.error], regions[r, REGION.detail] = E_STAGED, staged
                    break
            m[MESSAGE.region], m[MESSAGE.kept], m[MESSAGE.error] = r, m[MESSAGE.rows], 0
            regions[r, REGION.consumed] += size
            regions[r, REGION.messages] += 1
            count += 1
    return count
