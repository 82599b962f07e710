"""Naive twins of kernels.cpu.staging."""

from __future__ import annotations

import ctypes
import struct

import numpy as np


def copy_rows(source, start, stop, target, at, bytes_at) -> None:
    take_rows(source, np.arange(start, stop), target, at, bytes_at)


def take_rows(source, rows, target, at, bytes_at) -> None:
    def read(address: int, size: int) -> bytes:
        return ctypes.string_at(int(address), int(size))

    def write(address: int, data: bytes) -> None:
        ctypes.memmove(int(address), data, len(data))

    for c in range(len(source)):
        width, values, valid, offsets, *_ = (int(x) for x in source[c])
        _, to_values, to_valid, to_offsets, *_ = (int(x) for x in target[c])
        if to_offsets:
            write(to_offsets + 8 * at, struct.pack("<q", bytes_at[c]))
        for i, row in enumerate(int(r) for r in rows):
            if to_valid:
                write(to_valid + at + i, read(valid + row, 1) if valid else b"\1")
            if not to_offsets:
                write(to_values + (at + i) * width, read(values + row * width, width))
                continue
            first, last = struct.unpack("<qq", read(offsets + 8 * row, 16))
            write(to_values + int(bytes_at[c]), read(values + first, last - first))
            bytes_at[c] += last - first
            write(to_offsets + 8 * (at + i + 1), struct.pack("<q", bytes_at[c]))
