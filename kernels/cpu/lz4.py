"""LZ4 frames to bytes (lz4/lz4 doc/lz4_Frame_format.md and lz4_Block_format.md).

    frame   u32 0x184D2204 | FLG u8 | BD u8 | [u64 content size] | HC u8 | blocks | u32 0
            | [u32 content checksum]
    block   u32 size, highest bit: stored as it is | data | [u32 checksum]
    data    token (literals, length - 4; 15: more bytes follow) | literals | u16 distance

Input is untrusted: every read is checked against the frame, every write against the target.
Checksums are skipped; dictionaries, skippable frames and a second frame are refused.
"""

from __future__ import annotations

from typing import Any

from kernels.cpu.mem import (
    copy_16,
    copy_bytes,
    load_u8,
    load_u16,
    load_u32,
    load_u64,
    store_u8,
    store_u64,
)
from kernels.registry import device, kernel

MAGIC = 0x184D2204
VERSION, BLOCK_CHECKSUM, CONTENT_SIZE, CONTENT_CHECKSUM, DICTIONARY = 0x40, 0x10, 0x08, 0x04, 0x01
"""Bits of FLG; VERSION is what its two highest bits must be."""
STORED = 0x80000000
LITERALS_LAST = 15
"""A length of a token that goes on in the bytes after it."""
MATCH_MIN = 4


@device
def repeat(target: int, distance: int, length: int, room: int) -> None:
    """Copy `length` bytes from `distance` before `target`; the ranges may overlap.  `room` bytes
    may be written."""
    source = target - distance
    if distance >= 16 and room >= length + 16:
        for i in range(0, length, 16):
            copy_16(target + i, source + i)
        return
    if room < length + 16 or length < 8:
        for i in range(length):
            store_u8(target + i, load_u8(source + i))
        return
    if distance < 8:
        for i in range(8):
            store_u8(target + i, load_u8(source + i))
        target, length = target + 8, length - 8
        source = target - distance * ((7 + distance) // distance)
    for i in range(0, length, 8):
        store_u64(target + i, load_u64(source + i))


@device
def unpack_block(source: int, end: int, target: int, target_end: int, low: int) -> Any:
    """Unpack the block `source:end` to `target`; returns the end of what it wrote, -1 if it is
    damaged.  Matches may begin at `low`."""
    while True:
        if source >= end:
            return -1
        token = int(load_u8(source))
        source += 1
        length = token >> 4
        if length == LITERALS_LAST:
            more = 255
            while more == 255:
                if source >= end:
                    return -1
                more = int(load_u8(source))
                source, length = source + 1, length + more
        if length > end - source or length > target_end - target:
            return -1
        if length <= 16 and end - source >= 16 and target_end - target >= 16:
            copy_16(target, source)
        else:
            copy_bytes(target, source, length)
        source, target = source + length, target + length
        if source == end:
            return target
        if end - source < 2:
            return -1
        distance = int(load_u16(source))
        source += 2
        if distance == 0 or distance > target - low:
            return -1
        length = token & 15
        if length == LITERALS_LAST:
            more = 255
            while more == 255:
                if source >= end:
                    return -1
                more = int(load_u8(source))
                source, length = source + 1, length + more
        length += MATCH_MIN
        if length > target_end - target:
            return -1
        repeat(target, distance, length, target_end - target)
        target += length


@device
def unpack_frame(source: int, size: int, target: int, room: int) -> Any:
    """Unpack the frame of `size` bytes at `source` into `room` bytes at `target`; returns the
    number of bytes, -1 for a frame that is damaged or not supported."""
    end, at = source + size, target
    if size < 11 or load_u32(source) != MAGIC:
        return -1
    flags = int(load_u8(source + 4))
    if flags & 0xC0 != VERSION or flags & DICTIONARY:
        return -1
    source += 7
    if flags & CONTENT_SIZE:
        source += 8
    while True:
        if end - source < 4:
            return -1
        block = int(load_u32(source))
        source += 4
        if block == 0:
            rest = 4 if flags & CONTENT_CHECKSUM else 0
            return at - target if end - source == rest else -1
        stored, block = block & STORED, block & (STORED - 1)
        if block > end - source:
            return -1
        if stored:
            if block > target + room - at:
                return -1
            copy_bytes(at, source, block)
            at += block
        else:
            at = unpack_block(source, source + block, at, target + room, target)
            if at < 0:
                return -1
        source += block
        if flags & BLOCK_CHECKSUM:
            source += 4


@kernel("int64(int64, int64, int64, int64)", reference="tests.naive.lz4.unpack")
def unpack(source: int, size: int, target: int, room: int) -> Any:
    """Unpack an LZ4 frame of `size` bytes into `room` bytes; returns the number of bytes, -1 for a
    frame that is damaged, does not fit, or is not supported."""
    return unpack_frame(source, size, target, room)
