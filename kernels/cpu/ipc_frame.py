"""One Arrow IPC message by itself: its size and type, and the memory that its batch claims."""

from __future__ import annotations

from typing import Any, NamedTuple

from kernels.cpu.flatbuffer import child_at, field_at, message_table, vector_fits
from kernels.cpu.ipc import (
    DICTIONARY,
    E_MAGIC,
    E_METADATA,
    E_SIZE,
    METADATA_MAX,
    SCHEMA,
    UNPACKED_MAX,
)
from kernels.cpu.mem import load_i32, load_i64, load_u8, load_u16, load_u32
from kernels.cpu.records import I64, field, words
from kernels.registry import kernel


class IpcFrame(NamedTuple):
    """What `frame` finds at the begin of a message."""

    error: I64 = field("reason of refusal; 0 for none")
    size: I64 = field("bytes of the message; 0: not known yet")
    header: I64 = field("type of the header")
    metadata: I64 = field("bytes of the flatbuffer")
    flag: I64 = field("1: a schema is big-endian, a dictionary is a delta")


FRAME = words(IpcFrame)


@kernel("void(int64, int64, int64[::1])", reference="tests.naive.ipc.frame")
def frame(address: int, length: int, out: Any) -> None:
    """Describe the message at `address` in `out` (`IpcFrame`)."""
    out[:] = 0
    if length < 8:
        if length >= 4 and load_u32(address) != 0xFFFFFFFF:
            out[FRAME.error] = E_MAGIC
        return
    if load_u32(address) != 0xFFFFFFFF:
        out[FRAME.error] = E_MAGIC
        return
    size = load_i32(address + 4)
    out[FRAME.metadata] = size
    if size < 0 or size > METADATA_MAX:
        out[FRAME.error] = E_SIZE
        return
    if size == 0:
        out[FRAME.size] = 8
        return
    if length < 8 + size:
        return
    base = address + 8
    message = message_table(base, size)
    if message < 0:
        out[FRAME.error] = E_METADATA
        return
    kind, body = field_at(base, size, message, 1, 1), field_at(base, size, message, 3, 8)
    header = child_at(base, size, message, 2)
    if kind <= 0 or header <= 0 or body < 0:
        out[FRAME.error] = E_METADATA
        return
    body_length = load_i64(base + body) if body > 0 else 0
    if body_length < 0 or body_length > 2**40:
        out[FRAME.error] = E_SIZE
        return
    out[FRAME.size] = 8 + size + body_length
    out[FRAME.header] = load_u8(base + kind)
    if out[FRAME.header] == SCHEMA:
        endian = field_at(base, size, header, 0, 2)
        if endian < 0:
            out[FRAME.error] = E_METADATA
        elif endian > 0:
            out[FRAME.flag] = load_u16(base + endian) != 0
    elif out[FRAME.header] == DICTIONARY:
        delta = field_at(base, size, header, 2, 1)
        if delta < 0:
            out[FRAME.error] = E_METADATA
        elif delta > 0:
            out[FRAME.flag] = load_u8(base + delta) != 0


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
            if claim < -1 or claim > UNPACKED_MAX:
                return -1
            length = max(length, claim)
        total += length
    return total
