"""Flatbuffers in untrusted memory: positions of fields, checked against the buffer's bounds.

`base` is the buffer's address and `size` its length; positions are relative to `base`.
"""

from __future__ import annotations

from typing import Any

from kernels.cpu.mem import load_i32, load_u16, load_u32
from kernels.registry import device


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
def message_table(base: int, size: int) -> Any:
    """Position of the root table; -1 where it is out of bounds."""
    if size < 8:
        return -1
    return target_of(base, size, 0, 4)
