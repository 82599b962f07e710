"""Compressed bodies of Arrow messages: unpacked between `scan` and `place` of `kernels.cpu.ipc`.

Arrow compresses a body buffer by buffer: i64 raw length (-1: the rest is stored as it is), then an
LZ4 frame.
"""

from __future__ import annotations

from typing import Any

from kernels.cpu.ipc import (
    DROPPED,
    E_PACKED,
    E_STAGED,
    LAYOUT,
    LIMITS,
    MESSAGE,
    PACKED,
    REGION,
    WHOLE,
    column_size,
)
from kernels.cpu.lz4 import unpack_frame
from kernels.cpu.mem import copy_bytes, load_i64, store_i64
from kernels.registry import device, kernel


@device
def unpack_body(m: Any, to: int, buffers: int) -> Any:
    """Write a table of buffers and the unpacked buffers to `to`, and make them the message's; 0 or
    an error number."""
    table, at = to, 16 * buffers
    for b in range(buffers):
        source = m[MESSAGE.body] + load_i64(m[MESSAGE.buffers] + 16 * b)
        length, raw = load_i64(m[MESSAGE.buffers] + 16 * b + 8), 0
        if length > 0:
            raw = load_i64(source)
            if raw == -1:
                raw = length - 8
                copy_bytes(to + at, source + 8, raw)
            elif raw > 0 and unpack_frame(source + 8, length - 8, to + at, raw) != raw:
                return E_PACKED
        store_i64(table + 16 * b, at)
        store_i64(table + 16 * b + 8, raw)
        at += (raw + 7) & ~7
    m[MESSAGE.body], m[MESSAGE.body_length], m[MESSAGE.buffers] = to, at, table
    return 0


@kernel(
    "void(int64[:, ::1], int64, int64[:, ::1], int64[:, :, ::1], int64[::1], int64[:, ::1], int64)",
    reference="tests.naive.ipc.unpack",
)
def unpack(
    messages: Any, count: int, regions: Any, layouts: Any, limits: Any, sizes: Any, arena: int
) -> None:
    """Make PACKED messages WHOLE, their bodies in `arena`, which has room for all `unpacked` bytes
    together; fills `sizes` as `scan` does.

    A message that is damaged is DROPPED with its `error`; `admit` refuses it.
    """
    columns = layouts.shape[1]
    for i in range(count):
        m = messages[i]
        if m[MESSAGE.state] != PACKED:
            continue
        r = m[MESSAGE.region]
        k = regions[r, REGION.layout]
        buffers = 2 * columns
        for c in range(columns):
            buffers += layouts[k, c, LAYOUT.ordinal] >= 0
        m[MESSAGE.error], m[MESSAGE.column] = unpack_body(m, arena, buffers), 0
        arena += m[MESSAGE.unpacked]
        staged = m[MESSAGE.rows] * limits[LIMITS.row]
        for c in range(columns):
            if m[MESSAGE.error]:
                break
            got = column_size(layouts, k, c, m)
            if got < 0:
                m[MESSAGE.error], m[MESSAGE.column] = -got, c
            elif layouts[k, c, LAYOUT.ordinal] >= 0:
                sizes[i, layouts[k, c, LAYOUT.ordinal]] = got
                staged += got
        if not m[MESSAGE.error] and staged > limits[LIMITS.staged]:
            m[MESSAGE.error], regions[r, REGION.detail] = E_STAGED, staged
        m[MESSAGE.state] = DROPPED if m[MESSAGE.error] else WHOLE
        if m[MESSAGE.error]:
            m[MESSAGE.kept] = 0
