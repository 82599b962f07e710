"""Texts anywhere in memory, collected into one column.

An expression that yields text gives an address and a size a row.  These kernels make a column's
offsets and bytes of them.
"""

from __future__ import annotations

from typing import Any

from kernels.cpu.mem import copy_bytes
from kernels.registry import kernel


@kernel("int64(int64[::1], int64[::1])", reference="tests.naive.collect.collect_offsets")
def collect_offsets(sizes: Any, offsets: Any) -> Any:
    """Offsets, from 0, of texts of the given sizes; returns the sum of the sizes."""
    total = 0
    offsets[0] = 0
    for i in range(sizes.size):
        total += sizes[i]
        offsets[i + 1] = total
    return total


@kernel(
    "void(int64[::1], int64[::1], int64, int64, int64)",
    reference="tests.naive.collect.collect_bytes",
)
def collect_bytes(addresses: Any, offsets: Any, start: Any, stop: Any, target: Any) -> Any:
    """Copy the texts of rows `start:stop` to their offsets, counted from `target`."""
    for i in range(start, stop):
        size = offsets[i + 1] - offsets[i]
        if size > 0:
            copy_bytes(target + offsets[i], addresses[i], size)
