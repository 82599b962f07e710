"""The limit of a shuffle: copying the same bytes into pages, without partitions."""

from __future__ import annotations

from kernels.cpu import mem
from kernels.cpu.shuffle.members import member
from kernels.cpu.shuffle.writing import copy_block


@member
def copy_pages(target: int, size: int, source: int, block: int, stream: int) -> None:
    """Copy the `block` bytes at `source` to `target` until it has `size` bytes: with memcpy, or
    non-temporal stores if `stream`."""
    for at in range(0, size - block + 1, block):
        if stream != 0:
            copy_block(target + at, source, block, 1)
        else:
            mem.copy_bytes(target + at, source, block)
