"""Bytes to LZ4 frames (lz4/lz4 doc/lz4_Frame_format.md, lz4_Block_format.md), and the buffers of an
Arrow body to compressed ones, in one call.

The search is LZ4's fast one: a table of the last place of each hash of four bytes, one candidate a
place, and steps that grow where nothing matches.  Places are offsets in the whole body, so that the
table is cleared once for all buffers; a candidate before its own block is none.  The result depends
on the bytes alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu.lz4 import LITERALS_LAST, MAGIC, MATCH_MIN, STORED
from kernels.cpu.mem import (
    copy_16,
    copy_bytes,
    load_i64,
    load_u8,
    load_u32,
    load_u64,
    lowest_bit,
    store_i64,
    store_u8,
    store_u16,
    store_u32,
)
from kernels.registry import device, kernel

HASH_BITS = 12
"""Of the table: 16 KiB, which stay in the first cache."""
_PRIME = 2654435761
SKIP_SHIFT = 6
"""A step is one byte longer for each 64 places without a match."""
TAIL, SAFE = 5, 12
"""The last bytes of a block are literals; the last match begins SAFE bytes before its end."""
DISTANCE_MAX = 65_535
BLOCK_MAX = 4 << 20
FRAME_BYTES = 7 + 4 + 4
"""Head, size of a block, and end mark."""
_HEADS = ((64 << 10, 0x82_40), (256 << 10, 0xFB_50), (1 << 20, 0x51_60), (BLOCK_MAX, 0x73_70))
"""Largest block, and the bytes BD and HC (the second byte of xxh32 of FLG and BD) where FLG says:
version 1, independent blocks, no sizes and no checksums."""
_FLAGS = 0x60
ENTRY = 16
"""Bytes of a buffer's entry: i64 offset, i64 length."""
ROOM_A_BUFFER = 16
"""Bytes beside a body's own that its compressed form may take for each buffer."""


@device
def hash_of(four: int) -> Any:
    """The place in the table."""
    return (np.int64(four) * _PRIME & 0xFFFFFFFF) >> (32 - HASH_BITS)


@device
def same_bytes(a: int, b: int, end: int) -> Any:
    """How many bytes from `a` and from `b` on are equal; `a` stops at `end`."""
    start = a
    while a + 8 <= end:
        differ = load_u64(a) ^ load_u64(b)
        if differ:
            return a - start + (np.int64(lowest_bit(differ)) >> 3)
        a, b = a + 8, b + 8
    while a < end and load_u8(a) == load_u8(b):
        a, b = a + 1, b + 1
    return a - start


@device
def put_length(target: int, length: int) -> Any:
    """The bytes of a length beyond its token; returns their end."""
    while length >= 255:
        store_u8(target, 255)
        target, length = target + 1, length - 255
    store_u8(target, length)
    return target + 1


@device
def put_literals(target: int, source: int, size: int, room: int, left: int) -> Any:
    """Literals; returns their end.  From `target` on `room` bytes may be written, from `source` on
    `left` be read."""
    if size <= 16 and room >= 16 and left >= 16:
        copy_16(target, source)
    else:
        copy_bytes(target, source, size)
    return target + size


@device
def pack_block(base: int, at: int, size: int, target: int, room: int, table: Any) -> Any:
    """Compress `size` bytes at `base + at`; returns the bytes written, -1 where they do not fit
    into `room`.  `table`: 1 << HASH_BITS places + 1, relative to `base`; 0: none."""
    low, out, limit = at, target, target + room
    end, last, anchor = at + size, at + size - SAFE, at
    if size > SAFE:
        table[hash_of(load_u32(base + at))] = at + 1
        at += 1
    misses = 1 << SKIP_SHIFT
    while at <= last:
        four = load_u32(base + at)
        place = hash_of(four)
        found = np.int64(table[place]) - 1
        table[place] = at + 1
        if found < low or at - found > DISTANCE_MAX or load_u32(base + found) != four:
            at += misses >> SKIP_SHIFT
            misses += 1
            continue
        while at > anchor and found > low and load_u8(base + at - 1) == load_u8(base + found - 1):
            at, found = at - 1, found - 1
        literals = at - anchor
        match = same_bytes(base + at + MATCH_MIN, base + found + MATCH_MIN, base + end - TAIL)
        if out + 1 + literals + literals // 255 + 1 + 2 + match // 255 + 1 + SAFE > limit:
            return -1
        token = min(literals, LITERALS_LAST) << 4 | min(match, LITERALS_LAST)
        store_u8(out, token)
        out += 1
        if literals >= LITERALS_LAST:
            out = put_length(out, literals - LITERALS_LAST)
        out = put_literals(out, base + anchor, literals, limit - out, end - anchor)
        store_u16(out, at - found)
        out += 2
        if match >= LITERALS_LAST:
            out = put_length(out, match - LITERALS_LAST)
        at += MATCH_MIN + match
        anchor, misses = at, 1 << SKIP_SHIFT
        if at <= last:
            table[hash_of(load_u32(base + at - 2))] = at - 2 + 1
    literals = end - anchor
    if out + 1 + literals + literals // 255 + 1 > limit:
        return -1
    store_u8(out, min(literals, LITERALS_LAST) << 4)
    out += 1
    if literals >= LITERALS_LAST:
        out = put_length(out, literals - LITERALS_LAST)
    copy_bytes(out, base + anchor, literals)
    return out + literals - target


@device
def pack_frame(base: int, at: int, size: int, target: int, room: int, table: Any) -> Any:
    """A frame of `size` bytes at `base + at`; returns its bytes, -1 where it does not fit into
    `room`.  Blocks that do not shrink are stored."""
    if room < FRAME_BYTES:
        return -1
    block, head = _HEADS[3]
    for most, its in _HEADS:
        if size <= most:
            block, head = most, its
            break
    store_u32(target, MAGIC)
    store_u8(target + 4, _FLAGS)
    store_u16(target + 5, head)
    out, limit = target + 7, target + room - 4
    end = at + size
    while at < end:
        part = min(block, end - at)
        if limit - out < 4:
            return -1
        packed = pack_block(base, at, part, out + 4, min(part - 1, limit - out - 4), table)
        if packed < 0:
            if part > limit - out - 4:
                return -1
            copy_bytes(out + 4, base + at, part)
            store_u32(out, part | STORED)
            packed = part
        else:
            store_u32(out, packed)
        out, at = out + 4 + packed, at + part
    store_u32(out, 0)
    return out + 4 - target


@kernel(
    "int64(int64, int64, int64, int64, int64, int32[::1])",
    reference="tests.naive.lz4_pack.pack_buffers",
)
def pack_buffers(body: int, entries: int, count: int, target: int, made: int, table: Any) -> Any:
    """Compress the buffers of an Arrow body: `count` entries (i64 offset, i64 length) lead to them.

    Writes the compressed body to `target` and its entries to `made`; returns its bytes.  A buffer
    is its raw length (i64) and a frame, or -1 and its bytes where a frame is not shorter; each is
    padded with zeros to a multiple of 8.  `target` needs the body's bytes and ROOM_A_BUFFER for
    each; `table` has 1 << HASH_BITS places and any content.
    """
    table[:] = 0
    out = 0
    for i in range(count):
        at, size = load_i64(entries + i * ENTRY), load_i64(entries + i * ENTRY + 8)
        start = out
        if size:
            frame = target + out + 8
            packed = pack_frame(body, at, size, frame, size - 1, table)
            if packed < 0:
                store_i64(target + out, -1)
                copy_bytes(frame, body + at, size)
                packed = size
            else:
                store_i64(target + out, size)
            out += 8 + packed
        store_i64(made + i * ENTRY, start)
        store_i64(made + i * ENTRY + 8, out - start)
        while out & 7:
            store_u8(target + out, 0)
            out += 1
    return out
