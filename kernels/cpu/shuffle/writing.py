"""Writing tuples to the places that are reserved for them, and copying rows.

A block of tuples is given by its rows as a page holds them.  Dense rows follow each other from the
address `block` on.  Slotted rows lie in reverse order before it, as in the page, so that a block is
written in two steps, each of them in one piece: its slots, and its data.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu import mem
from kernels.cpu.pages import HEADER
from kernels.cpu.records import get
from kernels.cpu.shuffle.memory import CTX, PAGE, SLOT
from kernels.cpu.shuffle.vectors import LANES, copy_64, stream_64, stream_sixteen, write_sixteen
from kernels.registry import device

STREAM_BYTES_MIN, EXPECTED_BYTES_MAX = 128, 512


@device
def copy_exact(target: int, source: int, size: int) -> None:
    """Copy `size` bytes, and write no other."""
    while size >= 64:
        copy_64(target, source)
        target += 64
        source += 64
        size -= 64
    while size >= 16:
        mem.copy_16(target, source)
        target += 16
        source += 16
        size -= 16
    while size >= 4:
        mem.store_u32(target, mem.load_u32(source))
        target += 4
        source += 4
        size -= 4
    for at in range(size):
        mem.store_u8(target + at, mem.load_u8(source + at))


@device
def copy_down(target: int, source: int, size: int) -> None:
    """Copy `size` bytes that end before `source`, to before `target`; up to 15 bytes before them
    are read and overwritten."""
    while size >= 64:
        target -= 64
        source -= 64
        copy_64(target, source)
        size -= 64
    while size > 0:
        target -= 16
        source -= 16
        mem.copy_16(target, source)
        size -= 16


@device
def copy_down_varied(target: int, source: int, size: int) -> None:
    """As `copy_down`, for sizes that no branch predictor can know: up to 128 bytes are copied
    without a branch.  Up to 128 bytes before `target` are overwritten, and before `source` read."""
    if size > 128:
        copy_down(target, source, size)
    else:
        copy_64(target - 64, source - 64)
        copy_64(target - 128, source - 128)


@device
def copy_block(target: int, source: int, size: int, stream: int) -> None:
    """Copy a block: its whole cache lines with non-temporal stores if `stream`."""
    if stream != 0 and size >= STREAM_BYTES_MIN:
        head = -target & 63
        if head != 0:
            copy_exact(target, source, head)
            target += head
            source += head
            size -= head
        while size >= 64:
            stream_64(target, source)
            target += 64
            source += 64
            size -= 64
    copy_exact(target, source, size)


@device
def write_slot(slot: int, key: Any, offset: int, length: int) -> None:
    """One slot."""
    mem.store_u32(slot, key)
    mem.store_u32(slot + 4, np.uint32(offset))
    mem.store_u32(slot + 8, np.uint32(length))


@device
def write_slots(
    slot: int, offset: int, count: int, hashes: int, lengths: int, step: int, stream: int
) -> None:
    """The slots of a block behind `offset` bytes of data.  `lengths` is the address of sixteen
    uint32 that are all the same where `step` is 0, else of each row's, with `step` 4."""
    while count >= LANES:
        if stream != 0 and slot & 63 == 0:
            offset = stream_sixteen(slot, hashes, lengths, offset)
        else:
            offset = write_sixteen(slot, hashes, lengths, offset)
        slot += SLOT * LANES
        hashes += 4 * LANES
        lengths += step * LANES
        count -= LANES
    for j in range(count):
        size = mem.load_u32(lengths + step * j) + 0
        offset += size
        write_slot(slot + SLOT * j, mem.load_u32(hashes + 4 * j), offset, size)


@device
def expect(target: int, size: int) -> None:
    """Prefetch the cache lines that the next tuples of a partition will write."""
    for at in range(0, min(size, EXPECTED_BYTES_MAX), 64):
        mem.prefetch_to_write(target + at)


@device
def write_tuples(
    ctx: int, page: int, first: int, offset: int, count: int, data: int,
    block: int, hashes: int, lengths: int,
) -> None:  # fmt: skip
    """Write a block of `count` tuples with `data` bytes of data to the slots from `first` on,
    behind `offset` bytes of data.  `hashes` and `lengths` are addresses of uint32; `lengths` is 0
    where all rows have one width.  Dense pages need neither."""
    base, stride, stream = get(page, PAGE.base), get(ctx, CTX.stride), get(ctx, CTX.stream)
    at = base + HEADER + stride * first
    if get(ctx, CTX.slotted) == 0:
        copy_block(at, block, count * stride, stream)
        if stream == 0:
            expect(at + count * stride, count * stride)
        return
    end, width = base + get(page, PAGE.end_at) - offset, get(ctx, CTX.width)
    if get(ctx, CTX.two_step) != 0:
        if lengths == 0:
            write_slots(at, offset, count, hashes, ctx + 8 * CTX.widths, 0, stream)
        else:
            write_slots(at, offset, count, hashes, lengths, 4, stream)
        copy_block(end - data, block - data, data, stream)
        if stream == 0:
            expect(end - 2 * data, data)
            expect(at + SLOT * (count + 1), SLOT * count)
        return
    for j in range(count):
        size = width if lengths == 0 else mem.load_u32(lengths + 4 * j) + 0
        offset += size
        write_slot(at + SLOT * j, mem.load_u32(hashes + 4 * j), offset, size)
        end -= size
        block -= size
        copy_exact(end, block, size)
